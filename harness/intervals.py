"""The interval of a run's mean score. The unit is the sample: repeats of one sample are no new samples."""

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from harness.records import SampleRecord

RESAMPLES = 2000
SEED = 0


def wilson(mean: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % Wilson score interval of a proportion `mean` seen in `n` samples (Wilson 1927)."""
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def score_interval(records: Iterable[SampleRecord]) -> tuple[float, float, float, int] | None:
    """(mean score, low, high, scored samples); None when nothing was scored.

    The unit is the sample: its repeats are averaged first, so more repeats never pretend more samples. Scores that are
    all 0 or 1 get Wilson's interval, others a percentile bootstrap over samples (nan bounds below 2 samples).
    """
    by_sample: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record.status == "ok" and record.score is not None:
            by_sample[record.sample_id].append(record.score)
    if not by_sample:
        return None
    means = np.array([np.mean(scores) for scores in by_sample.values()])
    mean, n = float(means.mean()), len(means)
    if all(score in (0.0, 1.0) for scores in by_sample.values() for score in scores):
        return mean, *wilson(mean, n), n
    if n < 2:
        return mean, math.nan, math.nan, n
    draws = np.random.default_rng(SEED).integers(0, n, (RESAMPLES, n))
    low, high = np.percentile(means[draws].mean(axis=1), [2.5, 97.5])
    return mean, float(low), float(high), n
