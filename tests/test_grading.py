"""Grading beside the timed loop and in its pauses: order, faults of graders, kills."""

import hashlib
import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness import grading
from harness.grading import Grading, GradingPlan, Worker, grading_plan, own_limits, usable_cores
from harness.records import UNGRADED, Round, RunFolder, SampleRecord
from tasks.base import Sample
from tasks.humaneval import HumanEval
from tests.conftest import environment
from tests.grading_tasks import Toy

SAMPLE = Sample(id="x", messages=[{"role": "user", "content": "say a"}])


def decoded(name: str, **values: object) -> SampleRecord:
    rounds = [Round(num_accepted=0, num_emitted=1, num_nodes=1, context_length=3)]
    return SampleRecord(
        task="toy", sample_id=name, repeat=0, status="ok", output_ids=[5, 6], output_text=name, rounds=rounds, **values
    )


def test_the_loop_goes_on_while_graders_work(tmp_path: Path) -> None:
    """The graders wait for a file that is written only after every answer was handed over."""
    kept: list[SampleRecord] = []
    run, gate = RunFolder(tmp_path / "run"), tmp_path / "gate"
    with Grading(Toy(gate=str(gate)), GradingPlan(workers=2, beside=True), kept.append, run) as grading:
        for name in ("cat", "dog", "ape"):
            grading.add(decoded(name), SAMPLE, name)
        assert kept == []
        assert {record.sample_id for record in run.ungraded()} == {"cat", "dog", "ape"}
        assert run.finished() == {("cat", 0), ("dog", 0), ("ape", 0)}
        gate.touch()
    assert {record.sample_id: record.score for record in kept} == {"cat": 1.0, "dog": 0.0, "ape": 1.0}
    assert all(record.grader == 3 and record.graded_at and not record.flags["grader_error"] for record in kept)
    assert all(record.score_detail["nice"] >= 10 and record.score_detail["pid"] != os.getpid() for record in kept)


def test_the_loop_waits_when_too_much_is_open(tmp_path: Path) -> None:
    kept: list[SampleRecord] = []
    with Grading(Toy(), GradingPlan(workers=1, beside=True), kept.append) as grading:
        for number in range(10):
            grading.add(decoded(str(number)), SAMPLE, "a")
            assert number + 1 - len(kept) <= 4


def test_without_a_spare_core_a_batch_is_graded_before_the_next(tmp_path: Path) -> None:
    kept: list[SampleRecord] = []
    with Grading(Toy(), GradingPlan(workers=2, beside=False), kept.append) as grading:
        for name in ("a", "b", "c", "d"):
            grading.add(decoded(name, batch_size=2), SAMPLE, name)
            if name in "bd":
                assert len(kept) == ord(name) - ord("a") + 1  # nothing is open when the loop goes on


@pytest.mark.parametrize(
    ("cores", "device", "threads", "workers", "beside"),
    [(2, "cpu", 2, 2, False), (2, "cpu", 1, 1, True), (64, "cpu", 8, 4, True), (64, "cuda", 64, 4, True),
     (3, "cuda", 3, 1, True), (2, "cuda", 2, 2, False), (1, "cpu", 1, 1, False)],
)  # fmt: skip
def test_who_grades_when(
    monkeypatch: pytest.MonkeyPatch, cores: int, device: str, threads: int, workers: int, beside: bool
) -> None:
    monkeypatch.setattr(grading, "usable_cores", lambda: cores)
    assert grading_plan(device, threads) == GradingPlan(workers=workers, beside=beside)


@pytest.mark.parametrize(("text", "cores"), [("150000 100000", 1), ("max 100000", None), ("", None), ("100 100000", 1)])
def test_a_container_quota_counts(tmp_path: Path, text: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert usable_cores(tmp_path / "cpu.max") == (cores or len(os.sched_getaffinity(0)))
    assert usable_cores(tmp_path / "none") == len(os.sched_getaffinity(0))


def test_faults_of_graders_are_no_scores_and_faults_of_answers_are_zero() -> None:
    worker = Worker(Toy())
    try:
        assert worker.grade(SAMPLE, "a").value == 1.0
        assert worker.grade(SAMPLE, "raise").value is None
        assert "no grader today" in worker.grade(SAMPLE, "raise").detail["grader_error"]
        assert "not in [0, 1]" in worker.grade(SAMPLE, "not a number").detail["grader_error"]
        assert worker.grade(SAMPLE, "print").value == 0.0  # what a grader prints is no reply
        crashed = worker.grade(SAMPLE, "crash")
        assert (crashed.value, "ends its grader" in crashed.detail["reason"]) == (0.0, True)
        worker.limit_s = 0.2
        assert worker.grade(SAMPLE, "hang").value == 0.0
        worker.limit_s = 60.0
        assert worker.grade(SAMPLE, "a").value == 1.0
    finally:
        worker.stop()


def test_a_task_that_cannot_start_is_a_fault_of_the_grader(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(Toy())
    monkeypatch.setattr(grading.pickle, "dumps", lambda value: b"no pickle")
    score = worker.grade(SAMPLE, "a")
    assert score.value is None
    assert "did not start" in score.detail["grader_error"]


def test_limits_come_from_the_task() -> None:
    assert own_limits(HumanEval(timeout_s=5.0)) == 5.0
    assert own_limits(Toy(hang_s=2.0)) == 2.0


TOY = ("task._target_=tests.grading_tasks.Toy", "run.profile=0")


@pytest.fixture
def turns(prompts: Path) -> Path:
    """Three conversations; the second has one turn."""
    rows = [
        {"id": "p0", "turns": ["one", "two", "three"]},
        {"id": "p1", "turns": ["uno"]},
        {"id": "p2", "turns": ["a", "b"]},
    ]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return prompts


def test_each_mode_keeps_its_own_history(harness, turns: Path, tiny_pair: dict[str, Path]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_pair["target"])
    for mode in ("autoregressive", "ddtree"):
        harness(*TOY, f"speculative={mode}", "sampling.temperature=1.0", "sampling.repeats=2", "run.limit=null")
    histories = {}
    for folder in harness.outputs.iterdir():
        run = RunFolder(folder)
        mode = run.manifest().asked["speculative"]["name"]
        records = {record.key: record for record in run.records()}
        assert sorted(records) == sorted(
            (name, repeat) for name in ("p0", "p0/turn-2", "p0/turn-3", "p1", "p2", "p2/turn-2") for repeat in (0, 1)
        )
        assert run.manifest().samples_planned == len(records) == 12
        for repeat in (0, 1):
            first, second, third = (records[name, repeat] for name in ("p0", "p0/turn-2", "p0/turn-3"))
            assert [first.turn, second.turn, third.turn] == [1, 2, 3]
            said = ["one", first.output_text.strip(), "two", second.output_text.strip(), "three"]
            assert third.score_detail["history"] == said
            ids = tokenizer.encode("\n\n".join(said))
            assert third.prompt_sha256 == hashlib.sha256(json.dumps(ids).encode()).hexdigest()
            histories[mode, repeat] = said
    assert len({tuple(said) for said in histories.values()}) == 4  # negative control: the runs did say different things


def test_a_failed_turn_takes_the_later_ones_with_it_and_a_resume_mends_them(harness, turns: Path) -> None:
    rows = [json.loads(line) for line in turns.read_text().splitlines()]
    turns.write_text(
        "".join(
            json.dumps({**row, "turns": ["", *row["turns"]] if row["id"] == "p2" else row["turns"]}) + "\n"
            for row in rows
        )
    )
    done = harness(*TOY, "run.limit=null", check=False)
    [folder] = harness.outputs.iterdir()
    run = RunFolder(folder)
    assert (done.returncode, run.manifest().status) == (1, "failed")
    errors = {record.sample_id: record.error for record in run.records() if record.status == "error"}
    assert set(errors) == {"p2", "p2/turn-2", "p2/turn-3"}
    assert "turn 1 of this conversation failed" in errors["p2/turn-3"]
    assert len(run.records()) == run.manifest().samples_planned == 7


def test_conversations_that_cannot_fit_are_refused_before_anything_loads(harness, turns: Path) -> None:
    done = harness(*TOY, "sampling.max_new_tokens=170", "run.limit=null", check=False)
    assert done.returncode == 2
    assert "3 turns of p0" in done.stderr
    assert "Allowed here: at most 1" in done.stderr


def test_a_kill_while_graders_work_loses_no_decoded_sample(harness, turns: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    words = (*TOY, f"+task.gate={gate}", "run.limit=null", "engine.batch_size=2")
    process = subprocess.Popen(
        harness.command(*words), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + 60
    while not (found := list(harness.outputs.glob(f"*/{UNGRADED}"))) or found[0].read_bytes().count(b"\n") < 2:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    process.kill()
    process.wait()
    run = RunFolder(found[0].parent)
    assert run.records() == []
    waiting = {record.key: record for record in run.ungraded()}
    gate.touch()
    harness(*words)
    assert run.manifest().status == "finished"
    assert not (run.path / UNGRADED).exists()
    assert len((run.path / "records.jsonl").read_text().splitlines()) == len(run.records()) == 6
    for record in run.records():
        assert record.score is not None
        if record.key in waiting:
            assert record.finished_at == waiting[record.key].finished_at  # not decoded again
            assert record.output_ids == waiting[record.key].output_ids


def test_a_grader_that_does_not_work_fails_the_run_and_loses_nothing(harness, turns: Path) -> None:
    done = harness(*TOY, "+task.fail=true", "run.limit=null", check=False)
    assert done.returncode == 1
    [folder] = harness.outputs.iterdir()
    run = RunFolder(folder)
    assert run.manifest().status == "failed"
    assert all(record.status == "ok" and record.score is None for record in run.records())
    assert run.summary()["rate/grader_error"] == 1.0
    assert "quality/score" not in run.summary()
    assert any("rescore" in warning for warning in run.summary()["warnings"])
    assert len(run.ungraded()) == 6


def test_ungraded_records_survive_a_torn_line(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.append_ungraded(decoded("a"))
    with (tmp_path / UNGRADED).open("ab") as file:
        file.write(b'{"schema": 2, "ta')
    assert [record.sample_id for record in run.ungraded()] == ["a"]
    run.drop_ungraded()
    assert (tmp_path / UNGRADED).exists()
    run.append(replace(decoded("a"), score=1.0))
    run.drop_ungraded()
    assert not (tmp_path / UNGRADED).exists()
