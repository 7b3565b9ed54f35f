"""engine=sglang as a person runs it, with a stand-in for the server: what is sent, and what happens when it breaks.

The real server: test_sglang_server_real.py.
"""

import json
import os
import sys
from pathlib import Path

import pytest

from harness.records import RunFolder

STAND_IN = Path(__file__).with_name("stand_in.py")


@pytest.fixture
def served(harness, tmp_path, monkeypatch):
    """Run with the stand-in. Returns the command's result, the run (None without one) and what the server was sent."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    os.chmod(python, 0o755)
    log = tmp_path / "requests.jsonl"
    monkeypatch.setenv("STAND_IN_LOG", str(log))
    monkeypatch.setattr("harness.engines.sglang_server.GRACE_S", 0.5)

    def run(*overrides, check=True, **environment):
        log.write_text("")
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(f"STAND_IN_{name}", str(value))
            words = ["engine=sglang", f"engine.python={python}", "engine.startup_s=30", "run.limit=null", *overrides]
            done = harness(*words, check=check)
        folders = list(harness.outputs.glob("*/run.json"))
        sent = [json.loads(line) for line in log.read_text().splitlines()]
        return done, RunFolder(folders[0].parent) if folders else None, sent

    return run


def test_what_is_sent_and_recorded(served):
    done, run, sent = served("sampling.temperature=0.7", "sampling.top_k=9", "sampling.seed=3", "engine.concurrency=2")
    assert [path for path, _ in sent] == ["/generate"] * 2 + ["/flush_cache"] + ["/generate"] * 6
    warm, bodies = [body for path, body in sent[:2]], [body for path, body in sent[3:]]
    assert {body["sampling_params"]["max_new_tokens"] for body in warm} == {8}
    for body in bodies:
        params = body["sampling_params"]
        assert (params["temperature"], params["top_k"], params["top_p"], params["min_p"]) == (0.7, 9, 1.0, 0.0)
        assert (params["max_new_tokens"], params["stop_token_ids"]) == (24, [1, 2])
        assert body["stream"] is True
        assert body["input_ids"]
    assert len({body["sampling_params"]["sampling_seed"] for body in bodies}) == 6
    records = run.records()
    assert len(records) == 6
    assert {(r.num_output, len(r.rounds), r.finish_reason) for r in records} == {(24, 8, "length")}
    assert [r.num_emitted for r in records[0].rounds] == [3] * 7 + [2]
    assert run.summary()["acceptance_length/pooled"] == 23 / 8
    assert run.summary()["acceptance/histogram"] == [0, 0, 48]
    assert run.manifest().resolved["engine"]["server_versions"]["torch"] == "2.11.0"
    assert not (run.path / "profile.jsonl").exists()
    assert "finished" in done.stdout
    # Nothing is left to do: the second run decodes nothing and changes nothing.
    before = (run.path / "records.jsonl").read_bytes()
    _, _, sent = served("sampling.temperature=0.7", "sampling.top_k=9", "sampling.seed=3", "engine.concurrency=2")
    assert sent == []
    assert (run.path / "records.jsonl").read_bytes() == before


def test_what_is_sent_follows_the_sessions_sampling(served, monkeypatch):
    """The certificate asks one server at many settings: none of them may be that of the start."""
    from dataclasses import replace

    from harness.engines.sglang import SGLangSession

    generate = SGLangSession.generate

    def changed(self, requests, **options):
        asked = dict(temperature=0.4, top_k=3, top_p=0.8, min_p=0.05, max_new_tokens=5)
        self.setup = replace(self.setup, sampling=replace(self.setup.sampling, **asked))
        yield from generate(self, requests, **options)

    monkeypatch.setattr(SGLangSession, "generate", changed)
    _, _, sent = served("run.limit=1")
    params = sent[-1][1]["sampling_params"]
    names = ("temperature", "top_k", "top_p", "min_p", "max_new_tokens")
    assert [params[name] for name in names] == [0.4, 3, 0.8, 0.05, 5]


def test_without_speculation_no_seed_is_sent_that_would_not_be_honoured(served):
    _, run, sent = served("speculative=autoregressive", "run.limit=1")
    assert "sampling_seed" not in sent[-1][1]["sampling_params"]
    [record] = run.records()
    assert [r.num_accepted for r in record.rounds] == [0] * 23


def test_a_server_that_dies_in_the_middle_ends_the_run_and_the_next_try_goes_on(served):
    done, run, _ = served(check=False, DIES=4)  # the first is the warm-up
    assert done.returncode == 2
    assert "the SGLang server ended by itself with status 1" in done.stderr
    assert "illegal memory access" in done.stderr
    assert run.manifest().status == "failed"
    records = run.records()
    assert [r.status for r in records] == ["ok", "ok", "error"]
    assert "the answer is not whole" in records[-1].error
    done, run, sent = served()
    assert len([path for path, _ in sent if path == "/generate"]) == 1 + 4
    assert run.manifest().status == "finished"
    assert {r.status for r in run.records()} == {"ok"}
    assert len(run.records()) == 6


def test_a_request_that_hangs_is_an_error_record_and_the_run_goes_on(served):
    done, run, _ = served("engine.timeout_s=1", check=False, HANGS=3)
    assert done.returncode == 1
    failed = [r for r in run.records() if r.status == "error"]
    assert len(failed) == 1
    assert "silent for too long" in failed[0].error
    assert len(run.records()) == 6


@pytest.mark.parametrize(
    ("overrides", "environment", "said"),
    [
        ((), dict(FAILS="torch.OutOfMemoryError: tried to allocate"), "tried to allocate"),
        ((), dict(NO_PLUGIN=1), "does not have it. Run `make install-sglang`"),
        (("speculative.tree_budget=3",), {}, "speculative.tree_budget=3"),
        (("speculative=dflash",), {}, "CUDA only"),
        (("engine.python=/no/such/python",), {}, "engine.python=/no/such/python: no such file"),
        (("engine.arguments=7",), {}, "engine.arguments=7"),
        (("engine.concurrency=0",), {}, "engine.concurrency=0"),
    ],
)
def test_what_cannot_start_is_said_and_leaves_no_run(served, overrides, environment, said):
    done, run, sent = served(*overrides, check=False, **environment)
    assert done.returncode == 2
    assert said in done.stderr.replace("\n", " ")
    assert run is None
    assert sent == []


def test_the_baseline_needs_no_plugin(served):
    done, _, _ = served("speculative=autoregressive", "run.limit=1", NO_PLUGIN=1)
    assert "finished" in done.stdout
