"""hydra/launcher=local: cells on this machine, a few at a time, each in a process of its own.

A runner in the background (`python -m harness.launch.local`) starts the cells, so that the window in front can be
closed. Its standard input is the lifeline: when that ends without the word to go on, the window was killed and the
runner stops its cells.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from harness.launch.cell import environment
from harness.launch.sweep import Cell, Sweep, this_process

GO_ON = b"go on\n"


@dataclass
class LocalLauncher:
    jobs: Annotated[int, Ge(1)] = 1

    poll_s = 0.5  # no field, so no key: reading files costs nothing worth setting

    def submit(self, sweep: Sweep, cells: list[Cell], *, detach: bool) -> None:
        sweep.folder.mkdir(parents=True, exist_ok=True)
        words = [str(self.jobs), str(sweep.path), *(cell.id for cell in cells)]
        with (sweep.folder / "runner.log").open("ab") as log:
            self._runner = subprocess.Popen(
                [sys.executable, "-m", "harness.launch.local", *words],
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, env=environment(),
            )  # fmt: skip
        for cell in cells:
            sweep.note(cell, "submitted", launcher="local", **this_process(self._runner.pid))
        assert self._runner.stdin is not None
        self._runner.stdin.write(b"submitted\n")  # only now: no cell starts before its submission is written down
        self._runner.stdin.flush()
        if detach:
            self.let_go()

    def let_go(self) -> None:
        """The cells go on when this process ends."""
        assert self._runner.stdin is not None
        self._runner.stdin.write(GO_ON)
        self._runner.stdin.flush()


class Runner:
    def __init__(self, sweep: Sweep, cells: list[Cell], jobs: int):
        self.sweep, self.waiting, self.jobs = sweep, cells, jobs
        self.running: list[tuple[Cell, subprocess.Popen]] = []
        self.stop = threading.Event()

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self.stop.set())
        sys.stdin.buffer.readline()
        threading.Thread(target=self._lifeline, daemon=True).start()
        while (self.waiting and not self.stop.is_set()) or self.running:
            while self.waiting and len(self.running) < self.jobs and not self.stop.is_set():
                self._start(self.waiting.pop(0))
            time.sleep(0.1)
            if self.stop.is_set():
                self._cancel()
            self.running = [(cell, process) for cell, process in self.running if process.poll() is None]
        self._cancel_waiting()

    def _start(self, cell: Cell) -> None:
        command = [sys.executable, "-m", "harness.launch.cell", str(self.sweep.path), cell.id]
        process = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, start_new_session=True)
        self.running.append((cell, process))

    def _cancel(self) -> None:
        self._cancel_waiting()
        for cell, process in self.running:
            if not any(event["event"] == "cancelled" for event in self.sweep.events(cell)):
                self.sweep.note(cell, "cancelled", by="the sweep")
                process.terminate()

    def _cancel_waiting(self) -> None:
        while self.waiting:
            self.sweep.note(self.waiting.pop(0), "cancelled", by="the sweep")

    def _lifeline(self) -> None:
        if sys.stdin.buffer.read() != GO_ON:
            self.stop.set()


def end(pid: int) -> None:
    """Ask a runner to cancel its cells."""
    os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    the_sweep = Sweep.read(Path(sys.argv[2]))
    Runner(the_sweep, [the_sweep.cell(cell_id) for cell_id in sys.argv[3:]], int(sys.argv[1])).run()
