"""How a cell stands, from what it left on disk; the scheduler is asked only about what has not begun or still runs.

Why a job was stopped is read from Slurm's own line in the job's output ("CANCELLED AT ... DUE TO PREEMPTION"), which
outlives every queue and needs no accounting database.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.launch.sweep import Cell, Sweep, lives
from harness.records import RunFolder, RunManifest

ACTIVE = ("waiting", "running", "preempted, waiting")
TRY = "-- try"  # the cell writes it into Slurm's file, so that what stands behind it is about that try
WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "CONFIGURING"}
RUNNING = {"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING"}
ENDS = {"CANCELLED": "cancelled", "TIMEOUT": "timed out", "DEADLINE": "timed out", "PREEMPTED": "preempted"}
MARKS = (("DUE TO PREEMPTION", "preempted"), ("DUE TO TIME LIMIT", "timed out"), ("CANCELLED AT", "cancelled"))


@dataclass(frozen=True, kw_only=True)
class CellState:
    state: str  # finished failed cancelled preempted interrupted died running waiting, "timed out", "not started"
    done: int = 0  # samples decoded without an error
    planned: int | None = None
    tries: int = 0
    why: str = ""

    @property
    def active(self) -> bool:
        return self.state in ACTIVE


def state_of(sweep: Sweep, cell: Cell, queue: Mapping[str, str]) -> CellState:
    """`queue`: Slurm's state by job id, as far as it still knows them."""
    run = RunFolder(sweep.run_folder(cell))
    manifest = run.manifest() if run.manifest_path.is_file() else None
    done = len(run.finished())
    events = sweep.events(cell)
    tries = sum(event["event"] == "started" for event in events)
    state, why = _verdict(sweep, cell, events, queue)
    if state not in ACTIVE and manifest is not None:
        if missing := unfinished(cell, run, manifest):
            if state == "ended" and manifest.status == "finished":  # when less was asked for
                state, why = "not started", missing
            elif state == "ended":
                state, why = "failed", _errors(run) or why or missing
            elif state == "not started" and done:
                why = missing
        else:
            state, why = "finished", _before(sweep, events)
    elif state == "ended":
        state, why = (
            "failed",
            why if manifest or "(exit status 0)" not in why else "it left no run.json (exit status 0)",
        )
    return CellState(
        state=state, done=done, planned=manifest.samples_planned if manifest else None, tries=tries, why=why
    )


def unfinished(cell: Cell, run: RunFolder, manifest: RunManifest) -> str:
    """Why the run is not all that the cell asks for; empty when it is."""
    if manifest.status != "finished":
        return f"run.json says {manifest.status}"
    before, repeats = manifest.asked["run"]["limit"], manifest.asked["sampling"]["repeats"]
    whole_set = before is None or manifest.samples_planned < before * repeats  # the data had no more samples
    if not whole_set and (cell.limit is None or cell.limit > before):
        return f"run.limit was {before}"
    if len(run.finished()) < manifest.samples_planned:
        return f"{len(run.finished())} of {manifest.samples_planned} samples are there"
    return ""


def _verdict(sweep: Sweep, cell: Cell, events: list[dict[str, Any]], queue: Mapping[str, str]) -> tuple[str, str]:
    """State and reason by events, scheduler and processes alone; "ended" where the records have the last word."""
    if not events:
        return "not started", ""
    submitted, last = events[0], events[-1]
    job = submitted.get("job")
    queued = queue.get(job, "") if job else ""
    kinds = [event["event"] for event in events]
    mark = slurm_mark(sweep, job)
    begun = "started" in kinds
    if queued in WAITING:
        return ("preempted, waiting", f"{tries_before(sweep, job)} before") if begun else ("waiting", "")
    if not begun:
        return _never_began(submitted, kinds, queued)
    started = max(i for i, kind in enumerate(kinds) if kind == "started")
    ended = next((event for event in events[started:] if event["event"] == "ended"), None)
    if ended is None:
        alive = lives(events[started])
        if queued in RUNNING or alive:
            return "running", ""
        if "cancelled" in kinds[started:]:
            return "cancelled", "by the sweep"
        if mark or queued in ENDS:
            return mark or ENDS[queued], f"job {job}"
        if alive is None and not job:
            return "running", f"on {events[started]['host']}, as far as can be seen from here"
        return "died", f"its process ended without a word{f' (Slurm: {queued})' if queued else ''}"
    if queued in RUNNING and mark == "preempted":
        return "preempted, waiting", ""
    if ended["stopped_by"]:
        if "cancelled" in kinds[started:]:
            return "cancelled", "by the sweep"
        by = "timed out" if ended["stopped_by"] == "time limit" else mark or ENDS.get(queued, "interrupted")
        return by, f"job {job}" if job else f"by {ended['stopped_by']}"
    if ended["exit"] < 0:
        return (
            "died",
            f"killed by signal {-ended['exit']}{' (out of memory, or by hand)' if ended['exit'] == -9 else ''}",
        )
    if ended["exit"] == 130:
        return "interrupted", ""
    return "ended", f"{ended.get('why') or ''} (exit status {ended['exit']})".strip() if last else ""


def _never_began(submitted: dict[str, Any], kinds: list[str], queued: str) -> tuple[str, str]:
    if "cancelled" in kinds:
        return "cancelled", "by the sweep, before it began"
    if queued in RUNNING:
        return "waiting", "its job is starting"
    if queued in ENDS:
        return ENDS[queued], "before it began"
    if submitted["launcher"] == "slurm":
        return "died", f"job {submitted['job']} never began (Slurm: {queued or 'no longer known'})"
    return ("waiting", "") if lives(submitted) is not False else ("died", "the process that runs the cells ended first")


def slurm_mark(sweep: Sweep, job: str | None) -> str:
    """How Slurm stopped the job's last try: preempted, timed out, cancelled; empty when it did not."""
    text = _slurm_text(sweep, job).rpartition(TRY)[2]
    return next((state for mark, state in MARKS if mark in text), "")


def tries_before(sweep: Sweep, job: str | None) -> str:
    """For example "preempted once"; empty when no try of the job was preempted."""
    count = len(re.findall("DUE TO PREEMPTION", _slurm_text(sweep, job)))
    return f"preempted {'once' if count == 1 else f'{count} times'}" if count else ""


def _slurm_text(sweep: Sweep, job: str | None) -> str:
    path = Path(sweep.folder / f"slurm-{job}.log")
    return path.read_text(errors="replace") if job and path.is_file() else ""


def _before(sweep: Sweep, events: list[dict[str, Any]]) -> str:
    return tries_before(sweep, events[0].get("job")) if events else ""


def _errors(run: RunFolder) -> str:
    failed = [record for record in run.records() if record.status == "error"]
    return f"{len(failed)} of its samples failed; {failed[0].sample_id}: {failed[0].error}" if failed else ""
