"""The certificate's command on the tiny pair, in this process, with sizes that take seconds."""

import contextlib
import io
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SMALL = (
    "certify.samples=2", "certify.equality_temperatures=[0.6]", "certify.equality_tokens=16",
    "certify.float64_tokens=16", "certify.toy_draws=20000", "certify.redraw_temperatures=[1.0]",
    "certify.contexts=4", "certify.most_draws=500",
)  # fmt: skip


@dataclass
class Taken:
    status: int
    text: str
    values: dict[str, Any]

    @property
    def red(self) -> list[dict[str, Any]]:
        return [line for line in self.values["lines"] if not line["passed"]]


@pytest.fixture
def certify(tiny_pair, prompts, tmp_path, monkeypatch) -> Callable[..., Taken]:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # The key holds a hash of the project's files: an edit while the test runs would part run and certificate.
    monkeypatch.setattr("harness.runs._code", lambda: "code")

    def run(*overrides: str) -> Taken:
        from harness.certify import main

        dtype = [] if "engine=openai" in overrides else ["engine.dtype=float32"]
        words = [
            f"model.target={tiny_pair['target']}", f"model.drafter={tiny_pair['drafter']}", "task=jsonl",
            f"task.path={prompts}", "tracking=none", *dtype, "sampling.max_new_tokens=24",
            f"run.output_dir={tmp_path / 'outputs'}", *SMALL, *overrides,
        ]  # fmt: skip
        out = io.StringIO()
        handler = signal.getsignal(signal.SIGTERM)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = main(words)
        signal.signal(signal.SIGTERM, handler)
        files = sorted((tmp_path / "outputs").glob("*/certificate*.json"), key=lambda path: path.stat().st_mtime_ns)
        return Taken(status, out.getvalue(), json.loads(files[-1].read_text()) if files else {})

    run.outputs = tmp_path / "outputs"
    return run


@pytest.fixture
def outputs(tmp_path) -> Path:
    return tmp_path / "outputs"
