"""`python -m harness.launch.cell SWEEP.json ID`: the process that every launcher starts for a cell.

It runs `python -m harness ...` as a child and writes down how that began and ended, so that a crash, a kill for
memory or a signal is on record even where the child could say nothing. It imports nothing heavy itself.

Signals: SIGTERM and SIGINT (cancelled, preempted) and SIGUSR1 (Slurm: the time limit is near) all make the child stop
after what it has recorded; the same command goes on from there.
"""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from harness.launch.state import TRY
from harness.launch.sweep import Sweep, this_process

STOPS = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "SIGINT", signal.SIGUSR1: "time limit"}
PR_SET_PDEATHSIG = 1


class CellProcess:
    def __init__(self, sweep: Sweep, cell_id: str):
        self.sweep, self.cell = sweep, sweep.cell(cell_id)
        self.child: subprocess.Popen | None = None
        self.stopped_by: str | None = None

    def run(self) -> int:
        """The child's exit status; 128 + N when signal N killed it."""
        for number in STOPS:
            signal.signal(number, self._stop)
        restart = os.environ.get("SLURM_RESTART_COUNT", "0")
        print(f"{TRY} {restart} of cell {self.cell.id}", flush=True)
        self.sweep.note(self.cell, "started", **this_process(), restart=int(restart))
        log = self.sweep.log(self.cell)
        with log.open("ab") as out:
            begin = out.tell()
            self.child = subprocess.Popen(
                [sys.executable, "-m", "harness", *self.cell.overrides],
                cwd=self.sweep.cwd, env=environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True, preexec_fn=end_with_parent,
            )  # fmt: skip
            if self.stopped_by:
                self.child.terminate()
            status = self.child.wait()
        why = _last_line(log, begin) if status not in (0, 130) else ""
        self.sweep.note(self.cell, "ended", exit=status, stopped_by=self.stopped_by, why=why)
        return 128 - status if status < 0 else status

    def _stop(self, number: int, _: FrameType | None) -> None:
        self.stopped_by = self.stopped_by or STOPS[signal.Signals(number)]
        if self.child is not None and self.child.poll() is None:
            self.child.terminate()


def environment() -> dict[str, str]:
    """For a process that this package starts: W&B's own service of another process is none of its business."""
    kept = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    return {**kept, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}


def end_with_parent() -> None:
    """Linux: the kernel ends this process when its parent is killed, so that no cell runs on unseen."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _last_line(log: Path, begin: int) -> str:
    """The error that the child printed, on one line, or else its last line."""
    lines = [line.strip() for line in log.read_bytes()[begin:].decode(errors="replace").splitlines() if line.strip()]
    for place, line in enumerate(lines):
        if line.startswith("error: "):
            return " ".join(lines[place:])[:400]
    return lines[-1][:400] if lines else ""


if __name__ == "__main__":
    sys.exit(CellProcess(Sweep.read(Path(sys.argv[1])), sys.argv[2]).run())
