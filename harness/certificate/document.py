"""A certificate as a file and on the screen."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.certificate import scope
from harness.certificate.line import FAMILY_LEVEL, LEVEL, MAX_TESTS, Line
from harness.certificate.settings import CertifySettings
from harness.records import RunFolder, RunManifest


def to_json(
    lines: list[Line],
    absent: list[dict[str, str]],
    manifest: RunManifest,
    settings: CertifySettings,
    started_at: str,
    seconds: float,
) -> dict[str, Any]:
    """absent: the parts that this engine does not let be seen, each with its reason."""
    facts = scope.scope(manifest)
    failed = sorted({line.part for line in lines if not line.passed})
    assert sum(line.level is not None for line in lines) <= MAX_TESTS
    return {
        "schema": scope.SCHEMA,
        "key": scope.key(facts),
        "status": "red" if failed else "green",
        "failed_parts": failed,
        "inject": settings.inject,
        "scope": facts,
        "family_level": FAMILY_LEVEL,
        "level": LEVEL,
        "random_lines": sum(line.level is not None for line in lines),
        "settings": vars(settings),
        "reduced": reduced(settings),
        "speculative": manifest.asked["speculative"],
        "command": ["python", "-m", "harness.certify", *manifest.command[3:]],
        "versions": manifest.versions,
        "started_at": started_at,
        "seconds": seconds,
        "lines": [line.record() for line in lines],
        "absent": absent,
    }


def reduced(settings: CertifySettings) -> list[str]:
    """The sizes that are below those of the project: what such a certificate has seen is less."""
    full = CertifySettings(equality_temperatures=[], redraw_temperatures=[])
    sizes = [f.name for f in fields(settings) if isinstance(getattr(full, f.name), int) and f.name != "seed"]
    return [name for name in sizes if getattr(settings, name) < getattr(full, name)]


def write(certificate: dict[str, Any], run: RunFolder, manifest: RunManifest, settings: CertifySettings) -> Path:
    """Into the run's folder and under its key. That of a negative control is kept apart: it says nothing of the cell."""
    places = [run.path / scope.FILE, scope.certificate_path(run.path.parent, manifest)]
    if settings.inject:
        places = [run.path / f"certificate.inject-{settings.inject}.json"]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_name(f"{place.name}.partial")
        partial.write_text(json.dumps(certificate, indent=1, default=str) + "\n")
        partial.replace(place)
    return places[-1]


def show_scope(console: Console, manifest: RunManifest, settings: CertifySettings) -> None:
    facts = scope.scope(manifest)
    console.print(f"certificate {scope.key(facts)}", highlight=False)
    for name, value in facts.items():
        console.print(f"  {name:<10} {value}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"  level      {FAMILY_LEVEL:g} over all random lines, {LEVEL:g} each", highlight=False)
    if settings.inject:
        console.print(f"injected mistake: {settings.inject}", style="yellow", markup=False)


def show(console: Console, line: Line) -> None:
    mark, style = ("ok ", None) if line.passed else ("RED", "red")
    console.print(f"{mark} {line.part:<12} {line.name}  {line}", style=style, markup=False, highlight=False)


def show_verdict(console: Console, certificate: dict[str, Any], path: Path) -> int:
    green = certificate["status"] == "green"
    failed = "" if green else f": {', '.join(certificate['failed_parts'])}"
    text = f"certificate {certificate['key']} is {'green' if green else 'RED'}{failed}"
    console.print(f"{text} ({certificate['seconds']:.0f} s)", style="green" if green else "red", markup=False)
    for part in certificate["absent"]:
        console.print(f"absent {part['part']}: {part['name']} ({part['reason']})", style="yellow", markup=False)
    if certificate["reduced"]:
        console.print(f"taken with less than the usual {', '.join(certificate['reduced'])}", style="yellow")
    console.print(str(path), soft_wrap=True, highlight=False, markup=False)
    return 0 if green else 1
