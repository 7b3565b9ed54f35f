"""What it takes to make the same runs again, from run.json: commands, commit, versions, hashes, configurations."""

import json
import shlex
from dataclasses import dataclass
from typing import Any

from harness.records import RunManifest
from harness.report.groups import Report
from harness.tracking.redact import redact

HASH_SHOWN = 16


@dataclass
class Origin:
    """One run. `facts` are (what, text) pairs; the two configurations are JSON texts."""

    label: str
    folder: str
    command: str
    facts: list[tuple[str, str]]
    asked: str
    resolved: str


def origins(report: Report) -> list[Origin]:
    return [
        _origin(f"{label}, {group.title}", str(column.run.folder.path), column.run.manifest)
        for group in report.groups
        for label, column in zip(group.labels, group.columns, strict=True)
    ]


def _origin(label: str, folder: str, manifest: RunManifest) -> Origin:
    versions = dict(manifest.versions)
    facts = [
        ("run", f"{manifest.name} (id {manifest.id})"),
        ("status", f"{manifest.status}, {manifest.started_at or '?'} to {manifest.finished_at or '?'}"),
        ("commit", f"{versions.pop('commit', 'unknown')}, code hash {versions.pop('code', 'unknown')}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in sorted(versions.items())) or "unknown"),
        ("hardware", ", ".join(f"{key}: {value}" for key, value in manifest.hardware_seen.items()) or "unknown"),
    ]
    for name, source in manifest.resolved.get("sources", {}).items():
        facts.append((name, _source(source)))
    redacted: Any = redact({"asked": manifest.asked, "resolved": manifest.resolved, "command": manifest.command})
    return Origin(
        label=label,
        folder=folder,
        command=shlex.join(redacted["command"]),
        facts=[(name, redact(text)) for name, text in facts],
        asked=json.dumps(redacted["asked"], indent=1, ensure_ascii=False, default=str),
        resolved=json.dumps(redacted["resolved"], indent=1, ensure_ascii=False, default=str),
    )


def _source(source: Any) -> str:
    if not isinstance(source, dict):
        return str(source)
    hashes = source.get("sha256")
    files = hashes.items() if isinstance(hashes, dict) else [("sha256", hashes)] if hashes else []
    words = [str(source.get("location") or source.get("path") or "?")]
    words += [f"at {source['revision']}"] if source.get("revision") else []
    return " ".join(words) + "".join(f"; {name} {str(value)[:HASH_SHOWN]}" for name, value in files)
