"""The timing script measures what it says: every arm runs, arms of one law accept alike, results can be read back."""

import json

import pytest
import torch

from benchmarks import verifier_cells, verifiers
from harness.decoding.sampling import SamplingParams, probabilities, sampling_batch


@pytest.fixture(scope="module")
def cell():
    return verifier_cells.Cell(8, 16, 500, "T=0.6")


def test_a_cell_has_every_arm(cell):
    row = verifiers.measure(cell, "cpu", seconds=0.2)
    assert set(row["arms"]) == {
        "walk", "draw_then_walk", "kernel", "coupled", "coupled_at_once", "softmax", "bare_kernel"
    }  # fmt: skip
    assert row["not_run"] == row["graph_ms"] == {}
    assert row["arms"]["walk"]["times_faster_than_walk"] == [1.0, 1.0, 1.0]
    assert all(low <= middle <= high for arm in row["arms"].values() for middle, low, high in [arm["ms"]])
    json.dumps(row, allow_nan=False)


def test_arms_accept_alike(cell):
    """Mean accepted drafts over 80 rounds of 8 requests. The bound of 6 standard errors: false alarms below 1e-8."""
    problem = verifier_cells.make_problem(cell, "cpu")
    accepted = {}
    for name, arm in verifiers.arms(problem, "cpu").items():
        if name == "softmax":
            continue
        torch.manual_seed(0)
        rounds = [verifiers.on_host(arm(torch.full((8,), i)))[:8].double() for i in range(80)]
        accepted[name] = torch.stack(rounds)  # [round, request]
    means = {name: x.mean().item() for name, x in accepted.items()}
    error = max((x.var(0) / len(x)).mean().sqrt().item() / 8**0.5 for x in accepted.values())
    assert max(means.values()) - min(means.values()) < 6 * 2**0.5 * error, means
    assert min(means.values()) > 1  # trees that fit, else a walk has nothing to do
    assert torch.equal(accepted["coupled"], accepted["coupled_at_once"])


def test_draw_then_walk_follows_the_drawn_tokens(cell):
    """Greedy: the walk is known, so paths equal those of the harness's own verifiers."""
    problem = verifier_cells.make_problem(cell, "cpu")
    greedy = sampling_batch([SamplingParams(0.0)] * cell.batch)
    problem = verifier_cells.Problem(problem.tree, problem.logits_BNV, greedy, problem.host)
    assert probabilities(problem.logits_BNV, greedy).max() == 1
    index = torch.zeros(cell.batch, dtype=torch.int64)
    got = verifiers.draw_then_walk(problem)
    right = verifiers.VERIFIERS["walk"](problem.tree, problem.logits_BNV, greedy, index)
    assert torch.equal(got.path_BW, right.path_BW)
    assert torch.equal(got.bonus_B, right.bonus_B)
    assert torch.equal(got.num_accepted_B, right.num_accepted_B)


def test_large_cells_are_listed_and_bounded():
    for device in ("cpu", "cuda"):
        found = list(verifier_cells.cells(device, tiny=False))
        assert [cell.entries for cell in found] == sorted(cell.entries for cell in found)
        assert max(cell.entries for cell in found) <= verifier_cells.MOST_ENTRIES[device]
    assert {cell.vocab for cell in found} == set(verifier_cells.VOCABULARIES)
    assert {cell.batch for cell in found} == {1, 4, 16, 64}
