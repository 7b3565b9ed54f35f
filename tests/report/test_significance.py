"""Tests and corrections against brute force; every seed is fixed and every false-alarm level is stated."""

import itertools
import math

import numpy as np
import pytest

from harness.report.significance import (
    detectable_difference,
    detectable_speed_up,
    holm,
    mcnemar,
    score_p_value,
    speed_up_p_value,
)


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (1, 0), (3, 1), (5, 5), (9, 1), (0, 8)])
def test_mcnemar_against_every_outcome_of_the_changed_samples(won: int, lost: int) -> None:
    base = np.array([0] * won + [1] * lost + [1, 0, 1], float)
    other = np.array([1] * won + [0] * lost + [1, 0, 1], float)
    changed, seen = won + lost, math.comb(won + lost, won)
    # Outcomes that are at most as likely as the one seen, out of all 2**changed.
    outcomes = [sum(tosses) for tosses in itertools.product((0, 1), repeat=changed)]
    oracle = sum(math.comb(changed, wins) <= seen for wins in outcomes) / len(outcomes)
    assert mcnemar(base, other) == pytest.approx(oracle)
    assert score_p_value(base, other) == pytest.approx(oracle)


def test_graded_scores_against_every_sign() -> None:
    base = np.array([0.2, 0.5, 0.9, 0.4, 0.0, 0.7, 0.3])
    other = np.array([0.4, 0.9, 0.8, 0.6, 0.5, 0.8, 0.3])
    differences = (other - base).tolist()
    sums = [
        sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in itertools.product((1, -1), repeat=7)
    ]
    oracle = sum(abs(total) >= abs(sum(differences)) - 1e-9 for total in sums) / len(sums)
    assert score_p_value(base, other) == pytest.approx(oracle)


def test_speed_up_against_every_exchange() -> None:
    rng = np.random.default_rng(1)
    sides = [rng.uniform(1, 3, 6), rng.integers(5, 9, 6), rng.uniform(0.7, 2.5, 6), rng.integers(5, 9, 6)]

    def statistic(exchange: tuple[int, ...]) -> float:
        totals = [0.0] * 4
        for i, swap in enumerate(exchange):
            for place in range(4):
                totals[place] += float(sides[(place + 2 * swap) % 4][i])
        return abs(math.log((totals[0] / totals[1]) / (totals[2] / totals[3])))

    found = [statistic(exchange) for exchange in itertools.product((0, 1), repeat=6)]
    oracle = sum(value >= found[0] - 1e-12 for value in found) / len(found)
    assert speed_up_p_value(*sides) == pytest.approx(oracle)


def test_the_tests_err_as_often_as_they_say() -> None:
    """300 data sets without a difference, 25 samples each, at 5 %: 15 errors expected.

    More than 30 happens once in 10,000 tries (binomial), and the seed is fixed. The control has a difference.
    """
    rng, false_alarms, found = np.random.default_rng(2), [0, 0, 0], 0
    for _ in range(300):
        hard = rng.lognormal(0, 0.5, 25)
        tokens = rng.integers(20, 90, (2, 25)).astype(float)
        first, second = tokens * hard * rng.uniform(0.5, 1.5, (2, 25))
        false_alarms[0] += speed_up_p_value(first, tokens[0], second, tokens[1]) <= 0.05
        found += speed_up_p_value(first, tokens[0], second / 2, tokens[1]) <= 0.05
        graded = rng.uniform(0, 1, (2, 25))
        false_alarms[1] += score_p_value(*graded) <= 0.05
        false_alarms[2] += score_p_value(*(graded > 0.5)) <= 0.05
    assert max(false_alarms) <= 30
    assert found >= 290


def test_holm_against_the_closed_test() -> None:
    """Holm is Bonferroni in every subset of the hypotheses: an adjusted p is the largest over the subsets it is in."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        p = rng.uniform(0, 0.4, 5).round(2).tolist()
        for i, adjusted in enumerate(holm(p)):
            subsets = [s for r in range(1, 6) for s in itertools.combinations(range(5), r) if i in s]
            assert adjusted == pytest.approx(max(min(1.0, len(s) * min(p[j] for j in s)) for s in subsets))
    assert holm([]) == []


def test_a_detectable_difference_is_found_in_four_of_five_tries() -> None:
    """At the printed difference the power is 80 %: of 400 tries, 320 ± 8 (one standard deviation).

    The band is 4 standard deviations wide (1 in 16,000) plus what the normal approximation owes.
    """
    rng, n, sd = np.random.default_rng(4), 80, 0.3
    true = detectable_difference(np.zeros(n), sd * rng.normal(0, 1, n))
    assert true == pytest.approx(2.8016 * sd / math.sqrt(n), rel=0.2)
    hits = 0
    for _ in range(400):
        difference = rng.normal(2.8016 * sd / math.sqrt(n), sd, n)
        hits += abs(difference.mean()) > 1.96 * difference.std(ddof=1) / math.sqrt(n)
    assert 280 <= hits <= 360


def test_a_detectable_speed_up_matches_the_spread_of_resamples() -> None:
    rng, n = np.random.default_rng(5), 120
    tokens = rng.integers(20, 90, n).astype(float)
    base, own = tokens * rng.uniform(0.5, 1.5, n), tokens * rng.uniform(0.3, 0.9, n)
    logs = []
    for _ in range(2000):
        pick = rng.integers(0, n, n)
        logs.append(math.log(base[pick].sum() / own[pick].sum()))
    assert math.log(detectable_speed_up(base, tokens, own, tokens)) == pytest.approx(2.8016 * np.std(logs), rel=0.1)


def test_few_samples_never_see_everything() -> None:
    assert detectable_difference([1, 0, 1, 0], [1, 0, 1, 0]) > 0.5
    assert detectable_difference([0.5, 0.25], [0.5, 0.25]) is None
    assert score_p_value([1], [0]) is None
    assert speed_up_p_value([1], [1], [1], [1]) is None
    assert detectable_speed_up([1], [1], [1], [1]) is None
