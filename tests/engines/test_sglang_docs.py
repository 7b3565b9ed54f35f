"""Every `make` line of docs/sglang.md composes, and those for SGLang make a command that this project would start."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from harness.compose import build, compose
from harness.engines import sglang_launch
from harness.engines.base import Setup
from harness.plan import resolve_sampling

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/sglang.md").read_text()
BLOCKS = re.findall(r"```\n(.*?)```", TEXT, re.DOTALL)
LINES = [line.split("#")[0].strip() for block in BLOCKS for line in block.splitlines() if line.startswith("make ")]
RUNS = [line for line in LINES if line.split()[1] in ("eval", "certify")]


@pytest.mark.parametrize("line", RUNS)
def test_every_command_composes_and_makes_a_server_command(line):
    config = compose(shlex.split(line)[2:])
    if config.engine.name != "sglang":
        return
    engine = build(config.engine, "engine")
    setup = Setup(
        target=Path("target"),
        drafter=None,
        mode=build(config.speculative, "speculative"),
        hardware=config.hardware,
        sampling=resolve_sampling(config.sampling, None),
        stop_ids=[],
    )
    sglang_launch.refuse(engine, setup)
    made = sglang_launch.launch(engine, replace(setup, drafter=Path("drafter")), "python")
    assert made.command[made.command.index("--tp-size") + 1] == str(config.hardware.count)


def test_other_targets_exist_and_both_machines_are_there():
    makefile = (ROOT / "Makefile").read_text()
    for line in LINES:
        assert re.search(rf"^{line.split()[1]}:", makefile, re.MULTILINE), line
    for machine in ("b300_sxm6", "rtx_pro_6000"):
        modes = [line for line in RUNS if f"hardware={machine}" in line and "model=kimi_k26" in line]
        assert len(modes) == 3
    assert "**Not run here**" in TEXT


def test_every_key_of_the_engine_is_in_the_page():
    for name in ("sglang", "openai"):
        keys = compose(
            [f"engine={name}", *(["engine.base_url=http://127.0.0.1:1/v1"] if name == "openai" else [])]
        ).engine.params
        for key in set(keys) - {"name", "model", "extra"}:
            assert re.search(rf"`(engine)?\.{key}\b|engine\.{key}\b", TEXT), key
