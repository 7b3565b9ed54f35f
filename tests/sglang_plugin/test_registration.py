"""The plugin registers in the SGLang it is tested with and in the newest release; a broken hook stops the worker."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.sglang_plugin.served import ROOT, sglang_python

REGISTER = """
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
algorithm = SpeculativeAlgorithm.from_string("DDTREE")
import sglang.srt.managers.scheduler, sglang.srt.speculative.dflash_worker_v2
from harness.sglang_plugin import compat
compat.check_hooks()
from harness.sglang_plugin.worker import DDTreeWorker
print(compat.version(), algorithm.name, algorithm.is_dflash_family(), DDTreeWorker.__name__)
"""
BROKEN = """
from harness.sglang_plugin import compat
compat.GRAPH_SPEC_INFO += "_renamed"
from sglang.srt.plugins import load_plugins
load_plugins()
compat.check_hooks()
"""


def run(code: str, first: str = "") -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if key != "SGLANG_USE_CPU_ENGINE"}
    environment["PYTHONPATH"] = os.pathsep.join([first, str(ROOT)]) if first else str(ROOT)
    command = [sglang_python(), "-W", "ignore", "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)


@pytest.mark.parametrize(("found", "folder"), [("0.5.17", ""), ("0.5.23", "newest")])
def test_it_registers(found, folder):
    first = str(Path(sglang_python()).parent.parent / folder) if folder else ""
    done = run(REGISTER, first)
    assert done.stdout.split("\n")[-2] == f"{found} DDTREE True DDTreeWorker", done.stderr[-2000:]
    assert ("its import and registration are tested" in done.stderr) == (found == "0.5.23")


def test_a_hook_that_sglang_did_not_take_is_an_error():
    """Negative control: without the mask's hook a captured graph would ignore the tree in silence."""
    done = run(BROKEN)
    assert done.returncode != 0
    assert "get_spec_info_renamed" in done.stderr.splitlines()[-1]
