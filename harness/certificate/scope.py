"""What a certificate is about, its key, and the certificate that a run refers to. Imports neither torch nor engines.

A certificate belongs to everything that decides the draws and to nothing else: a run at another temperature, budget or
task has the same key, a run on another device, in another dtype or through other code has another.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from harness.records import RunManifest

SCHEMA = 1
FOLDER = "certificates"  # beside the run folders
FILE = "certificate.json"  # in the run folder that the certificate was taken in
VERSIONS = ("python", "torch", "transformers", "sglang", "code")
Status = Literal["green", "red", "missing"]


def scope(manifest: RunManifest) -> dict[str, Any]:
    """The facts that a certificate and a run must share (design.md, "Certificate scope")."""
    asked, engine = manifest.asked, manifest.resolved.get("engine", {})
    sources, seen = manifest.resolved.get("sources", {}), manifest.hardware_seen
    wanted = asked.get("engine", {})
    return {
        "target": _digest(sources.get("target", {}).get("sha256")),
        "drafter": _digest(sources.get("drafter", {}).get("sha256")),
        "engine": wanted.get("name"),
        "device": seen.get("devices") or seen.get("cpu"),
        "dtype": engine.get("dtype"),
        "attention": engine.get("attention"),
        "mode": asked.get("speculative", {}).get("name"),
        "verifier": asked.get("speculative", {}).get("verifier"),
        "kernel": engine.get("kernel"),
        "batch": wanted.get("batch_size", wanted.get("concurrency")),
        "graph_mode": engine.get("graph_mode", "none"),
        "versions": {name: manifest.versions[name] for name in VERSIONS if name in manifest.versions},
        **({"server": engine["server_versions"]} if "server_versions" in engine else {}),
    }


def key(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def certificate_path(output_dir: Path | str, manifest: RunManifest) -> Path:
    return Path(output_dir) / FOLDER / f"{key(scope(manifest))}.json"


def certificate_status(run_folder: Path | str, manifest: RunManifest) -> Status | None:
    """Of the certificate with the run's key in the same output folder; None for the baseline, which needs none.

    A file of another schema or with another key counts as missing.
    """
    if manifest.asked.get("speculative", {}).get("name") == "autoregressive":
        return None
    path = certificate_path(Path(run_folder).parent, manifest)
    try:
        values = json.loads(path.read_text())
        fits = values["schema"] == SCHEMA and values["key"] == path.stem and not values["inject"]
    except (OSError, ValueError, KeyError, TypeError):
        return "missing"
    if not fits or values.get("status") not in ("green", "red"):
        return "missing"
    return "green" if values["status"] == "green" else "red"


def _digest(hashes: dict[str, str] | None) -> str | None:
    """One hash for the files of a source; None where there is no source."""
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:16] if hashes else None
