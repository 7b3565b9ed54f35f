"""A model or a data file from the Hugging Face hub, through the hub's own cache; without network from that cache alone."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from harness.config import HubSource

_COMMIT = re.compile(r"[0-9a-f]{40}")
# What a model needs to run. No *.py: code out of a checkpoint is never executed. No *.bin: pickles are never loaded.
_MODEL_FILES = [
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
]
# For a server that runs the checkpoint's own code, in its own process and only when asked to.
_CODE_FILES = ["*.py", "*.model", "*.tiktoken"]
# Weights of other formats and second copies of the same weights (gpt-oss keeps them under original/ and metal/).
_NOT_MODEL_FILES = ["*.py", "original/*", "metal/*", "onnx/*", "consolidated*.safetensors"]


def from_hub(source: HubSource, key: str, code: bool = False) -> tuple[Path, str]:
    """A model's folder, or one `file` of a dataset repository, and the commit it belongs to.

    `key` is the config key to name in errors; code: with the checkpoint's Python files. Raises ValueError, in one line,
    with the command that fetches what is missing.
    """
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.constants import is_offline_mode

    if (cached := _cached_file(source)) is not None:  # the hub's client sends a request even for what is on the disk
        return cached, source.revision
    kind = "" if source.file is None else "--repo-type dataset "
    names = "" if source.file is None else f"{source.file} "
    command = f"hf download {kind}{source.repo} {names}--revision {source.revision}"
    otherwise = "" if source.file is None else f". Or give a local copy: {key}.path=FILE"
    # Offline, a snapshot asked for by commit is taken from the disk only if one says so (huggingface_hub 1.33).
    unreachable = not is_offline_mode() and not _hub_answers()
    options: dict[str, Any] = {"revision": source.revision, "local_files_only": is_offline_mode() or unreachable}
    wanted, unwanted = _MODEL_FILES, _NOT_MODEL_FILES
    if code:
        wanted, unwanted = [*wanted, *_CODE_FILES], [name for name in unwanted if name not in _CODE_FILES]
    try:
        if source.file is None:
            path = Path(snapshot_download(source.repo, allow_patterns=wanted, ignore_patterns=unwanted, **options))
            snapshot = path
        else:
            path = Path(hf_hub_download(source.repo, source.file, repo_type="dataset", **options))
            snapshot = path.parents[len(Path(source.file).parts) - 1]
    except Exception as error:  # the hub has a dozen error classes over httpx, OSError and ValueError
        reason = "the hub does not answer" if unreachable else str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(
            f"{key}: {source.repo} at revision {source.revision} is not in the hub cache and could not be fetched "
            f"({reason}). With network access (and access to the repository) run: {command}{otherwise}"
        ) from error
    if source.file is None and (missing := _missing_files(path)):
        raise ValueError(
            f"{key}: {source.repo} at revision {source.revision} lacks {', '.join(missing)} in {path}. "
            f"With network access run: {command}"
        )
    return path, snapshot.name  # the hub names a snapshot folder after the commit


def _cached_file(source: HubSource) -> Path | None:
    """A data file of a certain commit, if it is on the disk. A branch may have moved since, so it is asked for."""
    from huggingface_hub import try_to_load_from_cache

    if source.file is None or not _COMMIT.fullmatch(source.revision):
        return None
    found = try_to_load_from_cache(source.repo, source.file, repo_type="dataset", revision=source.revision)
    return Path(found) if isinstance(found, str) else None


@cache
def _hub_answers() -> bool:
    """One request without retries, once a process: the hub's client would try for half a minute for every file."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception:  # of httpx, of the operating system, of a proxy
        return False
    return True


def _missing_files(folder: Path) -> list[str]:
    """What a model cannot do without; a cache filled by hand or by an interrupted download may lack some of it."""
    wanted = {"config.json"}
    index = folder / "model.safetensors.index.json"
    if index.exists():
        wanted |= set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    missing = sorted(name for name in wanted if not (folder / name).exists())
    if not index.exists() and not list(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    return missing
