"""Which sandbox a host gets: the strongest it allows, and none at all where root would run programs as itself."""

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

import tasks.sandbox as sandbox_module
from harness.compose import compose
from harness.evaluate import evaluate
from tasks.humaneval import HumanEval
from tasks.livecodebench import LiveCodeBench
from tasks.mbpp import Mbpp
from tasks.sandbox import GraderError, Sandbox, default_sandbox
from tasks.sandbox_levels import levels

REFUSED = r"limits only: too weak for root.*task\.allow_weak_sandbox=true"


@pytest.fixture
def no_unshare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    fake = tmp_path / "unshare"
    fake.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    default_sandbox.cache_clear()
    yield
    default_sandbox.cache_clear()


@pytest.fixture
def only_root(no_unshare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where Python stands in root's home: no other user can run it."""
    found = [level for level in levels(True) if level.name != "unprivileged user"]
    monkeypatch.setattr(sandbox_module, "levels", lambda is_root: found)


@pytest.mark.usefixtures("no_unshare")
def test_a_refused_unshare_falls_back() -> None:
    sandbox = Sandbox(allow_weak=True)
    assert not sandbox.level.unshare
    assert "no network" in sandbox.isolation["lacks"]
    assert sandbox.run_script("assert True", timeout_s=5.0).passed
    with pytest.raises(RuntimeError, match="Operation not permitted"):
        Sandbox(level=levels(os.geteuid() == 0)[0].name)


@pytest.mark.usefixtures("only_root")
@pytest.mark.parametrize("task", [HumanEval, Mbpp, LiveCodeBench])
def test_the_weak_level_of_root_is_refused_unless_allowed(task: type[HumanEval | Mbpp | LiveCodeBench]) -> None:
    with pytest.raises(ValueError, match=REFUSED):
        task().check_host()
    with pytest.raises(GraderError, match="too weak"):
        task().sandbox()
    allowed = task(allow_weak_sandbox=True)
    allowed.check_host()
    assert allowed.sandbox().level.name == "limits only"


@pytest.mark.usefixtures("only_root")
def test_a_run_is_refused_before_anything_is_fetched_or_loaded(tmp_path: Path) -> None:
    words = ["task=humaneval", f"task.path={tmp_path / 'no-data'}", f"model.target={tmp_path / 'no-model'}"]
    with pytest.raises(ValueError, match=REFUSED):
        evaluate(compose([*words, f"run.output_dir={tmp_path / 'outputs'}"]), Console(file=io.StringIO()))
    assert not (tmp_path / "outputs").exists()


@pytest.mark.usefixtures("no_unshare")
def test_an_ordinary_user_has_but_its_own_rights_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "levels", lambda is_root: levels(False))
    Mbpp().check_host()
    assert Mbpp().sandbox().level.name == "limits only"
