"""Sweeps on this machine, for real: what fails, dies or is stopped hides nothing, and a rerun finishes the rest."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.launch.sweep import pid_started
from harness.records import RunFolder
from tests.launch.conftest import Sweeper, wait_for, write_prompts

SLOW = ("run.limit=null", "sampling.max_new_tokens=150", "sampling.repeats=5", "speculative=autoregressive")


def started(sweeper: Sweeper) -> list[dict]:
    sweep = sweeper.sweep()
    return [event for cell in sweep.cells for event in sweep.events(cell) if event["event"] == "started"]


def begun(sweeper: Sweeper, count: int) -> bool:
    return bool(list(sweeper.outputs.glob("sweeps/*.json"))) and len(started(sweeper)) >= count


def runner_of(sweeper: Sweeper) -> int:
    sweep = sweeper.sweep()
    return sweep.events(sweep.cells[0])[0]["pid"]


def test_one_cell_that_fails_hides_no_other_and_a_rerun_does_what_is_missing(sweeper: Sweeper, tmp_path: Path):
    good, late = write_prompts(tmp_path / "good.jsonl", 2), tmp_path / "late.jsonl"
    sweeper.words = [word for word in sweeper.words if not word.startswith("task.path=")]
    words = (f"task.path={late},{good}", "run.limit=2", "speculative=autoregressive", "run.profile=0")
    out = sweeper.run(*words, status=1)
    assert sweeper.states() == {"late": "failed", "good": "finished"}
    assert "late.jsonl" in out
    assert "error:" in out
    write_prompts(late, 2)
    assert "2 cells, 1 to run, 1 finished before" in sweeper.run(*words)
    assert sweeper.states() == {"late": "finished", "good": "finished"}
    sweep = sweeper.sweep()
    run = RunFolder(sweep.run_folder(sweep.cells[0]))
    manifest = run.manifest()
    manifest.versions["code"] = "older"
    run.write_manifest(manifest)
    out = sweeper.run(*words)
    assert "0 to run, 2 finished before" in out
    assert "1 finished cells were made by another version of this code" in out


def test_the_same_cell_is_decoded_by_one_process_at_a_time(sweeper: Sweeper, harness):
    process = sweeper.start(*SLOW)
    [cell] = _records_of_one_cell(sweeper, process)
    refused = harness(*SLOW, check=False)
    assert refused.returncode == 2
    assert "another process is decoding this run" in refused.stderr
    again = sweeper.run(*SLOW, "--detach")  # the same sweep from another window: nothing is started twice
    assert "0 to run, 1 under way" in again
    assert len(started(sweeper)) == 1
    process.send_signal(signal.SIGINT)  # no terminal, nobody to ask: cancel
    assert process.wait(timeout=60) == 130
    assert list(sweeper.states().values()) == ["cancelled"]
    run = RunFolder(sweeper.sweep().run_folder(cell))
    assert run.manifest().status == "interrupted"
    assert len(run.records()) >= 2


def _records_of_one_cell(sweeper: Sweeper, process) -> list:
    wait_for(
        lambda: any(p.read_bytes().count(b"\n") >= 2 for p in sweeper.outputs.glob("*/records.jsonl")), process=process
    )
    return sweeper.sweep().cells


def test_a_killed_window_stops_its_cells_and_a_killed_cell_has_died(sweeper: Sweeper):
    process = sweeper.start("sampling.seed=1,2,3", *SLOW, "hydra.launcher.jobs=2")
    wait_for(lambda: begun(sweeper, 2), process=process)
    os.kill(started(sweeper)[0]["pid"], signal.SIGKILL)
    wait_for(lambda: begun(sweeper, 3), process=process)  # its place is taken
    runner = runner_of(sweeper)
    process.kill()
    process.wait()
    wait_for(lambda: pid_started(runner) is None, 60)
    sweeper.look(status=1)
    assert sorted(sweeper.states().values()) == ["cancelled", "cancelled", "died"]


@pytest.mark.parametrize("how", ["detach", "cancel"])
def test_detached_cells_go_on_until_they_are_done_or_cancelled(sweeper: Sweeper, how: str):
    words = SLOW if how == "cancel" else ("run.limit=1", "run.profile=0")
    out = sweeper.run("sampling.seed=1,2", *words, "--detach")
    assert "make sweep-status" in out
    if how == "cancel":
        wait_for(lambda: begun(sweeper, 1))
        sweeper.words = ["--outputs", str(sweeper.outputs)]
        sweeper.run(command="cancel")
        assert set(sweeper.states().values()) == {"cancelled"}
        assert len(started(sweeper)) == 1  # the one that waited never began
    else:
        runner = runner_of(sweeper)
        wait_for(lambda: pid_started(runner) is None)
        sweeper.look()
        assert set(sweeper.states().values()) == {"finished"}


@pytest.mark.parametrize("answer", ["g", "c", "w"])
def test_ctrl_c_on_a_terminal_asks(sweeper: Sweeper, answer: str):
    """Standard input is a real terminal; the answers are typed into it."""
    ours, theirs = os.openpty()
    words = [
        *sweeper.words,
        "run.limit=2",
        "run.profile=0",
        "sampling.max_new_tokens=100",
        "speculative=autoregressive",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.launch", "sweep", *words], env=sweeper.environment, stdin=theirs,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_for(lambda: begun(sweeper, 1), process=process)
        process.send_signal(signal.SIGINT)
        os.write(ours, f"huh\n{answer}\n".encode())
        out, _ = process.communicate(timeout=120)
    finally:
        os.close(ours)
        os.close(theirs)
    assert out.count("[c]ancel its cells") == 2  # "huh" is no answer
    assert process.returncode == (0 if answer == "w" else 130), out
    if answer == "g":
        runner = runner_of(sweeper)
        wait_for(lambda: pid_started(runner) is None)
    sweeper.look(status=None)
    assert list(sweeper.states().values()) == ["cancelled" if answer == "c" else "finished"]


def test_nothing_starts_when_one_cell_is_wrong(sweeper: Sweeper):
    out = sweeper.run("sampling.top_p=0.5,7", status=2)
    assert "sampling.top_p=7" in out
    assert "Traceback" not in out
    assert not sweeper.outputs.exists()
