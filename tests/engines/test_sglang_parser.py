"""SGLang's own parser takes every command that this project makes, for each machine and mode. Needs its environment."""

import json
import subprocess

import pytest

from harness.engines.sglang import SGLangEngine
from harness.engines.sglang_launch import interpreter, launch
from tests.engines.test_sglang_launch import MODES, PROFILES, setup

PARSE = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print(json.dumps([{k: str(v) for k, v in vars(parser.parse_args(words)).items()} for words in json.load(sys.stdin)]))
"""


@pytest.mark.timeout(300)
def test_sglang_takes_the_words_of_every_machine_and_mode():
    engines = [
        SGLangEngine(concurrency=4),
        SGLangEngine(
            memory_fraction=0.8,
            context_length=4096,
            max_total_tokens=9999,
            cuda_graphs=False,
            overlap_schedule=False,
            radix_cache=False,
            trust_remote_code=True,
            attention="triton",
            dtype="float32",
            arguments=["--ep-size", "8"],
        ),
    ]
    sampling = dict(temperature=1.0, top_k=20, top_p=0.9)
    cells = [(engine, setup(mode, profile, count=8, sampling=sampling)) for engine in engines for mode in MODES
             for profile in PROFILES]  # fmt: skip
    commands = [launch(engine, given, "python").command[3:] for engine, given in cells]
    done = subprocess.run(
        [interpreter(None), "-c", PARSE], input=json.dumps(commands), capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    parsed = json.loads(done.stdout.splitlines()[-1])
    assert len(parsed) == len(cells)
    for (engine, given), found in zip(cells, parsed, strict=True):
        assert found["tp_size"] == "8"
        assert found["max_running_requests"] == str(engine.concurrency)
        assert found["incremental_streaming_output"] == "True"
        assert found["disable_radix_cache"] == str(not engine.radix_cache)
        assert found["trust_remote_code"] == str(engine.trust_remote_code)
        if given.hardware.device == "cuda":
            assert found["disable_overlap_schedule"] == str(not engine.overlap_schedule)
            assert found["cuda_graph_max_bs_decode"] == (str(engine.concurrency) if engine.cuda_graphs else "None")
        if given.hardware.interconnect == "pcie":
            assert found["disable_custom_all_reduce"] == "True"
            assert found["enforce_disable_flashinfer_allreduce_fusion"] == "True"
