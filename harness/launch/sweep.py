"""A sweep on disk: what its cells are, and a log of what happened to each. The records stay in the cells' run folders.

    outputs/sweeps/NAME.json         the manifest: command, cells (id, overrides, folder), last known state of each
    outputs/sweeps/NAME/ID.jsonl     events of one cell: submitted, started, ended, cancelled
    outputs/sweeps/NAME/ID.log       what the cell printed
    outputs/sweeps/NAME/slurm-JOB.log   what Slurm said about a job

Events are lines appended by whoever saw them (launcher, cell, watcher), so no two writers can undo each other.
"""

import json
import os
import socket
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = "sweeps"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a sweep."""

    id: str  # the run id
    name: str  # the run folder's name
    label: str  # the words in which it differs from the others
    overrides: list[str]  # `python -m harness OVERRIDES` is the cell
    hardware: str = "cpu"  # the profile's name
    gpus: int = 0
    limit: int | None = None  # run.limit


@dataclass(kw_only=True)
class Sweep:
    outputs: Path
    name: str
    command: list[str]
    cwd: str  # relative paths in overrides start here
    created_at: str
    cells: list[Cell]
    states: dict[str, dict[str, Any]] = field(default_factory=dict)  # last known, by cell id

    @property
    def path(self) -> Path:
        return self.outputs / FOLDER / f"{self.name}.json"

    @property
    def folder(self) -> Path:
        return self.outputs / FOLDER / self.name

    def run_folder(self, cell: Cell) -> Path:
        return self.outputs / cell.name

    def log(self, cell: Cell) -> Path:
        return self.folder / f"{cell.id}.log"

    def cell(self, cell_id: str) -> Cell:
        return next(cell for cell in self.cells if cell.id == cell_id)

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        values = {key: value for key, value in asdict(self).items() if key not in ("outputs", "name")}
        partial = self.path.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n")
        partial.replace(self.path)

    @classmethod
    def read(cls, path: Path) -> "Sweep":
        """Raises ValueError when there is no such sweep."""
        try:
            values = json.loads(path.read_text())
            cells = [Cell(**cell) for cell in values.pop("cells")]
            return cls(outputs=path.resolve().parent.parent, name=path.stem, cells=cells, **values)
        except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is not a sweep that this version can read: {error}") from error

    def note(self, cell: Cell, event: str, **facts: Any) -> None:
        """Append one event: a single write, forced to disk."""
        self.folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"event": event, "at": now(), **facts}, ensure_ascii=False)
        with (self.folder / f"{cell.id}.jsonl").open("ab") as out:
            out.write(line.encode() + b"\n")
            out.flush()
            os.fsync(out.fileno())

    def events(self, cell: Cell) -> list[dict[str, Any]]:
        """What happened to a cell since it was last submitted, oldest first."""
        path = self.folder / f"{cell.id}.jsonl"
        if not path.is_file():
            return []
        found: list[dict[str, Any]] = []
        for line in path.read_bytes().splitlines():
            try:
                event = json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError):
                continue  # torn by a kill
            found = [event] if event["event"] == "submitted" else [*found, event]
        return found


def newest(outputs: Path) -> Path:
    """The manifest that was written last. Raises ValueError when there is none."""
    found = sorted((outputs / FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ValueError(f"no sweep under {outputs / FOLDER}: `make sweep experiment=budget_sweep` makes one")
    return found[-1]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def this_process(pid: int | None = None) -> dict[str, Any]:
    """Enough to tell later whether the same process still lives: pids are used again, start times with them are not."""
    pid = pid or os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "pid_started": pid_started(pid)}


def pid_started(pid: int) -> str | None:
    """The start time of a living process in clock ticks since boot, beside the boot's id; None for a dead one."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return None
    return None if after_name[0] in "ZX" else f"{boot}-{after_name[19]}"


def lives(process: dict[str, Any]) -> bool | None:
    """Whether a process of `this_process` still runs; None when it is another machine's."""
    if process.get("host") != socket.gethostname():
        return None
    return process.get("pid_started") is not None and pid_started(process["pid"]) == process["pid_started"]
