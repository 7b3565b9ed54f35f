"""Intervals of a comparison. The unit is always the sample: values of one sample stay together in every resample.

Every interval is at 95 %, and a fixed seed makes a report repeatable. Bootstraps are bias-corrected and accelerated
(Efron 1987, scipy.stats.bootstrap); where that is undefined, as when all resamples agree, the percentiles are taken.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

RESAMPLES = 9999
SEED = 0
Z95 = 1.959964


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval; `low` and `high` are None where the samples are too few to say."""

    value: float
    low: float | None = None
    high: float | None = None


def ratio(top: ArrayLike, bottom: ArrayLike) -> Estimate:
    """sum(top) / sum(bottom), resampling samples. Both (samples,); `bottom` positive in total."""
    return _bootstrap(lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis), top, bottom)


def speed_up(base_s: ArrayLike, base_tokens: ArrayLike, s: ArrayLike, tokens: ArrayLike) -> Estimate:
    """Baseline seconds a token over this run's seconds a token, totals over the samples, resampled in pairs.

    All (samples,), the same samples in the same order. Above 1 is faster than the baseline.
    """

    def times(bs: np.ndarray, bt: np.ndarray, ms: np.ndarray, mt: np.ndarray, axis: int) -> np.ndarray:
        return (bs.sum(axis=axis) / bt.sum(axis=axis)) / (ms.sum(axis=axis) / mt.sum(axis=axis))

    return _bootstrap(times, base_s, base_tokens, s, tokens)


def paired_difference(base: ArrayLike, other: ArrayLike) -> Estimate:
    """mean(other - base) over samples, both (samples,).

    Where all scores are 0 or 1 the interval is Agresti and Min's (2005): half a sample is added to each cell of the
    two-by-two table, so that few samples without a disagreement do not pass for certainty. Otherwise a bootstrap.
    """
    a, b = np.asarray(base, float), np.asarray(other, float)
    if not np.isin(np.concatenate((a, b)), (0.0, 1.0)).all():
        return _bootstrap(lambda d, axis: d.mean(axis=axis), b - a)
    lost, won, n = ((a > b).sum() + 0.5), ((b > a).sum() + 0.5), len(a) + 2
    centre = (won - lost) / n
    half = Z95 * math.sqrt(won + lost - (won - lost) ** 2 / n) / n
    return Estimate(float((b - a).mean()), float(max(-1.0, centre - half)), float(min(1.0, centre + half)))


def _bootstrap(statistic: Callable[..., np.ndarray], *values: ArrayLike) -> Estimate:
    from scipy.stats import bootstrap

    data = [np.asarray(v, float) for v in values]
    value = float(statistic(*data, axis=-1))
    if len(data[0]) < 2:
        return Estimate(value)
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # degenerate data: answered below
            found = bootstrap(
                data,
                statistic,
                paired=True,
                vectorized=True,
                n_resamples=RESAMPLES,
                method=method,
                rng=np.random.default_rng(SEED),
            ).confidence_interval
        if math.isfinite(found.low) and math.isfinite(found.high):
            return Estimate(value, float(found.low), float(found.high))
    return Estimate(value)
