"""What a result file says about where it came from."""

import argparse
import datetime
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch


def facts(device: str, commit: str) -> dict[str, Any]:
    """Machine, versions and load. No host name: a result file is public."""
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": commit or _git("rev-parse", "HEAD"),
        "uncommitted_changes_here": None
        if commit
        else bool(_git("status", "--porcelain", "-uno", "--", ":/harness/decoding", ":/benchmarks")),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": _cpu_name(),
        "cpu_cores": os.cpu_count(),
        "cpu_flags": [flag for flag in ("avx2", "avx512f", "amx_bf16") if flag in _cpu_info()],
        "threads": torch.get_num_threads(),
        "load_average_1min": load(),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "gpu_memory_gib": round(properties.total_memory / 2**30),
            "gpu_capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "driver": _run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        }
    return found


def load() -> float:
    """Processes that wanted a core in the last minute: above the cores, timings are a neighbour's too."""
    return round(os.getloadavg()[0], 2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--out", type=Path, help="result file, JSON")
    parser.add_argument("--commit", default="", help="where the files travelled without git")


def pick_device(asked: str) -> str:
    if asked != "auto":
        return asked
    return "cuda" if torch.cuda.is_available() else "cpu"


def write(path: Path | None, result: dict[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*arguments: str) -> str:
    return _run("git", "-C", str(Path(__file__).resolve().parent), *arguments)


def _cpu_info() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def _cpu_name() -> str:
    names = [line.split(":", 1)[1].strip() for line in _cpu_info().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()
