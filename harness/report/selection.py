"""Which runs a report is about: those named, or the newest one with every other that agrees with it."""

from pathlib import Path

from harness.launch.sweep import FOLDER as SWEEPS
from harness.launch.sweep import Sweep
from harness.records import RunFolder
from harness.report.compare import CannotCompare, Run, agree, refuse_differences
from harness.report.groups import Report, report
from harness.report.table import Table


def read(names: list[str], outputs: str, sweep: str | None) -> Report:
    """The report on what was asked for.

    Two named runs are a comparison: they must agree in all but their mode. More are sorted into groups that do, and
    what differs between groups beyond the factors of a table is listed. Raises CannotCompare.
    """
    runs, left_out, cells = select(names, outputs, sweep)
    if len(names) == 2:
        refuse_differences(runs)
    return report(runs, left_out, cells)


def select(names: list[str], outputs: str, sweep: str | None) -> tuple[list[Run], list[str], Table | None]:
    """The runs named, those of a sweep, or the newest and all that agree with it; why others are left out; the cells."""
    if sweep is not None:
        if names:
            raise CannotCompare("--sweep takes all runs of a sweep: name runs or a sweep, not both")
        return swept(outputs, sweep)
    return (named(names), [], None) if names else (*newest(outputs), None)


def named(paths: list[str]) -> list[Run]:
    """Raises CannotCompare for a path that holds no run, and for a run named twice."""
    runs = []
    for path in paths:
        try:
            runs.append(Run.read(path))
        except ValueError as error:
            raise CannotCompare(str(error)) from error
    resolved = [run.folder.path.resolve() for run in runs]
    for run, place in zip(runs, resolved, strict=True):
        if resolved.count(place) > 1:
            raise CannotCompare(f"{run.folder.path} is named twice")
    return runs


def swept(outputs: str, name: str) -> tuple[list[Run], list[str], Table]:
    """The runs of the sweep `name`, why a folder of it could not be read, and how every cell stands.

    Raises CannotCompare when there is no such sweep.
    """
    folder = Path(outputs) / SWEEPS
    try:
        sweep = Sweep.read(folder / f"{name}.json")
    except ValueError as error:
        known = ", ".join(sorted(path.stem for path in folder.glob("*.json"))) or "none"
        raise CannotCompare(f"No sweep {name} under {outputs}. Sweeps there: {known}. ({error})") from error
    folders = [sweep.run_folder(cell) for cell in sweep.cells]
    runs, left_out = _read([path for path in folders if (path / "run.json").is_file()])
    return runs, left_out, _cells(sweep)


def _cells(sweep: Sweep) -> Table:
    """As `make sweep-status` last saw them; the samples are counted now."""
    rows = []
    for cell in sweep.cells:
        state, run = sweep.states.get(cell.id, {}), RunFolder(sweep.run_folder(cell))
        why = state.get("why") or ""
        try:
            planned = run.manifest().samples_planned if run.manifest_path.is_file() else cell.limit
            samples = f"{len(run.finished())} of {planned or '?'}"
        except ValueError as error:  # one cell's damaged file must not hide the others
            samples, why = "?", f"{why} {error}".strip()
        seen = state.get("state", "not looked at yet")
        rows.append([cell.label or cell.name, seen, samples, str(state.get("tries", 0)), why])
    note = "States as last seen by the sweep or by `make sweep-status`; samples as they are on disk now."
    return Table(f"Cells of the sweep {sweep.name}", ["cell", "state", "samples", "tries", "why"], rows, note=note)


def _read(folders: list[Path]) -> tuple[list[Run], list[str]]:
    runs, left_out = [], []
    for folder in folders:
        try:
            runs.append(Run.read(str(folder)))
        except ValueError as error:
            left_out.append(f"{folder}: {error}")
    return runs, left_out


def newest(outputs: str) -> tuple[list[Run], list[str]]:
    """The newest run under `outputs` and all that agree with it, oldest first, and why each other was left out.

    The baseline comes first. Of two runs with the same mode and settings the newer is taken. Raises CannotCompare
    when there is no run at all.
    """
    runs, left_out = _read(sorted(path.parent for path in Path(outputs).rglob("run.json")))
    left_out += [f"{run.folder.path}: no finished sample" for run in runs if not run.ok]
    runs = [run for run in runs if run.ok]
    if not runs:
        raise CannotCompare(f"No run with a finished sample under {outputs}: `make eval` makes one, or name a folder")
    runs.sort(key=lambda run: (run.manifest.started_at, str(run.folder.path)), reverse=True)
    chosen: dict[str, Run] = {}
    for run in runs:
        if found := agree(runs[0], run):
            left_out.append(f"{run.folder.path}: differs in " + "; ".join(str(d) for d in found))
        elif not runs[0].ok & run.ok:
            left_out.append(f"{run.folder.path}: shares no finished sample with {runs[0].folder.path}")
        elif (same := repr(run.manifest.asked.get("speculative"))) in chosen:
            left_out.append(f"{run.folder.path}: the same settings as the newer {chosen[same].folder.path}")
        else:
            chosen[same] = run
    kept = sorted(chosen.values(), key=lambda r: (r.mode != "autoregressive", r.tree_budget or 0, r.mode))
    return kept, left_out
