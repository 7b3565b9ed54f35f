"""engine=openai against a small real server that answers as SGLang, vLLM and plainer ones do: what is exposed is recorded,
what is not is absent, and nothing is made up."""

import json
import os
import subprocess
import sys

import pytest

from harness.records import RunFolder
from tests.engines.served import DONE, serving

WORDS = ["Hel", "lo", " wor", "ld"]


def models(names=("tiny",)):
    return 200, {"data": [{"id": name} for name in names]}


def chat(body, words=WORDS, reason="stop", usage=None, delay=0.0, **extra):
    """As OpenAI's chat stream: a role first, the text, an end without text, the usage alone."""
    yield {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    for word in words:
        yield {"choices": [{"delta": {"content": word}, **extra}]}
        yield delay
    yield {"choices": [{"delta": {}, "finish_reason": reason}]}
    yield {"choices": [], "usage": {"prompt_tokens": 21, "completion_tokens": len(words)} if usage is None else usage}
    yield DONE


def completions(body, ids=(40, 41, 42, 1), counted=None, reason="stop"):
    for token in ids:
        yield {"choices": [{"text": f"<{token}>", "token_ids": [token]}]}
    yield {"choices": [{"text": "", "finish_reason": reason}]}
    yield {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": counted or len(ids)}}
    yield DONE


def answering(stream=chat, names=("tiny",)):
    def answer(path, body):
        return models(names) if path.endswith("/models") else stream(body)

    return answer


@pytest.fixture
def ask(harness):
    """Run against the server; returns what the command said and the run's folder."""

    def run(served, *overrides, check=True):
        done = harness("engine=openai", f"engine.base_url={served.url}/v1", *overrides, check=check)
        folders = list(harness.outputs.glob("*/run.json"))
        return done, RunFolder(folders[0].parent) if folders else None

    return run


def test_chat_records_what_the_api_shows_and_lists_the_rest(ask):
    with serving(answering()) as served:
        done, run = ask(served, "run.limit=3", "engine.concurrency=2")
    records, summary = run.records(), run.summary()
    assert len(records) == 3
    for record in records:
        assert (record.output_text, record.output_ids, record.finish_reason) == ("Hello world", [], "stop")
        assert (record.num_output, record.prompt_tokens, record.rounds) == (4, 21, [])
        assert record.totals.num_rounds is None
        assert "repetition" not in record.flags
    assert not [name for name in summary if name.startswith(("acceptance", "rounds", "stage", "memory"))]
    logprob = {"quality/target_logprob", "quality/n_target_logprob"}
    assert set(summary["absent"]) == {"acceptance", "rounds/", "stage/", "memory/"} | logprob
    assert summary["tokens/output"] == 12
    assert summary["latency/ttft_s_p50"] > 0
    assert "the server counts no rounds" in done.stdout.replace("\n", " ")
    assert not (run.path / "profile.jsonl").exists()
    resolved = run.manifest().resolved
    assert resolved["engine"]["served_model"] == "tiny"
    assert set(resolved["sources"]) == {"data"}  # the target is on the server: nothing was fetched


def test_every_sampling_value_is_sent(ask):
    """A value that is not sent would be the server's choice (vllm-project/vllm#17075)."""
    with serving(answering()) as served:
        ask(served, "run.limit=1", "sampling.temperature=0.7", "sampling.top_p=0.9", "sampling.min_p=0.05",
            "+engine.extra.reasoning_effort=low", "+model.chat_template_kwargs.enable_thinking=false")  # fmt: skip
    body = served.bodies[-1][1]
    for name, value in {
        "model": "tiny", "temperature": 0.7, "top_p": 0.9, "top_k": -1, "min_p": 0.05, "max_tokens": 24, "stream": True,
        "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False},
    }.items():  # fmt: skip
        assert body[name] == value, name
    assert isinstance(body["seed"], int)
    assert body["messages"][0]["role"] == "user"


def test_the_api_key_is_sent_and_never_written(ask, monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cret")
    with serving(answering()) as served:
        _, run = ask(served, "run.limit=1", "engine.api_key_variable=MY_KEY")
    assert {headers["Authorization"] for headers in served.headers} == {"Bearer s3cret"}
    assert not [path for path in run.path.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]


def test_completions_send_the_prompts_ids_and_record_the_outputs(ask):
    with serving(answering(completions)) as served:
        _, run = ask(served, "run.limit=2", "engine.api=completions")
    for record in run.records():
        assert (record.output_ids, record.num_output, record.output_text) == ([40, 41, 42, 1], 4, "<40><41><42><1>")
    body = served.bodies[-1][1]
    assert all(isinstance(token, int) for token in body["prompt"])
    assert body["stop_token_ids"] == [1, 2]


@pytest.mark.parametrize("counted", [3, 9])
def test_ids_that_do_not_fit_the_count_are_not_recorded(ask, counted):
    with serving(answering(lambda body: completions(body, counted=counted))) as served:
        _, run = ask(served, "run.limit=1", "engine.api=completions")
    [record] = run.records()
    assert (record.output_ids, record.num_output) == ([], counted)


def test_thinking_that_the_server_set_apart_is_output_too(ask):
    def thinking(body):
        yield {"choices": [{"delta": {"reasoning_content": "hm, "}}]}
        yield from chat(body, usage={"prompt_tokens": 3, "completion_tokens": 9})

    with serving(answering(thinking)) as served:
        _, run = ask(served, "run.limit=1")
    assert run.records()[0].output_text == "hm, Hello world"


def test_one_event_for_all_tokens_gives_no_speed(ask):
    with serving(answering(lambda body: chat(body, ["all at once"], usage={"completion_tokens": 4}))) as served:
        _, run = ask(served, "run.limit=1")
    [record] = run.records()
    assert (record.ttft_s, record.decode_s) == (None, None)
    assert not [name for name in run.summary() if name.startswith(("latency", "throughput"))]


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (lambda body: chat(body, usage={}), "no usage.completion_tokens"),
        (lambda body: chat(body, reason="content_filter"), "finish_reason content_filter"),
        (lambda body: chat(body, reason=None), "finish_reason None"),
        (lambda body: [{"object": "odd"}, DONE], "no choices"),
        (lambda body: list(chat(body))[:4], "the stream ended before"),
        (lambda body: (429, {"error": {"message": "slow down"}}), "status 429: slow down"),
        (lambda body: chat(body, delay=1.0), "silent for too long"),
    ],
)
def test_a_sample_that_fails_is_an_error_record_and_the_run_goes_on(ask, stream, said):
    def second_fails(body):
        return stream(body) if "number 1" in str(body["messages"]) else chat(body)

    with serving(answering(second_fails)) as served:
        done, run = ask(served, "run.limit=null", "engine.timeout_s=0.5", check=False)
    assert done.returncode == 1
    failed = {record.sample_id: record.error for record in run.records() if record.status == "error"}
    assert list(failed) == ["p1"]
    assert said in failed["p1"]
    assert run.summary()["rate/error"] == pytest.approx(1 / 6)


@pytest.mark.parametrize(
    ("names", "overrides", "said"),
    [
        (("a", "b"), [], "engine.model=None: the server has a, b"),
        (("a", "b"), ["engine.model=c"], "engine.model=c: the server has a, b"),
        ((), [], "the server has none"),
        (("a",), ["sampling=checkpoint"], "sampling.temperature=checkpoint"),
        (
            ("a",),
            ["engine.api_key_variable=NOT_SET_HERE"],
            "engine.api_key_variable=NOT_SET_HERE: this variable is not set",
        ),
        (("a",), ["engine.base_url=localhost:1"], "engine.base_url=localhost:1: must begin with http"),
        (("a",), ["engine.base_url=http://127.0.0.1:9/v1"], "no server answers there"),
        (("a",), ["engine.api=compeltions"], "chat"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_decoded(ask, names, overrides, said):
    with serving(answering(names=names)) as served:
        done, run = ask(served, *overrides, check=False)
    assert done.returncode == 2
    assert said in done.stderr.replace("\n", " ")
    assert run is None


def test_a_page_that_is_no_api_is_said(ask):
    with serving(lambda path, body: (200, "hello")) as served:
        done, _ = ask(served, check=False)
    assert "is no list of models" in done.stderr.replace("\n", " ")
    with serving(lambda path, body: (404, {})) as served:
        done, _ = ask(served, check=False)
    assert "answers 404" in done.stderr.replace("\n", " ")


def test_weights_and_biases_get_what_there_is_and_why_the_rest_is_not(ask, monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with serving(answering()) as served:
        _, run = ask(served, "run.limit=2", "tracking=offline")
    [log] = run.path.glob("wandb/offline-run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(log)]
    entries = [json.loads(line) for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines()]
    summary = {k: v for e in entries if e["type"] == "summary" for k, v in e["summary"].get("update", {}).items()}
    assert summary["tokens/output"] == 8
    assert not [name for name in summary if name.startswith(("acceptance", "running/acceptance", "rounds"))]
    assert "counts no rounds" in json.dumps({name: value for name, value in summary.items() if "absent" in name})
