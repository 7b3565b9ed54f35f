"""How a cell's state is told from what lies on disk: a table of histories, and the process that writes them."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.launch.state import state_of, unfinished
from harness.launch.sweep import Cell, Sweep, lives, newest, this_process
from harness.records import RunFolder, RunManifest, SampleRecord
from tests.conftest import ROOT, environment
from tests.launch.conftest import wait_for

CELL = Cell(id="c0ffee", name="run-c0ffee", label="x=1", overrides=["x=1"], limit=2)
JOB = "7_0"


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    made = Sweep(outputs=tmp_path, name="s", command=[], cwd=str(tmp_path), created_at="", cells=[CELL])
    made.write()
    return made


def write_run(
    sweep: Sweep, status: str, done: int, planned: int = 2, limit: int | None = 2, errors: int = 0
) -> RunFolder:
    run = RunFolder(sweep.run_folder(CELL))
    asked = {"run": {"limit": limit}, "sampling": {"repeats": 1}}
    run.write_manifest(
        RunManifest(id="c0ffee", name="n", command=[], asked=asked, status=status, samples_planned=planned)
    )
    for i in range(done):
        run.append(SampleRecord(task="t", sample_id=f"s{i}", repeat=0, status="ok"))
    for i in range(errors):
        run.append(SampleRecord(task="t", sample_id=f"e{i}", repeat=0, status="error", error="boom"))
    return run


GONE = {"host": this_process()["host"], "pid": 1 << 22, "pid_started": "never-1"}  # past the largest pid
HERE = this_process()
ELSEWHERE = {"host": "another", "pid": 1, "pid_started": "x-1"}
SLURM = ("submitted", {"launcher": "slurm", "job": JOB})
LOCAL = ("submitted", {"launcher": "local", **HERE})
BEGAN, BEGAN_HERE, BEGAN_FAR = ("started", GONE), ("started", HERE), ("started", ELSEWHERE)
CANCELLED = ("cancelled", {"by": "the sweep"})
PREEMPTED = "-- try 0\nslurmstepd: error: *** JOB 7 ON n CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***\n"
RETRIED = PREEMPTED + "-- try 1\n"
TIME = "-- try 0\nslurmstepd: error: *** JOB 7 ON n CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
KILLED = "-- try 0\nslurmstepd: error: *** JOB 7 ON n CANCELLED AT 2026-01-01T00:00:00 ***\n"


def end(status: int, by: str | None = None, why: str = "") -> tuple[str, dict]:
    return "ended", {"exit": status, "stopped_by": by, "why": why}


HISTORIES = [
    # events, what squeue knows, Slurm's own file, expected state, part of the reason
    ([], None, "", "not started", ""),
    ([SLURM], "PENDING", "", "waiting", ""),
    ([SLURM], "RUNNING", "", "waiting", "starting"),
    ([SLURM], "CANCELLED", "", "cancelled", "before it began"),
    ([SLURM], "NODE_FAIL", "", "died", "NODE_FAIL"),
    ([SLURM], None, "", "died", "no longer known"),
    ([SLURM, CANCELLED], None, "", "cancelled", "before it began"),
    ([SLURM, BEGAN_FAR], "RUNNING", "-- try 0\n", "running", ""),
    ([SLURM, BEGAN_FAR], None, PREEMPTED, "preempted", JOB),
    ([SLURM, BEGAN_FAR], None, TIME, "timed out", JOB),
    ([SLURM, BEGAN_FAR], None, KILLED, "cancelled", JOB),
    ([SLURM, BEGAN_FAR], "OUT_OF_MEMORY", "-- try 0\n", "died", "OUT_OF_MEMORY"),
    ([SLURM, BEGAN_FAR], "TIMEOUT", "-- try 0\n", "timed out", ""),
    ([SLURM, BEGAN, end(130, "SIGTERM")], "PENDING", PREEMPTED, "preempted, waiting", "preempted once"),
    ([SLURM, BEGAN, end(130, "SIGTERM")], "COMPLETING", PREEMPTED, "preempted, waiting", ""),
    ([SLURM, BEGAN, end(130, "SIGTERM")], None, PREEMPTED, "preempted", ""),
    ([SLURM, BEGAN, end(130, "SIGTERM")], None, KILLED, "cancelled", ""),
    ([SLURM, BEGAN, end(130, "SIGTERM")], "CANCELLED", "", "cancelled", ""),
    ([SLURM, BEGAN, end(130, "SIGTERM")], None, "", "interrupted", ""),
    ([SLURM, BEGAN, end(130, "time limit")], None, "", "timed out", ""),
    ([SLURM, BEGAN, CANCELLED, end(130, "SIGTERM")], None, KILLED, "cancelled", "by the sweep"),
    # an old try's preemption says nothing about a later try
    ([SLURM, BEGAN, end(130, "SIGTERM"), BEGAN, end(2, None, "error: no")], None, RETRIED, "failed", "error: no"),
    ([SLURM, BEGAN, end(130, "SIGTERM"), BEGAN_HERE], None, RETRIED, "running", ""),
    ([LOCAL], None, "", "waiting", ""),
    ([("submitted", {"launcher": "local", **GONE})], None, "", "died", "ended first"),
    ([LOCAL, BEGAN_HERE], None, "", "running", ""),
    ([LOCAL, BEGAN], None, "", "died", "without a word"),
    ([LOCAL, BEGAN, CANCELLED], None, "", "cancelled", "by the sweep"),
    ([LOCAL, BEGAN, end(-9)], None, "", "died", "signal 9"),
    ([LOCAL, BEGAN, end(2, None, "error: no such file")], None, "", "failed", "error: no such file"),
    ([LOCAL, BEGAN, end(130)], None, "", "interrupted", ""),
    ([LOCAL, BEGAN, end(0)], None, "", "failed", "no run.json"),
    # what was before the last submission says nothing
    ([LOCAL, BEGAN, end(2), SLURM], "PENDING", "", "waiting", ""),
]  # fmt: skip


@pytest.mark.parametrize(("events", "queued", "text", "state", "why"), HISTORIES)
def test_histories(sweep: Sweep, events, queued, text, state, why):
    for kind, facts in events:
        sweep.note(CELL, kind, **facts)
    if text:
        (sweep.folder / f"slurm-{JOB}.log").write_text(text)
    found = state_of(sweep, CELL, {JOB: queued} if queued else {})
    assert (found.state, why in found.why) == (state, True), found
    assert found.active == (state in ("waiting", "running", "preempted, waiting"))


@pytest.mark.parametrize(
    ("run", "state", "why"),
    [
        (dict(status="finished", done=2), "finished", ""),
        (dict(status="finished", done=1), "not started", "1 of 2"),  # somebody took records away
        (dict(status="finished", done=1, planned=1, limit=1), "not started", "run.limit was 1"),
        (dict(status="finished", done=1, planned=1, limit=2), "finished", ""),  # the data has no more
        (dict(status="finished", done=3, planned=3, limit=None), "finished", ""),
        (dict(status="finished", done=3, planned=3, limit=3), "finished", ""),
        (dict(status="failed", done=1, errors=1), "failed", "1 of its samples failed; e0: boom"),
        (dict(status="running", done=1), "failed", "exit status 0"),
    ],
)
def test_the_records_have_the_last_word(sweep: Sweep, run, state, why):
    write_run(sweep, **run)
    for kind, facts in [LOCAL, BEGAN, end(0)]:
        sweep.note(CELL, kind, **facts)
    found = state_of(sweep, CELL, {})
    assert (found.state, why in found.why) == (state, True), found
    assert (found.done, found.planned) == (run["done"], run.get("planned", 2))


def test_a_finished_run_of_somebody_else_counts_and_a_running_one_is_not_finished(sweep: Sweep):
    run = write_run(sweep, "finished", done=2)
    assert state_of(sweep, CELL, {}).state == "finished"
    assert unfinished(CELL, run, run.manifest()) == ""
    whole = Cell(id="c0ffee", name=CELL.name, label="", overrides=[], limit=None)
    assert unfinished(whole, run, run.manifest()) == "run.limit was 2"
    for kind, facts in [LOCAL, BEGAN_HERE]:
        sweep.note(CELL, kind, **facts)
    assert state_of(sweep, CELL, {}).state == "running"


def test_a_torn_event_is_dropped_and_a_manifest_reads_back(sweep: Sweep):
    sweep.note(CELL, "submitted", launcher="local", **HERE)
    with (sweep.folder / f"{CELL.id}.jsonl").open("ab") as file:
        file.write(b'{"event": "star')
    assert [event["event"] for event in sweep.events(CELL)] == ["submitted"]
    assert Sweep.read(newest(sweep.outputs)) == sweep
    with pytest.raises(ValueError, match="is not a sweep"):
        Sweep.read(sweep.outputs / "sweeps/other.json")


def test_a_process_lives_until_it_ends_and_its_pid_alone_proves_nothing():
    process = subprocess.Popen(["sleep", "60"])
    known = this_process(process.pid)
    assert lives(known) is True
    assert lives({**known, "pid_started": "other-1"}) is False
    assert lives({**known, "host": "another"}) is None
    process.kill()
    wait_for(lambda: lives(known) is False, 10)  # a zombie that nobody waited for is dead
    process.wait()


STAND_IN = """
import signal, sys, time
def stop(*_): print("stopping", flush=True); sys.exit(130)
signal.signal(signal.SIGTERM, stop)
print("begun", flush=True)
what = sys.argv[1]
if what == "wait": time.sleep(60)
if what == "raise": raise RuntimeError("boom")
if what == "refuse": print("error: it is no good:\\n  in detail", flush=True); sys.exit(2)
if what == "kill": import os; os.kill(os.getpid(), 9)
"""


def cell_process(sweep: Sweep, tmp_path: Path, what: str) -> subprocess.Popen:
    """`harness.launch.cell` with a stand-in for `python -m harness`."""
    (tmp_path / "harness").mkdir(exist_ok=True)
    (tmp_path / "harness/__main__.py").write_text(STAND_IN)
    (tmp_path / "harness/__init__.py").write_text("")
    cell = Cell(id=CELL.id, name=CELL.name, label="", overrides=[what])
    sweep.cells = [cell]
    sweep.write()
    # Python finds the stand-in first, in the folder that the child starts in.
    command = [sys.executable, "-m", "harness.launch.cell", str(sweep.path), CELL.id]
    return subprocess.Popen(command, env=environment(), cwd=ROOT, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("what", "number", "exit_status", "child", "stopped_by", "why"),
    [
        ("wait", signal.SIGTERM, 130, 130, "SIGTERM", ""),
        ("wait", signal.SIGINT, 130, 130, "SIGINT", ""),
        ("wait", signal.SIGUSR1, 130, 130, "time limit", ""),
        ("done", None, 0, 0, None, ""),
        ("raise", None, 1, 1, None, "RuntimeError: boom"),
        ("refuse", None, 2, 2, None, "error: it is no good: in detail"),
        ("kill", None, 137, -9, None, "begun"),
    ],
)
def test_how_a_cell_ends_is_written_down(sweep, tmp_path, what, number, exit_status, child, stopped_by, why):
    process = cell_process(sweep, tmp_path, what)
    log = sweep.folder / f"{CELL.id}.log"
    if number:
        wait_for(lambda: log.is_file() and "begun" in log.read_text(), 20)
        process.send_signal(number)
    assert process.wait(timeout=20) == exit_status
    started, ended = [json.loads(line) for line in (sweep.folder / f"{CELL.id}.jsonl").read_text().splitlines()]
    assert started["event"] == "started"
    assert (ended["exit"], ended["stopped_by"], ended["why"]) == (child, stopped_by, why)


def test_a_killed_cell_process_takes_its_child_with_it(sweep, tmp_path):
    process = cell_process(sweep, tmp_path, "wait")
    log = sweep.folder / f"{CELL.id}.log"
    wait_for(lambda: log.is_file() and "begun" in log.read_text(), 20)
    process.kill()
    process.wait()
    wait_for(lambda: "stopping" in log.read_text(), 20)
    assert state_of(sweep, sweep.cells[0], {}).state == "died"
