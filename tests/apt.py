"""Debian packages that a test needs, installed one at a time when several test processes ask at once."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def install(*packages: str) -> None:
    """Raises RuntimeError with the command to run where this process may not install."""
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise RuntimeError(f"the tests need {', '.join(packages)}; as root run: {' '.join(command)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with (Path(tempfile.gettempdir()) / "ddtree-eval-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["apt-get", "update", "-q"], env=environment, check=True, capture_output=True)
        subprocess.run(command, env=environment, check=True, capture_output=True)
