"""`--sweep`: every cell is shown, also one that raised, was cancelled, never began or left a damaged folder."""

import json
from pathlib import Path

import pytest

from harness.report.__main__ import main


@pytest.fixture
def sweep(run, sample, tmp_path: Path) -> Path:
    """Six cells of a sweep called `six`, written as the launcher's manifest describes itself; and a run outside it."""
    samples = [sample(c, [1, 1]) for c in "abc"]
    run("outputs/base", samples, "autoregressive")
    run("outputs/tree", samples, speculative={"tree_budget": 16})
    error = sample("a", [], status="error", error="RuntimeError: out of <memory>", output_ids=[])
    run("outputs/raised", [error], status="failed", speculative={"tree_budget": 32})
    run("outputs/outside", samples, "dflash")
    broken = tmp_path / "outputs/broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    states = {
        "base": {"state": "finished", "tries": 1},
        "tree": {"state": "finished", "tries": 2, "why": "preempted once"},
        "raised": {"state": "failed", "tries": 1, "why": "1 of its samples failed"},
        "cancelled": {"state": "cancelled", "tries": 0, "why": "by the sweep, before it began"},
        "broken": {"state": "died", "tries": 1},
    }
    names = [*states, "never"]
    cells = [{"id": n, "name": n, "label": f"label of {n}", "overrides": [], "limit": 3} for n in names]
    manifest = {"command": ["x"], "cwd": ".", "created_at": "2026-01-01", "cells": cells, "states": states}
    (tmp_path / "outputs/sweeps").mkdir()
    (tmp_path / "outputs/sweeps/six.json").write_text(json.dumps(manifest))
    return tmp_path / "outputs"


def test_all_six_cells_are_told_truthfully(sweep: Path, tmp_path: Path, capsys) -> None:
    page, text = tmp_path / "i.html", tmp_path / "r.md"
    assert main(["--outputs", str(sweep), "--sweep", "six", "--html", str(page), "--markdown", str(text)]) == 0
    lines = text.read_text().splitlines()
    for line in (
        "| label of base | finished | 3 of 3 | 1 |  |",
        "| label of tree | finished | 3 of 3 | 2 | preempted once |",
        "| label of raised | failed | 0 of 1 | 1 | 1 of its samples failed |",
        "| label of cancelled | cancelled | 0 of 3 | 0 | by the sweep, before it began |",
        "| label of never | not looked at yet | 0 of 3 | 0 |  |",
    ):
        assert line in lines
    [broken] = [line for line in lines if line.startswith("| label of broken | died | ? | 1 |")]
    assert "not JSON" in broken
    assert (
        "|  | autoregressive | ddtree 16 |" in lines
    )  # the figures of what finished; the outside run is not among them
    assert [line for line in lines if "raised: no finished sample" in line and "out of &lt;memory>" in line]
    assert "Cells of the sweep" in page.read_text()
    assert "label of cancelled" in capsys.readouterr().out


def test_an_unknown_sweep_names_the_known_ones(sweep: Path, capsys) -> None:
    assert main(["--outputs", str(sweep), "--sweep", "seven"]) == 2
    assert "Sweeps there: six" in capsys.readouterr().err
    assert main([str(sweep / "base"), "--sweep", "six", "--outputs", str(sweep)]) == 2
    assert "not both" in capsys.readouterr().err
