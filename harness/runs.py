"""The identity of a run, and the folder that a second try of the same command finds again."""

import fcntl
import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness.config import EvalConfig
from harness.records import RunFolder, RunManifest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "datasets", "math-verify", "wandb", "sglang")
# Where results go and how they are tracked says nothing about them; a larger limit adds samples to the same run.
NOT_IDENTITY = {"run": ("limit", "output_dir"), "engine": ("python", "startup_s", "timeout_s", "api_key_variable")}

_HELD: dict[Path, Any] = {}  # open locks of run folders


def run_id(asked: dict[str, Any]) -> str:
    """Ten hex digits of the composed config without `tracking`, `experiment`, `run.limit` and `run.output_dir`."""
    kept = {group: values for group, values in asked.items() if group not in ("tracking", "experiment")}
    for group, keys in NOT_IDENTITY.items():
        kept[group] = {key: value for key, value in kept[group].items() if key not in keys}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:10]


def run_name(config: EvalConfig) -> str:
    parts = [config.task.name, config.model.name, config.speculative.name]
    budget = config.speculative.params.get("tree_budget")
    parts += [f"b{budget}"] if budget else []
    return "-".join([*parts, config.sampling.name, run_id(config.asked)])


def open_run(config: EvalConfig, resolved: dict[str, Any], hardware_seen: dict[str, Any], planned: int) -> Any:
    """The run's folder and a manifest for this try.

    Raises ValueError when the folder holds results of the same config that was resolved to other facts: another
    revision, file hash, version or machine. Mixing the two would make one run out of two.
    """
    name = run_name(config)
    run = RunFolder(Path(config.run.output_dir).resolve() / name)
    hold(run.path)
    manifest = RunManifest(
        id=run_id(config.asked),
        name=name,
        command=["python", "-m", "harness", *config.overrides],
        asked=config.asked,
        resolved=json.loads(json.dumps(resolved, default=str)),
        versions=versions(),
        hardware_seen=hardware_seen,
        started_at=now(),
        samples_planned=planned,
    )
    if run.manifest_path.exists():
        before = run.manifest()
        for facts in ("resolved", "versions", "hardware_seen"):
            differing = differences(getattr(before, facts), getattr(manifest, facts), facts)
            differing = [found for found in differing if found[0] != "versions.commit"]  # `code` says it better
            if differing and run.records():
                lines = "\n  ".join(f"{key}: was {old!r}, is {new!r}" for key, old, new in differing)
                raise ValueError(
                    f"{run.path} was made under other facts, so this run cannot go on there:\n  {lines}\n"
                    "Move that folder away, or choose another with run.output_dir=..."
                )
        manifest.started_at = before.started_at
        manifest.measured = before.measured
    return run, manifest


def hold(folder: Path) -> None:
    """Keep every other process out of the folder until this one ends. Raises ValueError when one is in it.

    A POSIX lock: it works over NFS and ends with the process, however that ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if folder in _HELD:
        return
    handle = (folder / ".lock").open("ab")
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ValueError(f"{folder}: another process is decoding this run; two would mix their records") from error
    _HELD[folder] = handle  # closing any handle of the file would drop the lock


def differences(old: Any, new: Any, key: str) -> list[tuple[str, Any, Any]]:
    """(key, old, new) for every leaf that differs, dotted keys."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for name in sorted(set(old) | set(new)):
            found += differences(old.get(name), new.get(name), f"{key}.{name}")
        return found
    return [] if old == new else [(key, old, new)]


def versions() -> dict[str, str]:
    """Python, the packages that decide results, and this project: its commit in a clone, and a hash of its code.

    The commit tells a person where to look; the hash alone tells whether two runs went through the same code.
    """
    found = {"python": sys.version.split()[0], "harness": _version("ddtree-eval"), "commit": _commit(), "code": _code()}
    found |= {name: _version(name) for name in PACKAGES}
    return {name: value for name, value in found.items() if value}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _code() -> str:
    digest = hashlib.sha256()
    for path in sorted([*ROOT.glob("harness/**/*.py"), *ROOT.glob("tasks/**/*.py")]):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:  # a copy without git: `code` tells all the same
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
