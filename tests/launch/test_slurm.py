"""A sweep on a real Slurm: six cells of which one raises, one is cancelled, one is preempted and requeued."""

import subprocess
from pathlib import Path

import pytest

from harness.launch.slurm import SlurmLauncher
from harness.launch.sweep import Cell, Sweep
from harness.records import RunFolder
from tests.launch.conftest import Sweeper, wait_for, write_prompts

SLURM = (
    "hydra/launcher=slurm",
    "hydra.launcher.cpus_per_task=1",
    "hydra.launcher.time_min=20",
    "hydra.launcher.poll_s=0.5",
)
SLOW = {"cancelled": 20, "preempted": 40}  # samples of 100 rounds: long enough to be stopped in the middle


@pytest.fixture
def on_slurm(sweeper: Sweeper, slurm) -> Sweeper:
    path = f"{slurm.environment['PATH']}"
    sweeper.environment |= {"SLURM_CONF": str(slurm.conf), "PATH": path}
    return sweeper


def cell_of(sweep: Sweep, stem: str) -> Cell:
    return next(cell for cell in sweep.cells if Path(cell.label).stem == stem)


def row(table: str, name: str) -> list[str]:
    """id, cell, state, samples, tries, why."""
    line = next(line for line in table.splitlines() if f"{name}.jsonl" in line)
    return [column.strip() for column in line.split("│")[1:-1]]


def records(sweeper: Sweeper, stem: str) -> int:
    sweep = sweeper.sweep()
    return len(RunFolder(sweep.run_folder(cell_of(sweep, stem))).records())


def job_of(sweeper: Sweeper, stem: str) -> str:
    sweep = sweeper.sweep()
    return sweep.events(cell_of(sweep, stem))[0]["job"]


def ended(sweeper: Sweeper, stem: str) -> bool:
    sweep = sweeper.sweep()
    return sweep.events(cell_of(sweep, stem))[-1]["event"] == "ended"


@pytest.mark.timeout(900)  # a machine that is busy with other work
def test_six_cells_are_shown_as_they_ended_and_a_rerun_finishes_the_rest(on_slurm: Sweeper, slurm, tmp_path: Path):
    slow = [write_prompts(tmp_path / f"{name}.jsonl", count) for name, count in SLOW.items()]
    broken = tmp_path / "raises.jsonl"
    broken.write_text("this is no JSON\n")
    quick = [write_prompts(tmp_path / f"quick{i}.jsonl", 2) for i in range(3)]
    # Two at a time and the one to be preempted last: the others, which began before it and have less to do, end before.
    files = ",".join(map(str, [slow[0], broken, *quick, slow[1]]))
    words = [
        "-m",
        "hydra.launcher.parallel=2",
        f"task.path={files}",
        "run.limit=null",
        "speculative=autoregressive",
        "sampling.max_new_tokens=100",
        *SLURM,
    ]
    on_slurm.words = [word for word in on_slurm.words if not word.startswith(("task.path=", "sampling.max_new_tokens"))]

    process = on_slurm.start(*words)
    wait_for(lambda: bool(list(on_slurm.outputs.glob("sweeps/*/*.jsonl"))), process=process)
    wait_for(lambda: records(on_slurm, "cancelled") >= 2, process=process)
    slurm.command("scancel", job_of(on_slurm, "cancelled"))
    wait_for(lambda: all(ended(on_slurm, name) for name in ("cancelled", "raises", "quick0", "quick1", "quick2")), 180)
    wait_for(lambda: records(on_slurm, "preempted") >= 2, process=process)
    # The higher partition wants the whole node for a moment.
    slurm.command("sbatch", "--partition=urgent", "--cpus-per-task=4", "--output=/dev/null", "--wrap=sleep 1")
    wait_for(lambda: ended(on_slurm, "preempted"), process=process)
    before = records(on_slurm, "preempted")
    assert 2 <= before < SLOW["preempted"]
    live = on_slurm.look(status=1)  # 1: some cells ended otherwise than finished
    assert row(live, "preempted")[2] in ("preempted, waiting", "running"), live

    out, _ = process.communicate(timeout=240)
    assert process.returncode == 1, out
    expected = {"cancelled": "cancelled", "raises": "failed", "preempted": "finished"}
    expected |= {f"quick{i}": "finished" for i in range(3)}
    assert on_slurm.states() == expected, out
    table = on_slurm.look(status=1)
    assert {name: row(table, name)[2] for name in expected} == expected
    assert "not valid JSON" in row(table, "raises")[-1]
    assert row(table, "preempted")[3:] == ["40/40", "2", "preempted once"]

    # The certain facts, apart from our own table: the run folders, and what Slurm itself says.
    sweep = on_slurm.sweep()
    folders = {Path(cell.label).stem: RunFolder(sweep.run_folder(cell)) for cell in sweep.cells}
    assert {name for name, run in folders.items() if run.manifest_path.exists()} == set(expected) - {"raises"}
    assert folders["cancelled"].manifest().status == "interrupted"
    assert len(folders["preempted"].finished()) == SLOW["preempted"]
    lines = (folders["preempted"].path / "records.jsonl").read_text().splitlines()
    assert len(lines) == SLOW["preempted"]  # the second try decoded nothing again
    cancelled_job = job_of(on_slurm, "cancelled")
    assert "CANCELLED" in slurm.command("squeue", "-h", "-r", "--states=all", "-o", "%i %T", "-j", cancelled_job)

    write_prompts(broken, 2)
    kept = {name: (run.path / "records.jsonl").read_bytes() for name, run in folders.items() if name != "raises"}
    again = on_slurm.run(*words)
    assert "6 cells, 2 to run, 4 finished before" in again
    assert set(on_slurm.states().values()) == {"finished"}
    assert len(folders["raises"].finished()) == 2
    assert len(folders["cancelled"].finished()) == SLOW["cancelled"]
    for name, content in kept.items():
        now = (folders[name].path / "records.jsonl").read_bytes()
        assert now == content if name != "cancelled" else now.startswith(content)


@pytest.mark.timeout(900)
def test_a_preset_runs_on_slurm_and_each_cell_is_a_run_of_one_wandb_group(on_slurm: Sweeper, slurm):
    on_slurm.words = ["tracking=offline" if word == "tracking=none" else word for word in on_slurm.words]
    # As a launching process inside a W&B run would leave it: the cells must not talk to that service.
    on_slurm.environment["WANDB_SERVICE"] = "3-1-tcp-localhost-1"
    on_slurm.run("experiment=budget_sweep", "run.limit=2", "run.profile=0", *SLURM)
    sweep = on_slurm.sweep()
    assert len(sweep.cells) == 7
    assert sweep.name.startswith("budget_sweep-")
    for cell in sweep.cells:
        run = RunFolder(sweep.run_folder(cell))
        assert run.manifest().status == "finished"
        assert run.manifest().asked["tracking"]["group"] == sweep.name
        [log] = run.path.glob(f"wandb/offline-run-*-{cell.id}/run-{cell.id}.wandb")
        assert sweep.name.encode() in log.read_bytes()


def test_detached_jobs_are_an_array_a_profile_with_its_gpus_and_can_be_cancelled(on_slurm: Sweeper, slurm):
    out = on_slurm.run("hardware=cpu,h100", "sampling.seed=1,2", "run.limit=1", "--detach", *SLURM)
    assert "4 to run" in out
    sweep = on_slurm.sweep()
    jobs = {cell.id: sweep.events(cell)[0]["job"].split("_")[0] for cell in sweep.cells}
    by_hardware = {
        cell.hardware: {jobs[c.id] for c in sweep.cells if c.hardware == cell.hardware} for cell in sweep.cells
    }
    assert [len(found) for found in by_hardware.values()] == [1, 1]
    for hardware, [job] in by_hardware.items():
        shown = slurm.command("scontrol", "show", "job", job)
        assert ("gpu:1" in shown) == (hardware == "h100"), shown
        assert "Requeue=1" in shown
    command = ["cancel", "--outputs", str(on_slurm.outputs)]
    on_slurm.words = command[1:]
    out = on_slurm.run(command="cancel")
    states = [state["state"] for state in on_slurm.sweep().states.values()]
    assert set(states) <= {"cancelled", "failed", "finished"}, out  # a cell may have ended before the word came
    assert "cancelled" in states
    queued = slurm.command("squeue", "-h", "-r", "-o", "%i")
    assert not queued.strip()


def test_a_refused_array_is_an_error_with_slurms_own_words(on_slurm: Sweeper, slurm):
    out = on_slurm.run("sampling.seed=1,2", "hydra.launcher.partition=nowhere", *SLURM, status=2)
    assert "error: sbatch" in out
    assert "partition" in out.lower()
    assert "Traceback" not in out


def test_without_slurm_the_other_launcher_is_named(sweeper: Sweeper, tmp_path: Path):
    sweeper.environment["PATH"] = str(tmp_path)
    out = sweeper.run("sampling.seed=1,2", *SLURM, status=2)
    assert "sbatch is not on this machine; use hydra/launcher=local" in out


def test_words_for_sbatch(tmp_path: Path):
    sweep = Sweep(outputs=tmp_path, name="s", command=[], cwd="/here", created_at="", cells=[])
    cells = [Cell(id=f"c{i}", name=f"n{i}", label="", overrides=[], hardware="h200", gpus=2) for i in range(3)]
    launcher = SlurmLauncher(
        parallel=2, mem_gb=1.5, account="a", requeue=False, options=["--exclude=n1"], setup=["module load x"]
    )
    words = launcher.words(sweep, cells)
    for wanted in ("--array=0-2%2", "--mem=1536M", "--account=a", "--gpus-per-node=2", "--no-requeue", "--exclude=n1"):
        assert wanted in words
    assert not [word for word in words if "None" in word or word.startswith("--partition")]
    script = launcher.script(sweep, cells)
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert script.splitlines()[1:4] == ["module load x", "cells=(c0 c1 c2)", "cd /here"]
    with pytest.raises(ValueError, match=r"hydra.launcher.grace_s=60"):
        SlurmLauncher(time_min=1)
