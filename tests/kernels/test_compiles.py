"""The interpreter takes what the compiler refuses: every kernel of a round must compile for an H200."""

import os
import re
import subprocess
import sys
from pathlib import Path

KERNELS = Path("harness/kernels")
SAME_IN_EVERY_LANE = ("_survivors", "_softmax_write")  # what they say beside the launches
SHARED_MEMORY = 227 * 1024  # bytes a block may have on compute capability 9.0


def test_every_kernel_compiles_for_an_h200(tmp_path):
    """In a process of its own: in this one the kernels may be the interpreter's."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests.kernels.compile_rounds"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    shared: dict[str, int] = {}
    fused: dict[str, int] = {}
    for name, size, number in re.findall(r"^(_\w+) (\d+) (\d+)$", done.stdout, re.MULTILINE):
        shared[name] = max(int(size), shared.get(name, 0))
        fused[name] = max(int(number), fused.get(name, 0))
    launched = {name for file in KERNELS.glob("*.py") for name in re.findall(r"^    (_\w+)\[", file.read_text(), re.M)}
    assert launched <= set(shared), f"not compiled: {sorted(launched - set(shared))}"
    assert fused["_rms_norm"] > 0  # they are counted
    assert {name: fused[name] for name in SAME_IN_EVERY_LANE if fused[name]} == {}
    assert {name: size for name, size in shared.items() if size > SHARED_MEMORY} == {}
