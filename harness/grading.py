"""Grades answers in other processes, so that grading never slows the timed loop.

Where the host has cores that the loop does not use, low-priority workers grade while decoding goes on, at most one a spare
core. Where it has none (a model on the CPU takes them all) the loop pauses after each batch until that batch is graded:
a pause between batches is in no figure, while a grader beside the loop would slow it, and a program that gets no core
would miss its time limit and be scored wrong.
"""

import base64
import json
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.records import RunFolder, SampleRecord
from harness.runs import now
from tasks.base import Sample, Score, Task

ROOT = Path(__file__).resolve().parent.parent
MAX_WORKERS = 4
CORES_OF_A_DEVICE_LOOP = 2  # it launches kernels from one thread, and the driver has some of its own
WAITING = 4  # ungraded answers a worker before the loop waits for grades
START_LIMIT_S = 120.0
END_LIMIT_S = 20.0  # an interrupted run waits so long for grades; what is left is graded by the next try


@dataclass(frozen=True, kw_only=True)
class GradingPlan:
    """`workers` processes, `beside` the decoding or in pauses between its batches."""

    workers: int
    beside: bool


def grading_plan(device: str, loop_threads: int) -> GradingPlan:
    """Who grades when. `loop_threads` are those of a loop that computes on the CPU."""
    cores = usable_cores()
    spare = cores - (loop_threads if device == "cpu" else CORES_OF_A_DEVICE_LOOP)
    if spare >= 1:
        return GradingPlan(workers=min(spare, MAX_WORKERS), beside=True)
    return GradingPlan(workers=min(cores, MAX_WORKERS), beside=False)


def usable_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this process may use: its affinity, cut by a container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        limit, period = quota.read_text().split()
        return max(1, min(cores, int(limit) // int(period)))
    except (OSError, ValueError):  # no cgroup, or "max"
        return cores


class Grading:
    """Takes decoded records and hands them to `keep`, graded, in this thread. Use it as a context manager.

    With a `journal` a record is on disk in its `ungraded.jsonl` before it is graded, so that a kill loses no decoded sample.
    """

    def __init__(
        self, task: Task, plan: GradingPlan, keep: Callable[[SampleRecord], None], journal: RunFolder | None = None
    ):
        self.task, self.plan, self.keep, self.journal = task, plan, keep, journal
        self.is_scored = task.metric is not None
        self._open: dict[Future[Score], SampleRecord] = {}
        self._pool = ThreadPoolExecutor(plan.workers, thread_name_prefix="grading")
        self._mine = threading.local()
        self._workers: list[Worker] = []
        self._since_pause = 0

    def add(self, record: SampleRecord, sample: Sample, text: str) -> None:
        """Have `text` graded as the answer to `sample`, then keep the record. May wait, see the top of this file."""
        if record.status == "error" or not self.is_scored:
            self.keep(record)
            return
        if self.journal is not None:
            self.journal.append_ungraded(record)
        self._open[self._pool.submit(self._grade, sample, text)] = record
        self._since_pause += 1
        if self.plan.beside:
            self.collect(WAITING * self.plan.workers)
        elif self._since_pause >= record.batch_size:  # the loop decodes the next batch when we return
            self.collect()
            self._since_pause = 0

    def collect(self, at_most: int = 0, limit_s: float | None = None) -> None:
        """Keep what is graded; wait until no more than `at_most` are open, or until `limit_s` is over."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while True:
            for future in [future for future in self._open if future.done()]:
                record = self._open.pop(future)
                self.keep(with_score(record, future.result(), self.task))
            left = None if deadline is None else deadline - time.monotonic()
            if len(self._open) <= at_most or (left is not None and left <= 0):
                return
            wait(self._open, timeout=left, return_when=FIRST_COMPLETED)

    def __enter__(self) -> "Grading":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.collect(limit_s=None if kind is None else END_LIMIT_S)
        finally:
            for worker in self._workers:
                worker.stop()
            self._pool.shutdown(wait=True, cancel_futures=True)
        if self.journal is not None and not self._open:
            self.journal.drop_ungraded()

    def _grade(self, sample: Sample, text: str) -> Score:
        worker = getattr(self._mine, "worker", None)
        if worker is None:
            worker = self._mine.worker = Worker(self.task)
            self._workers.append(worker)
        return worker.grade(sample, text)


class Worker:
    """One grading process, started at the first need and replaced when it dies. For one thread, but for `stop`."""

    def __init__(self, task: Task):
        self.task, self.limit_s = task, 60.0 + 4 * own_limits(task)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def grade(self, sample: Sample, text: str) -> Score:
        """Never raises. An answer that ends a fresh grader twice scores 0; a grader that cannot work gives no score."""
        request = base64.b64encode(pickle.dumps((sample, text)))
        for _ in range(2):
            try:
                self._start()
            except RuntimeError as error:
                return Score(value=None, detail={"grader_error": str(error)})
            reply = self._ask(request, self.limit_s)
            if reply is not None:
                return Score(**reply)
            self._end()
            if self._stopped:
                return Score(value=None, detail={"grader_error": "the run ended before the answer was graded"})
        return Score(value=0.0, detail={"reason": f"the answer ends its grader, or keeps it for {self.limit_s:.0f} s"})

    def stop(self) -> None:
        self._stopped = True
        self._end()

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            # -P: the folder of the script must not come before the libraries on the path.
            [sys.executable, "-P", str(Path(__file__).with_name("grading_worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the run
        )
        reply = self._ask(base64.b64encode(pickle.dumps(self.task)), START_LIMIT_S)
        if not reply or not reply["ready"]:
            self._end()
            raise RuntimeError(f"the grading process did not start: {reply['error'] if reply else 'it died at once'}")

    def _ask(self, request: bytes, limit_s: float) -> dict[str, Any] | None:
        """The next reply, None when the process dies or takes longer than `limit_s`."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        reply, deadline = b"", time.monotonic() + limit_s
        try:
            process.stdin.write(request + b"\n")
            process.stdin.flush()
            while not reply.endswith(b"\n"):
                if not select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    return None
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    return None
                reply += chunk
        except (OSError, ValueError):  # ended, or `stop` closed its pipes
            return None
        return json.loads(reply)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with process:
                pass


def own_limits(value: Any) -> float:
    """The sum of all fields of a task, nested ones too, that are seconds: a healthy grader takes a few times that."""
    seconds = 0.0
    for f in fields(value) if is_dataclass(value) else ():
        inner = getattr(value, f.name)
        seconds += own_limits(inner) if is_dataclass(inner) else 0.0
        if f.name.endswith("_s") and isinstance(inner, int | float):
            seconds += inner
    return seconds


def with_score(record: SampleRecord, score: Score, task: Task) -> SampleRecord:
    """The record with this score. An earlier score that says otherwise goes to `earlier_scores`."""
    earlier = list(record.earlier_scores)
    if record.grader is not None or record.score is not None:
        earlier.append(
            {
                "score": record.score,
                "score_detail": record.score_detail,
                "grader": record.grader,
                "graded_at": record.graded_at,
            }
        )
    return replace(
        record,
        score=score.value,
        score_detail=score.detail,
        grader=task.version,
        graded_at=now(),
        flags={**record.flags, "grader_error": "grader_error" in score.detail},
        earlier_scores=earlier,
    )
