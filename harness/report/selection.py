"""Which runs a report is about: those named, or the newest one with every other that agrees with it."""

from pathlib import Path

from harness.report.compare import CannotCompare, Run, agree


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


def swept(outputs: str, name: str) -> tuple[list[Run], list[str]]:
    """Every run of the sweep `name`, and why a folder of it could not be read.

    A run belongs to it when a folder above it, inside `outputs`, has that name, or when its tracking group is that name.
    Raises CannotCompare when there is none.
    """
    root = Path(outputs)
    folders = sorted(path.parent for path in root.rglob("run.json"))
    inside = [folder for folder in folders if name in folder.relative_to(root).parts[:-1]]
    runs, left_out = _read(inside)
    others, _ = _read([folder for folder in folders if folder not in set(inside)])
    runs += [run for run in others if run.manifest.asked.get("tracking", {}).get("group") == name]
    if not runs:
        known = sorted({folder.relative_to(root).parts[0] for folder in folders if folder.parent != root})
        raise CannotCompare(f"No run of a sweep {name} under {outputs}. Folders there: {', '.join(known) or 'none'}")
    return runs, left_out


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
