"""sha256 of files, remembered so that a resume need not read gigabytes again; a lock and a scratch folder beside it.

The store is one JSON file in the cache folder: a hash by absolute path, size and modification time.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE_VARIABLE = "DDTREE_EVAL_CACHE"

_HASHED = (".safetensors", ".json", ".jsonl", ".gz", ".parquet", ".model", ".jinja", ".txt", ".csv", ".gguf", ".zip")
_REMEMBERED_BYTES = 1 << 20  # smaller files are read faster than they are looked up


def cache_folder() -> Path:
    """Where packages are kept: $DDTREE_EVAL_CACHE, else ~/.cache/ddtree-eval. The hub keeps its own cache."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/ddtree-eval").expanduser().absolute()


def hashes(path: Path) -> dict[str, str]:
    """sha256 by relative file name, for one file or for the weight, config, tokenizer and data files of a folder."""
    if path.is_file():
        files = {path.name: path}
    else:
        found = {file.relative_to(path).as_posix(): file for file in sorted(path.rglob("*")) if file.suffix in _HASHED}
        files = {name: file for name, file in found.items() if file.is_file() and not _hidden(name)}
    store = cache_folder() / "sha256.json"
    known = _read_json(store)
    new: dict[str, str] = {}
    result: dict[str, str] = {}
    for name, file in files.items():
        real = file.resolve()
        stat = real.stat()
        stamp = f"{real}|{stat.st_size}|{stat.st_mtime_ns}"
        digest = known.get(stamp)
        if digest is None:
            digest = sha256_of(real)
            if stat.st_size >= _REMEMBERED_BYTES:
                new[stamp] = digest
        result[name] = digest
    if new:
        with lock(store):
            _write_json(store, _read_json(store) | new)
    return result


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in Path(name).parts)


def sha256_of(path: Path) -> str:
    """The hash of one file, read now."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_json(path: Path) -> dict[str, str]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _write_json(path: Path, value: dict[str, str]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=0), encoding="utf-8")
    os.replace(temporary, path)


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """One process at a time for `path`. The lock file stays: removing it would let two processes hold two locks."""
    import filelock

    path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(path.with_name(f".{path.name}.lock")):
        yield


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder for unfinished work, under the lock of its prefix: what a killed process left there goes first."""
    parent.mkdir(parents=True, exist_ok=True)
    for stale in parent.glob(f"{prefix}*/"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=prefix) as name:
        yield Path(name)
