"""The whole pipeline as a person runs it: finish, fail, interrupt, kill, resume."""

import json
import signal
import subprocess
import time

import pytest

from harness.records import RunFolder
from tests.conftest import environment


def the_run(harness) -> RunFolder:
    [folder] = harness.outputs.iterdir()
    return RunFolder(folder)


def test_a_run_leaves_manifest_records_profile_and_summary(harness):
    done = harness("run.limit=3")
    run = the_run(harness)
    manifest, records, summary = run.manifest(), run.records(), run.summary()
    assert (manifest.status, len(records), manifest.samples_planned) == ("finished", 3, 3)
    assert all(record.status == "ok" and record.score is None for record in records)
    assert summary["rounds/total"] == sum(len(record.rounds) for record in records)
    assert summary["quality/n_unscored"] == 3
    assert "quality/score" not in summary
    [profiled] = run.records("profile.jsonl")
    assert profiled.output_ids == next(r.output_ids for r in records if r.key == profiled.key)
    assert set(profiled.stage_s) == {"prefill", "draft", "build", "verify", "sample", "commit"}
    assert len(profiled.trees) == len(profiled.rounds)
    assert all(len(tree.texts) == len(tree.tokens) for tree in profiled.trees)
    assert all(record.trees is None for record in records)
    assert manifest.resolved["engine"]["dtype"] == "float32"
    # The tiny target: embedding and head of 300 × 32 each, of which the head alone is streamed; 3 layers of two
    # norms (32), q and o (32 × 32), k and v (32 × 16), and three 32 × 48 of the MLP; a last norm.
    layer = 2 * 32 + 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48
    assert manifest.resolved["engine"]["target_weight_bytes"] == 4 * (300 * 32 + 3 * layer + 32)
    assert manifest.resolved["stop_ids"] == [1, 2]
    assert len(manifest.resolved["sources"]["drafter"]["sha256"]) >= 2
    assert str(run.path) in done.stdout
    assert "acceptance length" in done.stdout


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_coupled_modes_write_the_same_tokens(harness, temperature):
    outputs = {}
    for mode in ("autoregressive", "dflash", "ddtree"):
        harness(f"speculative={mode}", "speculative.verifier=coupled", f"sampling.temperature={temperature}")
    for folder in harness.outputs.iterdir():
        run = RunFolder(folder)
        outputs[run.manifest().asked["speculative"]["name"]] = {r.key: r.output_ids for r in run.records()}
    assert outputs["dflash"] == outputs["autoregressive"]
    assert outputs["ddtree"] == outputs["autoregressive"]


def test_temperature_is_not_served_greedily(harness):
    """Case 2: many repeats at T=1 give many outputs; case 7: the seed decides, and prompts do not share noise."""
    harness("run.limit=1", "sampling.repeats=8", "sampling.temperature=1.0", "run.profile=0")
    first = {tuple(r.output_ids) for r in the_run(harness).records()}
    assert len(first) == 8
    harness("run.limit=1", "sampling.repeats=8", "sampling.temperature=1.0", "run.profile=0", "sampling.seed=1")
    [other] = [RunFolder(f) for f in harness.outputs.iterdir() if RunFolder(f).manifest().asked["sampling"]["seed"]]
    assert not first & {tuple(r.output_ids) for r in other.records()}


def test_a_finished_run_is_not_decoded_again_and_a_larger_limit_adds(harness):
    harness("run.limit=2")
    run = the_run(harness)
    before = (run.path / "records.jsonl").read_bytes()
    harness("run.limit=2")
    assert (run.path / "records.jsonl").read_bytes() == before
    harness("run.limit=4")
    after = (run.path / "records.jsonl").read_bytes()
    assert after.startswith(before)
    assert len(run.records()) == 4


def test_a_failing_sample_is_a_record_and_the_exit_status_tells(harness, prompts):
    prompts.write_text('{"id": "empty", "messages": [{"role": "user", "content": ""}]}\n' + prompts.read_text())
    done = harness("run.limit=null", check=False)
    run = the_run(harness)
    assert done.returncode == 1
    assert run.manifest().status == "failed"
    failed = [record for record in run.records() if record.status == "error"]
    assert [record.sample_id for record in failed] == ["empty"]
    assert "no tokens" in failed[0].error
    assert len(run.records()) == 7
    assert run.summary()["rate/error"] == pytest.approx(1 / 7)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_cleanly_and_resumes(harness, how):
    process = start(harness)
    wait_for_records(harness, 2)
    process.send_signal(how)
    assert process.wait(timeout=60) == 130
    run = the_run(harness)
    assert run.manifest().status == "interrupted"
    kept = {record.key: record.finished_at for record in run.records()}
    assert 2 <= len(kept) < 30
    assert run.summary()["samples/records"] == len(kept)
    resume(harness, run, kept)


def test_a_killed_run_loses_no_finished_sample(harness):
    process = start(harness)
    wait_for_records(harness, 2)
    process.kill()
    process.wait()
    run = the_run(harness)
    assert run.manifest().status == "running"
    kept = {record.key: record.finished_at for record in run.records()}
    with (run.path / "records.jsonl").open("ab") as file:
        file.write(b'{"schema": 1, "task": "jsonl", "sample_id": "p5", "rep')  # torn in the middle of a line
    resume(harness, run, kept)


SLOW = ("run.limit=null", "sampling.repeats=5", "sampling.max_new_tokens=150", "speculative=autoregressive")
# 30 samples of 150 rounds: long enough to be stopped in the middle, on a fast machine too.


def start(harness) -> subprocess.Popen:
    return subprocess.Popen(
        harness.command(*SLOW), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def wait_for_records(harness, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        files = list(harness.outputs.glob("*/records.jsonl"))
        if files and files[0].read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.02)
    raise AssertionError("no records within a minute")


def resume(harness, run: RunFolder, kept: dict) -> None:
    harness(*SLOW)
    assert run.manifest().status == "finished"
    lines = [line for line in (run.path / "records.jsonl").read_text().splitlines() if line]
    keys = []
    for line in lines:
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            continue
        keys.append((values["sample_id"], values["repeat"]))
    assert len(keys) == len(set(keys)) == 30  # none lost, none decoded twice
    after = {record.key: record.finished_at for record in run.records()}
    assert {key: after[key] for key in kept} == kept


def test_a_resume_under_other_facts_is_refused(harness, prompts):
    harness("run.limit=2")
    prompts.write_text(prompts.read_text().replace("say something", "say nothing"))
    done = harness("run.limit=4", check=False)
    assert done.returncode == 2
    assert "other facts" in done.stderr
    assert "sha256" in done.stderr
    assert len(the_run(harness).records()) == 2


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["hardware=h200"], ["hardware=h200", "no usable CUDA device", "hardware=cpu"]),
        (["speculative.tree_budget=-1"], ["speculative.tree_budget=-1"]),
        (["sampling.temperature=nan"], ["sampling.temperature=nan"]),
        (["model=nope"], ["model=nope", "Allowed"]),
        (["task.path=nowhere.jsonl"], ["task", "nowhere.jsonl"]),
        (["model.target=nowhere/at/all"], ["model.target", "nowhere/at/all"]),
        (["model.drafter=null"], ["drafter"]),
        (["sampling.max_new_tokens=100000"], ["sampling.max_new_tokens=100000", "512 positions"]),
        (["speculative.spine=true", "speculative.tree_budget=2"], ["speculative.tree_budget=2", "spine"]),
    ],
)
def test_what_cannot_run_is_said_at_once(harness, overrides, parts):
    done = harness(*overrides, check=False)
    assert done.returncode == 2
    for part in parts:
        assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(harness.outputs.glob("*/records.jsonl"))
