"""The table of a sweep, live or once, and what Ctrl-C means while it is shown."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from harness.launch import local, slurm
from harness.launch.state import CellState, state_of
from harness.launch.sweep import Cell, Sweep, lives, pid_started

STYLES = {
    "finished": "green",
    "running": "cyan",
    "waiting": "dim",
    "not started": "dim",
    "preempted, waiting": "yellow",
}
QUESTION = "\nThe sweep still runs. [c]ancel its cells, let them [g]o on without this window, or keep [w]atching? "


def states(sweep: Sweep) -> dict[str, CellState]:
    """How every cell stands now, by id. Raises ValueError when a scheduler that is needed does not answer."""
    jobs = [job for cell in sweep.cells if (job := _open_job(sweep.events(cell)))]
    queue = slurm.queue(jobs)
    return {cell.id: state_of(sweep, cell, queue) for cell in sweep.cells}


def _open_job(events: list[dict[str, Any]]) -> str | None:
    """The Slurm job to ask about: none once the cell wrote how it ended by itself."""
    if not events or not events[0].get("job"):
        return None
    by_itself = events[-1]["event"] == "ended" and not events[-1]["stopped_by"]
    return None if by_itself else events[0]["job"]


def remember(sweep: Sweep, found: dict[str, CellState]) -> None:
    """Into the manifest: the last known state, for readers that ask no scheduler."""
    sweep.states = {cell_id: {**vars(state)} for cell_id, state in found.items()}
    sweep.write()


def table(sweep: Sweep, found: dict[str, CellState]) -> Table:
    counts: dict[str, int] = {}
    for state in found.values():
        counts[state.state] = counts.get(state.state, 0) + 1
    summary = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    shown = Table(title=f"{sweep.name}: {summary}", title_justify="left")
    shown.add_column("id", no_wrap=True)
    shown.add_column("cell", overflow="fold")
    shown.add_column("state", no_wrap=True)
    shown.add_column("samples", justify="right", no_wrap=True)
    shown.add_column("tries", justify="right", no_wrap=True)
    shown.add_column("why", overflow="fold")
    for cell in sweep.cells:
        state = found[cell.id]
        style = STYLES.get(state.state, "red")
        samples = f"{state.done}/{state.planned}" if state.planned is not None else ""
        shown.add_row(
            cell.id, cell.label, f"[{style}]{state.state}[/]", samples, str(state.tries or ""), _plain(state.why)
        )
    return shown


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


def watch(sweep: Sweep, console: Console, poll_s: float) -> dict[str, CellState]:
    """Show the table until no cell is active. On a terminal it is live; elsewhere each change is a line."""
    found = states(sweep)
    quiet_polls = 0
    with Live(table(sweep, found), console=console, auto_refresh=False, transient=True) as live:
        while True:
            # A shared file system may show the last event a little after the scheduler forgets the job.
            quiet_polls = 0 if any(state.active for state in found.values()) else quiet_polls + 1
            if quiet_polls > 1:
                return found
            time.sleep(poll_s)
            before, found = found, _states_or(found, sweep, console)
            if console.is_terminal:
                live.update(table(sweep, found), refresh=True)
            else:
                _print_changes(sweep, before, found, console)


def _states_or(before: dict[str, CellState], sweep: Sweep, console: Console) -> dict[str, CellState]:
    try:
        return states(sweep)
    except ValueError as error:  # a busy controller: the cells are none the worse for it
        console.print(f"warning: {error}", style="yellow", markup=False)
        return before


def _print_changes(sweep: Sweep, before: dict[str, CellState], found: dict[str, CellState], console: Console) -> None:
    for cell in sweep.cells:
        state = found[cell.id]
        if state.state != before[cell.id].state:
            console.print(f"{cell.id} {state.state}: {cell.label} {state.why}".rstrip(), markup=False, highlight=False)


def run(sweep: Sweep, launcher: Any, todo: list[Cell], console: Console) -> int:
    """Submit cells and watch the sweep to its end. 0: all finished, 1: some did not, 130: interrupted."""
    interrupted = False
    handler = signal.signal(signal.SIGTERM, _terminate)
    try:
        while True:
            try:
                if todo:
                    with undisturbed():
                        waiting, todo = todo, []
                        launcher.submit(sweep, waiting, detach=False)
                found = watch(sweep, console, launcher.poll_s)
                break
            except KeyboardInterrupt as how:
                answer = "c" if interrupted else _ask(console, ask=not how.args)
                if answer == "w":
                    continue
                if answer == "g":
                    launcher.let_go()
                    console.print(f"The cells go on; `make sweep-status SWEEP={sweep.name}` shows them.")
                    return 130
                interrupted = True
                console.print("Cancelling the cells; what they have recorded stays.")
                cancel(sweep)
    finally:
        signal.signal(signal.SIGTERM, handler)
    remember(sweep, found)
    console.print(table(sweep, found))
    if interrupted:
        return 130
    return exit_status(found)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the end of the block, so that no job is left that nobody wrote down."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def exit_status(found: dict[str, CellState]) -> int:
    return 0 if all(state.state == "finished" for state in found.values()) else 1


def _ask(console: Console, ask: bool) -> str:
    """c, g or w. Without a terminal, and after SIGTERM, nobody can answer: cancel."""
    if not ask or not sys.stdin.isatty():
        return "c"
    try:
        while (answer := console.input(QUESTION, markup=False).strip().lower()[:1]) not in ("c", "g", "w"):
            pass
    except (KeyboardInterrupt, EOFError):
        return "c"
    return answer


def _terminate(*_: object) -> None:
    raise KeyboardInterrupt("SIGTERM")


def cancel(sweep: Sweep) -> None:
    """Stop every cell that waits or runs, whichever process started it."""
    now = states(sweep)
    jobs: list[str] = []
    runners: set[int] = set()
    for cell in sweep.cells:
        if not now[cell.id].active:
            continue
        submitted = sweep.events(cell)[0]
        if submitted.get("job"):
            sweep.note(cell, "cancelled", by="the sweep")
            jobs.append(submitted["job"])
        elif lives(submitted):
            runners.add(submitted["pid"])  # it notes what it cancels
    slurm.cancel(jobs)
    for pid in runners:
        if pid_started(pid):
            local.end(pid)
