"""`python -m harness.launch sweep|plan|status|cancel|sync ...`: sweeps from the command line."""

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console

from harness.launch import sync, watch
from harness.launch.state import CellState, state_of
from harness.launch.sweep import Sweep, newest, now
from harness.records import RunFolder
from harness.runs import versions

USAGE = "usage: python -m harness.launch sweep|plan KEY=VALUE ... | status|cancel [SWEEP] | sync [RUN ...]"


def main(arguments: list[str]) -> int:
    """0 all finished, 1 some did not, 2 what was asked cannot be done, 130 interrupted."""
    commands = {"sweep": sweep, "plan": plan, "status": status, "cancel": cancel, "sync": sync.main}
    if not arguments or arguments[0] not in commands:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        return commands[arguments[0]](arguments[1:])
    except ValueError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        return 130


def sweep(words: list[str]) -> int:
    """Check every cell, submit those that are not finished and not under way, and watch them."""
    from harness.compose import compose_launcher

    detach = "--detach" in words
    launcher_words, words = split(words)
    launcher = compose_launcher(launcher_words)
    the_sweep, repeated = make(words, ["python", "-m", "harness", "-m", *launcher_words, *words])
    console = Console()
    the_sweep.write()
    before = watch.states(the_sweep)
    todo = [cell for cell in the_sweep.cells if before[cell.id].state != "finished" and not before[cell.id].active]
    under_way = sum(state.active for state in before.values())
    finished = len(the_sweep.cells) - len(todo) - under_way
    notes = [f"{finished} finished before", f"{under_way} under way", f"{repeated} given twice"]
    notes = [note for note in notes if not note.startswith("0 ")]
    console.print(
        f"{the_sweep.name}: {len(the_sweep.cells)} cells, {len(todo)} to run" + "".join(f", {n}" for n in notes)
    )
    _warn_of_other_code(the_sweep, before, console)
    if not todo and not under_way:
        watch.remember(the_sweep, before)
        console.print(watch.table(the_sweep, before))
        return 0
    if not detach:
        return watch.run(the_sweep, launcher, todo, console)
    with watch.undisturbed():
        launcher.submit(the_sweep, todo, detach=True)
    watch.remember(the_sweep, watch.states(the_sweep))
    console.print(f"`make sweep-status SWEEP={the_sweep.name}` shows them.")
    return 0


def plan(words: list[str]) -> int:
    """The cells, what each needs and about how long it takes. Starts and fetches nothing."""
    from harness.compose import compose_launcher
    from harness.launch.cells import plan_cells
    from harness.launch.estimate import show

    launcher_words, words = split(words)
    compose_launcher(launcher_words)
    planned = plan_cells(words)
    as_sweep = Sweep(
        outputs=planned.outputs, name=planned.name, command=[], cwd=os.getcwd(), created_at="", cells=planned.cells
    )
    states = {cell.id: state_of(as_sweep, cell, {}).state for cell in planned.cells}
    show(planned, states, Console())
    return 0


def status(arguments: list[str]) -> int:
    """The table of a sweep, live until no cell is active. 1 when a cell ended otherwise than finished."""
    parser = argparse.ArgumentParser(prog="python -m harness.launch status")
    parser.add_argument("--once", action="store_true", help="print the table as it is now and end")
    the_sweep, options = _chosen(parser, arguments)
    console = Console()
    try:
        found = watch.states(the_sweep) if options.once else watch.watch(the_sweep, console, 2.0)
    except KeyboardInterrupt:  # looking on changes nothing
        return 130
    watch.remember(the_sweep, found)
    console.print(watch.table(the_sweep, found))
    return int(any(not state.active and state.state != "finished" for state in found.values()))


def cancel(arguments: list[str]) -> int:
    """Stop the cells of a sweep; what they have recorded stays."""
    the_sweep, _ = _chosen(argparse.ArgumentParser(prog="python -m harness.launch cancel"), arguments)
    watch.cancel(the_sweep)
    found = watch.watch(the_sweep, Console(), 1.0)
    watch.remember(the_sweep, found)
    Console().print(watch.table(the_sweep, found))
    return 0


def make(words: list[str], command: list[str]) -> tuple[Sweep, int]:
    """The sweep that the words describe, and how many cells were given twice. Raises ValueError naming bad cells."""
    from harness.launch.cells import plan_cells

    planned = plan_cells(words)
    made = Sweep(
        outputs=planned.outputs,
        name=planned.name,
        command=command,
        cwd=os.getcwd(),
        created_at=now(),
        cells=planned.cells,
    )
    return made, planned.repeated


def _warn_of_other_code(the_sweep: Sweep, before: dict[str, CellState], console: Console) -> None:
    """Finished cells are not run again for a newer version of this project, but nobody should be misled."""
    code = versions()["code"]
    other = 0
    for cell in the_sweep.cells:
        if before[cell.id].state == "finished":
            other += RunFolder(the_sweep.run_folder(cell)).manifest().versions.get("code") != code
    if other:
        console.print(
            f"warning: {other} finished cells were made by another version of this code. Reports do not compare them with "
            "what runs now; move their folders away to run them again.",
            style="yellow",
        )


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """(words about the launcher, words about the cells)."""
    words = [word for word in words if word not in ("-m", "--multirun", "--detach")]
    launcher = [word for word in words if word.startswith(("hydra/", "hydra."))]
    for word in launcher:
        if not word.startswith(("hydra/launcher=", "hydra.launcher.")):
            raise ValueError(
                f"{word}: of Hydra's own settings only hydra/launcher and hydra.launcher.KEY are used here"
            )
    return launcher, [word for word in words if word not in launcher]


def _chosen(parser: argparse.ArgumentParser, arguments: list[str]) -> tuple[Sweep, argparse.Namespace]:
    parser.add_argument("sweep", nargs="?", metavar="SWEEP", help="its name; none: the newest")
    parser.add_argument("--outputs", default="outputs", metavar="DIR", help="where runs are looked for")
    options = parser.parse_args(arguments)
    outputs = Path(options.outputs).resolve()
    path = outputs / "sweeps" / f"{options.sweep}.json" if options.sweep else newest(outputs)
    return Sweep.read(path), options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
