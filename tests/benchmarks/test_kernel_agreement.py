"""The agreement test itself: it passes here, its oracle is right where one can see it, and it can fail.

On a machine with CUDA the same test runs the real kernel. False alarms: none, nothing is left to chance (fixed seeds,
exact comparisons, and a tolerance a hundred times the rounding of a float32 sum).
"""

import collections
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import kernel_agreement, kernel_oracle, machine
from benchmarks.device_agreement import check
from harness.decoding.verify_kernel import find_kernel, tree_speculative_sampling_target_only

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks/results/verifiers"


def test_the_kernel_of_this_machine_agrees():
    result = kernel_agreement.run(machine.pick_device("auto"), num_trees=800, seconds=100, full=False)
    assert kernel_agreement.passed(result), result
    counts = result["counts"]["kernel"]
    assert counts["trees"] >= 800
    assert {shape for shape in kernel_oracle.SHAPES if counts[f"trees_{shape}"] > 50} == set(kernel_oracle.SHAPES)
    assert min(counts[key] for key in ("coins_on_a_sum", "zero_residuals", "exact_finals", "rounded_finals")) > 10


def test_every_part_of_the_check_can_fail():
    """A fault is injected into what a right kernel left behind; each must be counted under its own name."""
    rng = np.random.default_rng(1)
    case = kernel_oracle.random_case(rng, 200, 12, 16)
    right = kernel_agreement.call(find_kernel("cpu"), case, "cpu")
    tally = collections.Counter()
    kernel_agreement.compare(case, right, tally)
    assert not any(tally[key] for key in kernel_agreement.FAILURES)

    def counted(fault) -> set[str]:
        wrong = {name: array.copy() for name, array in right.items()}
        for b in range(len(case.final_B)):
            fault(wrong, b, kernel_oracle.walk(case, b))
        tally = collections.Counter()
        kernel_agreement.compare(case, wrong, tally)
        return {key for key in kernel_agreement.FAILURES if tally[key]}

    def one_more(wrong, b, answer):
        wrong["num"][b] += 1

    def other_draft(wrong, b, answer):
        if answer.tokens:
            wrong["predicts"][b, 0] += 1

    def writes_elsewhere(wrong, b, answer):
        wrong["predicts"][b, [n for n in range(12) if n not in answer.path][:1]] = 0

    def forgets_mass(wrong, b, answer):
        wrong["scratch"][b] = 0

    def final(token_of):
        def fault(wrong, b, answer):
            wrong["predicts"][b, answer.path[-1]] = token_of(answer.left_V)

        return fault

    assert counted(one_more) == counted(other_draft) == {"path"}
    assert counted(writes_elsewhere) == {"untouched"}
    assert counted(forgets_mass) == {"scratch"}
    assert counted(final(np.argmin)) == {"exact_final", "no_mass_final", "outside_interval", "zero_residual_final"}
    assert "outside_interval" in counted(final(np.argmax))


def two_leaves(root_p: list[float], coin: float, final: float) -> kernel_oracle.Case:
    """A root with children of token 5 and 6."""
    target = np.zeros((1, 3, len(root_p)), np.float32)
    target[0, 0], target[0, 1:, 3] = root_p, 1
    return kernel_oracle.Case(
        np.array([[0, 5, 6]]), np.array([[1, -1, -1]]), np.array([[-1, 2, -1]]),
        np.full((1, 3), coin, np.float32), np.full(1, final, np.float32), target, ["zeros"], 2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("coin", "path", "left"),
    [
        (0.25, [0, 1], {3: 1.0}),  # equal to the first child's mass
        (0.26, [0, 2], {3: 1.0}),
        (0.75, [0, 2], {3: 1.0}),
        (0.76, [0], {0: 0.25}),
    ],
)
def test_the_scalar_walk_by_hand(coin, path, left):
    answer = kernel_oracle.walk(two_leaves([0.25, 0, 0, 0, 0, 0.25, 0.5, 0], coin, 0.5), 0)
    assert answer.path == path
    assert dict(zip(np.flatnonzero(answer.left_V).tolist(), answer.left_V[answer.left_V > 0], strict=True)) == left


@pytest.mark.parametrize(("coin", "token"), [(0.1, 1), (0.25, 3), (0.26, 3), (0.75, 4), (1.0, 4)])
def test_the_exact_draw_by_hand(coin, token):
    """[0, 1/4, 0, 1/2, 1/4, 0]: the first sum above the coin; at 1 none is, and the last with mass is meant."""
    left = np.array([0, 0.25, 0, 0.5, 0.25, 0], np.float32)
    assert kernel_oracle.exact_token(left, np.float32(coin)) == token
    assert kernel_oracle.distance_from_interval(left, np.float32(coin), token) == 0
    assert kernel_oracle.distance_from_interval(left, np.float32(coin), 0) == pytest.approx(coin)


def test_nothing_left_gives_the_last_id():
    case = two_leaves([0, 0, 0, 0, 0, 0.5, 0.25, 0], 0.8, 0.5)
    assert not kernel_oracle.walk(case, 0).left_V.any()
    got = kernel_agreement.call(tree_speculative_sampling_target_only, case, "cpu")
    assert got["predicts"][0, 0] == 7


def test_devices_agree():
    result = check(machine.pick_device("auto"), small=True)
    assert "error" not in json.dumps(result)
    assert result["uniform"]["differ"] == result["uniform"]["zeros"] == result["level_wise"]["differ"] == 0
    assert result["top_candidates"]["differ"] == 0
    assert result["coins_of_one"] == {"trees": 400, "none_accepted": 0, "answered_last_id": 0}
    assert all(result[f"verify_{name}"]["outside_filter"] == 0 for name in ("kernel", "walk", "coupled"))


def test_committed_results_pass_and_say_where_they_come_from():
    files = sorted(RESULTS.glob("*_agreement.json"))
    assert files
    for path in files:
        result = json.loads(path.read_text())
        assert kernel_agreement.passed(result), path.name
        assert len(result["machine"]["commit"]) == 40
        assert result["machine"]["torch"]
        if "gpu" in result["machine"]:
            assert "sgl_kernel" in result["kernel"]  # the torch form would prove nothing about it
            assert result["kernel_against_torch_form"]["path_disagreements"] == 0
