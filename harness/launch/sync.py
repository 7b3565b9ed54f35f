"""`make sync`: upload the offline W&B folders of finished runs. What is uploaded already is left alone.

W&B's own command does the upload; it exits 0 also when it failed, so success is the `.synced` mark that it leaves
beside a log. A folder whose log changed after its mark is uploaded again: ids are stable, so it lands in the same run.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from harness.records import RunFolder

TIMEOUT_S = 600


def main(arguments: list[str]) -> int:
    """0: everything that could be uploaded is; 1: an upload failed."""
    parser = argparse.ArgumentParser(prog="python -m harness.launch sync", description="Upload offline W&B folders.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="run folders; none: all under --outputs")
    parser.add_argument("--outputs", default="outputs", metavar="DIR", help="where runs are looked for")
    parser.add_argument("--all", action="store_true", help="runs that failed or were interrupted as well")
    options = parser.parse_args(arguments)
    console = Console(soft_wrap=True, highlight=False)
    folders = [Path(run) for run in options.runs] or sorted(p.parent for p in Path(options.outputs).glob("*/run.json"))
    counts = dict.fromkeys(("uploaded", "uploaded before", "left out", "failed"), 0)
    for folder in folders:
        result, why = sync_run(folder, every_status=options.all)
        counts[result] += 1
        if result != "uploaded before":
            console.print(f"{result}: {folder.name}{f' ({why})' if why else ''}", markup=False)
    console.print(", ".join(f"{count} {name}" for name, count in counts.items()) + ".")
    return int(counts["failed"] > 0)


def sync_run(folder: Path, *, every_status: bool = False) -> tuple[str, str]:
    """What was done with one run folder, and why. Raises ValueError when it holds no run."""
    status = RunFolder(folder).manifest().status
    logs = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    if not logs:
        return "left out", "no offline W&B folder"
    if status == "running" or (status != "finished" and not every_status):
        return "left out", f"the run is {status}"
    todo = [log for log in logs if not _is_synced(log)]
    if not todo:
        return "uploaded before", ""
    for log in todo:
        mark = Path(f"{log}.synced")
        mark.unlink(missing_ok=True)  # of an older state of the log
        failure = _upload(log.parent, folder)
        if failure or not mark.exists():
            return "failed", failure or "W&B left no mark that it took the run"
    return "uploaded", ""


def _is_synced(log: Path) -> bool:
    mark = Path(f"{log}.synced")
    return mark.exists() and mark.stat().st_mtime >= log.stat().st_mtime


def _upload(offline: Path, run: Path) -> str:
    """Empty, or why it failed."""
    # Tables wait in the data folder that the run was written with.
    environment = {**os.environ, "WANDB_DATA_DIR": str((run / "wandb").resolve())}
    command = [sys.executable, "-m", "wandb", "sync", str(offline)]
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"W&B did not end within {TIMEOUT_S} s"
    said = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
    errors = [line for line in said if "error" in line.lower()]
    if done.returncode or errors:
        return (errors or said or [f"exit status {done.returncode}"])[0][:300]
    return ""
