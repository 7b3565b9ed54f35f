"""Sweeps over the tiny pair, as a person starts them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.launch.sweep import Sweep, newest
from tests.conftest import ROOT, environment
from tests.launch.loopback_slurm import LoopbackSlurm, require_programs


class Sweeper:
    """The command line of sweeps with words for the tiny pair, each call in a process of its own."""

    def __init__(self, words: list[str], outputs: Path, environment: dict[str, str]):
        self.words, self.outputs, self.environment = words, outputs, environment

    def start(self, *words: str, command: str = "sweep") -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "harness.launch", command, *self.words, *words],
            env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, *words: str, command: str = "sweep", status: int | None = 0) -> str:
        process = self.start(*words, command=command)
        out, _ = process.communicate(timeout=240)
        assert status is None or process.returncode == status, out
        return out

    def look(self, *words: str, status: int | None = 0) -> str:
        """`make sweep-status ARGS=--once`."""
        command = [sys.executable, "-m", "harness.launch", "status", "--once", "--outputs", str(self.outputs), *words]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert status is None or done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def sweep(self) -> Sweep:
        return Sweep.read(newest(self.outputs))

    def states(self) -> dict[str, str]:
        """The last known state, by the last value in the cell's label (of a path its stem)."""
        sweep = self.sweep()
        return {Path(cell.label.rpartition("=")[2]).stem: sweep.states[cell.id]["state"] for cell in sweep.cells}


@pytest.fixture
def sweeper(harness, prompts) -> Sweeper:
    words = harness.command()[3:]
    return Sweeper(words, harness.outputs, {**environment(), "COLUMNS": "400"})


@pytest.fixture(scope="session")
def slurm(tmp_path_factory) -> Iterator[LoopbackSlurm]:
    """A real Slurm on loopback. $DDTREE_SLURM_DIR lets a script stop it also when pytest itself is killed."""
    require_programs()
    folder = Path(os.environ.get("DDTREE_SLURM_DIR") or tmp_path_factory.mktemp("slurm"))
    cluster = LoopbackSlurm(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def write_prompts(path: Path, count: int) -> Path:
    lines = [
        json.dumps({"id": f"{path.stem}-{i}", "prompt": f"{path.stem} prompt {i}: say something"}) for i in range(count)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def wait_for(what: Callable[[], bool], seconds: float = 120, process: subprocess.Popen | None = None) -> None:
    """Until `what` is true; fails when that takes too long, or when the process that it waits on ends first."""
    deadline = time.monotonic() + seconds
    while not what():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"the sweep ended early: {process.stdout.read() if process.stdout else ''}")
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


__all__ = ["ROOT", "Sweeper", "wait_for", "write_prompts"]
