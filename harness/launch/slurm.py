"""hydra/launcher=slurm: one job array per hardware profile, through sbatch, squeue and scancel alone.

A task of an array is one cell, run by `harness.launch.cell`. Nothing is pickled: the script names the sweep's manifest
and the cell's id, so a requeued task is the same command again and goes on where the records end.
"""

import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge

from harness.config import NO_EXTRA
from harness.launch.sweep import Cell, Sweep

ARRAY_SIZE = 1000  # Slurm's default MaxArraySize is 1001


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What cells of one hardware profile ask for beside the rest. `gpus`: sbatch's --gpus-per-node, e.g. "h200:1"."""

    __pydantic_config__ = NO_EXTRA
    partition: str | None = None
    gpus: str | None = None
    options: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SlurmLauncher:
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time_min: Annotated[int, Ge(1)] = 240
    grace_s: Annotated[int, Ge(0)] = 60
    cpus_per_task: Annotated[int, Ge(1)] = 4
    mem_gb: Annotated[float, Ge(0)] | None = None
    parallel: Annotated[int, Ge(1)] | None = None
    requeue: bool = True
    profiles: dict[str, Profile] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    poll_s: Annotated[float, Ge(0.1)] = 10

    def __post_init__(self) -> None:
        if self.grace_s >= 60 * self.time_min:
            raise ValueError(
                f"hydra.launcher.grace_s={self.grace_s}: must be less than the {self.time_min} minutes of "
                "hydra.launcher.time_min, as a cell is asked to stop that long before the end"
            )

    def submit(self, sweep: Sweep, cells: list[Cell], *, detach: bool) -> None:
        """Raises ValueError with sbatch's own message when it refuses an array; arrays before that one are queued."""
        sweep.folder.mkdir(parents=True, exist_ok=True)
        for hardware in dict.fromkeys(cell.hardware for cell in cells):
            same = [cell for cell in cells if cell.hardware == hardware]
            for start in range(0, len(same), ARRAY_SIZE):
                some = same[start : start + ARRAY_SIZE]
                # Held until their submission is written down: no task starts before that.
                job = self._sbatch([*self.words(sweep, some), "--hold"], self.script(sweep, some))
                for index, cell in enumerate(some):
                    sweep.note(cell, "submitted", launcher="slurm", job=f"{job}_{index}")
                _call(["scontrol", "release", job])

    def let_go(self) -> None:
        """Jobs need nobody."""

    def words(self, sweep: Sweep, cells: list[Cell]) -> list[str]:
        """sbatch's options for one array."""
        profile = self.profiles.get(cells[0].hardware, Profile())
        gpus = profile.gpus or (str(cells[0].gpus) if cells[0].gpus else None)
        values = {
            "partition": profile.partition or self.partition,
            "account": self.account,
            "qos": self.qos,
            "gpus-per-node": gpus,
            "mem": None if self.mem_gb is None else f"{round(1024 * self.mem_gb)}M",
        }
        limit = f"%{self.parallel}" if self.parallel else ""
        return [
            "--parsable",
            f"--job-name={sweep.name}",
            f"--array=0-{len(cells) - 1}{limit}",
            f"--time={self.time_min}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={self.cpus_per_task}",
            # B: to the cell's process alone, which stops its child in order.
            f"--signal=B:USR1@{self.grace_s}",
            f"--output={sweep.folder}/slurm-%A_%a.log",
            "--open-mode=append",
            "--requeue" if self.requeue else "--no-requeue",
            *(f"--{name}={value}" for name, value in values.items() if value is not None),
            *self.options,
            *profile.options,
        ]

    def script(self, sweep: Sweep, cells: Iterable[Cell]) -> str:
        ids = " ".join(cell.id for cell in cells)
        command = shlex.join([sys.executable, "-m", "harness.launch.cell", str(sweep.path)])
        lines = ["#!/bin/bash", *self.setup, f"cells=({ids})", f"cd {shlex.quote(sweep.cwd)}"]
        return "\n".join([*lines, f'exec {command} "${{cells[$SLURM_ARRAY_TASK_ID]}}"', ""])

    def _sbatch(self, words: list[str], script: str) -> str:
        return _call(["sbatch", *words], script).strip().partition(";")[0]  # with a federation: ID;CLUSTER


def queue(jobs: Iterable[str]) -> dict[str, str]:
    """State by ARRAY_TASK id for as long as Slurm remembers a job; raises ValueError when it does not answer.

    The user's whole queue is asked for, since squeue refuses a list in which one job is forgotten.
    """
    wanted = set(jobs)
    if not wanted:
        return {}
    lines = _call(["squeue", "--noheader", "--array", "--states=all", "--me", "--format=%i|%T"]).splitlines()
    states = dict(line.strip().split("|", 1) for line in lines if "|" in line)
    return {job: state for job, state in states.items() if job in wanted}


def cancel(jobs: list[str]) -> None:
    if jobs:
        _call(["scancel", *jobs])


def _call(command: list[str], text: str | None = None) -> str:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    except FileNotFoundError as error:
        raise ValueError(
            f"hydra/launcher=slurm: {command[0]} is not on this machine; use hydra/launcher=local"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{command[0]} did not answer within two minutes") from error
    if done.returncode:
        raise ValueError(f"{shlex.join(command[:2])} ...: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
