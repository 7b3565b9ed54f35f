"""Tests, their correction for many comparisons, and what a comparison of this size could have seen.

The unit is the sample, as in `statistics.py`, and a fixed seed makes a report repeatable. p-values are two-sided.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

SEED = 0
FLIPS = 9999  # random sign flips; their smallest p-value is 1e-4
EXACT_BELOW = 13  # with fewer samples all 2**n flips are visited
# Normal quantiles of a two-sided test at 5 % and of a power of 80 %, added: 1.959964 + 0.841621.
SEEN_AT_80 = 2.801585


def mcnemar(base: ArrayLike, other: ArrayLike) -> float:
    """Exact McNemar test (1947) of paired 0/1 scores, both (samples,).

    Only the samples that changed count: under equal accuracy each is as likely won as lost.
    """
    from scipy.stats import binomtest

    a, b = np.asarray(base, float), np.asarray(other, float)
    won, changed = int((b > a).sum()), int((b != a).sum())
    return float(binomtest(won, changed).pvalue) if changed else 1.0


def score_p_value(base: ArrayLike, other: ArrayLike) -> float | None:
    """McNemar's test where all scores are 0 or 1, else sign flips of the differences. None below 2 samples."""
    a, b = np.asarray(base, float), np.asarray(other, float)
    if len(a) < 2:
        return None
    if np.isin(np.concatenate((a, b)), (0.0, 1.0)).all():
        return mcnemar(a, b)
    flips = _flips(len(a))
    return _share(np.abs((b - a) @ (1 - 2 * flips.T)), abs(float((b - a).sum())), len(a))


def speed_up_p_value(base_s: ArrayLike, base_tokens: ArrayLike, s: ArrayLike, tokens: ArrayLike) -> float | None:
    """Of "both runs are equally fast", by exchanging the two runs' sides of samples. All (samples,); None below 2.

    The statistic is the logarithm of the ratio of seconds a token, totals over the samples.
    """
    bs, bt, ms, mt = (np.asarray(v, float) for v in (base_s, base_tokens, s, tokens))
    if len(bs) < 2:
        return None

    def log_ratio(flip: np.ndarray) -> np.ndarray:
        seconds, count = flip @ (ms - bs), flip @ (mt - bt)
        top = (bs.sum() + seconds) / (bt.sum() + count)
        return np.log(top * (mt.sum() - count) / (ms.sum() - seconds))

    seen = abs(float(log_ratio(np.zeros((1, len(bs))))[0]))
    return _share(np.abs(log_ratio(_flips(len(bs)))), seen, len(bs))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p-values, in the order given: at most a share of alpha of pages errs anywhere."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, so_far = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        so_far = max(so_far, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = so_far
    return adjusted


def detectable_difference(base: ArrayLike, other: ArrayLike) -> float | None:
    """The true mean difference that a test at 5 % finds with 80 % power, given the spread seen. Both (samples,).

    For 0/1 scores the spread is the share of samples that changed, with half a sample added to each cell, so that a
    comparison without a change does not pretend to see everything. None where nothing is known of the spread.
    """
    a, b = np.asarray(base, float), np.asarray(other, float)
    n = len(a)
    if np.isin(np.concatenate((a, b)), (0.0, 1.0)).all():
        variance = ((a != b).sum() + 1) / (n + 2)
    elif n < 2 or not (b - a).any():
        return None
    else:
        variance = (b - a).var(ddof=1)
    return float(SEEN_AT_80 * math.sqrt(variance / n)) or None


def detectable_speed_up(base_s: ArrayLike, base_tokens: ArrayLike, s: ArrayLike, tokens: ArrayLike) -> float | None:
    """The true ratio above 1 that a test at 5 % finds with 80 % power, by the delta method. All (samples,)."""
    parts = [np.asarray(v, float) for v in (base_s, base_tokens, s, tokens)]
    n = len(parts[0])
    if n < 2:
        return None
    a, b, c, d = (v / v.sum() for v in parts)
    return float(math.exp(SEEN_AT_80 * math.sqrt(((a - b - c + d) ** 2).sum() * n / (n - 1))))


@lru_cache(maxsize=4)
def _flips(n: int) -> np.ndarray:
    """0/1 [F, n], float64 as products of floats are fast: every pattern for few samples, else random ones."""
    if n < EXACT_BELOW:
        return ((np.arange(2**n)[:, None] >> np.arange(n)) & 1).astype(float)
    return np.random.default_rng(SEED).integers(0, 2, (FLIPS, n)).astype(float)


def _share(statistics: np.ndarray, seen: float, n: int) -> float:
    """How many patterns go as far as what was seen, which is one of them. Rounding must not lose the equal ones."""
    far = int((statistics >= seen * (1 - 1e-9) - 1e-12).sum())
    return far / len(statistics) if n < EXACT_BELOW else (far + 1) / (len(statistics) + 1)
