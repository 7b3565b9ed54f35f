"""`python -m harness.report`: what it prints and writes, which runs it picks, and how it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.report.__main__ import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def three(run, sample) -> Path:
    """outputs/ with a baseline, a chain and a tree."""
    samples = "abcd"
    base = run("outputs/base", [sample(c, [0] * 9, nodes=0, seconds=9.0) for c in samples], "autoregressive")
    run("outputs/chain", [sample(c, [2, 2, 2], seconds=4.5) for c in samples], "dflash")
    late = "2026-01-02T00:00:00+00:00"
    run(
        "outputs/tree", [sample(c, [8], seconds=3.0) for c in samples], started_at=late, speculative={"tree_budget": 16}
    )
    return base.path.parent


def test_named_runs_are_printed_and_written(three: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.md"
    runs = [str(three / name) for name in ("base", "chain", "tree")]
    assert main([*runs, "--markdown", str(file)]) == 0
    text = file.read_text()
    assert "|  | autoregressive | dflash | ddtree 16 |" in text
    assert "| run | base | chain | tree |" in text
    assert "| acceptance length | 1.00 [1.00, 1.00] | 3.00 [3.00, 3.00] | 9.00 [9.00, 9.00] |" in text
    assert "| decode tokens/s | 1.0 | 2.0 | 3.0 |" in text
    speed = "| speed-up | baseline | (2.00x [2.00x, 2.00x], no certificate) | (3.00x [3.00x, 3.00x], no certificate) |"
    assert speed in text
    assert "| score difference | baseline | +0.000 [" in text
    # 4 samples, none changed: 2.8016 · sqrt((0 + 1) / (4 + 2)) / sqrt(4).
    assert "| detectable difference | baseline | 0.572 | 0.572 |" in text
    assert "4 speed-ups and score differences are tested here" in text
    printed = capsys.readouterr().out
    assert "3.00x" in printed
    assert "detectable" in printed
    assert "Holm" in printed
    assert "Comparison of runs" in printed


def test_without_names_the_newest_and_its_likes_are_taken(
    three: Path, run, sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hot = {"sampling": {"name": "t10", "temperature": 1.0}}
    run("outputs/hot", [sample("a", [1])], asked=hot)
    run("outputs/older", [sample("a", [1])], speculative={"tree_budget": 16})
    (three / "broken").mkdir()
    (three / "broken" / "run.json").write_text("{")
    file = tmp_path / "report.md"
    assert main(["--outputs", str(three), "--markdown", str(file)]) == 0
    text = file.read_text()
    assert "|  | autoregressive | dflash | ddtree 16 |" in text
    left_out = text.split("Left out:")[1]
    assert "hot: differs in asked.sampling.name: 't06' against 't10'; asked.sampling.temperature: 0.6 against 1.0" in (
        left_out
    )
    assert "older: the same settings as the newer" in left_out
    assert "broken" in left_out


@pytest.mark.parametrize("what", ["missing folder", "no run in it", "twice", "empty outputs", "other facts"])
def test_it_refuses_with_status_two_and_a_clear_line(
    what: str, three: Path, run, sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = str(three / "base")
    other = run("hot", [sample("a", [1])], asked={"sampling": {"name": "t06", "temperature": 1.0}})
    (tmp_path / "void").mkdir()
    arguments, message = {
        "missing folder": ([base, str(tmp_path / "nope")], "nope holds no run.json"),
        "no run in it": ([base, str(tmp_path / "void")], "void holds no run.json"),
        "twice": ([base, base], "is named twice"),
        "empty outputs": (["--outputs", str(tmp_path / "void")], "No run with a finished sample"),
        "other facts": ([base, str(other.path)], "asked.sampling.temperature: 0.6 against 1.0"),
    }[what]
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


def test_it_runs_as_a_module(three: Path) -> None:
    command = [sys.executable, "-m", "harness.report", str(three / "base"), str(three / "nope")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("report: ")
    assert "Traceback" not in done.stderr
