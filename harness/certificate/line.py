"""One line of a certificate: what was measured, against which limit, and what it could have seen.

Random lines share a family-wise false-alarm level of 1e-6 by Bonferroni over MAX_TESTS places, fixed beforehand: each is
tested at 1e-8, whatever the number of lines that a setting has. Deterministic lines have a stated tolerance.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from scipy import stats

FAMILY_LEVEL = 1e-6
MAX_TESTS = 100
LEVEL = FAMILY_LEVEL / MAX_TESTS
# Standard deviations by which a two-sided test at LEVEL (5.73) rejects with probability 0.9975.
SEEN_FOR_SURE = 8.54


@dataclass(frozen=True, kw_only=True)
class Line:
    part: str  # equality, distribution, prediction, state
    name: str
    statistic: str  # what `value` is
    value: float
    n: int  # how many `unit` went into it
    unit: str
    passed: bool
    level: float | None = None  # false-alarm level of a random line
    p_value: float | None = None
    tolerance: float | None = None  # of a deterministic line
    detects: float | None = None  # smallest relative temperature error that is seen with probability 0.9975
    seconds: float = 0.0
    detail: str = ""

    def record(self) -> dict[str, Any]:
        """As JSON: a number that JSON has no word for becomes text."""
        return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}

    def __str__(self) -> str:
        limit = f"p={self.p_value:.2g}" if self.p_value is not None else f"allowed {self.tolerance:g}"
        words = [f"{self.statistic}={self.value:.4g}", f"({limit})", f"N={self.n} {self.unit}"]
        words += [f"detects {self.detects:.1%}"] if self.detects is not None else []
        return "  ".join(words + ([self.detail] if self.detail else []))


def random_line(*, p_value: float, **values: Any) -> Line:
    """A line that a correct system fails with probability LEVEL. Not a number fails."""
    return Line(level=LEVEL, p_value=float(p_value), passed=bool(p_value >= LEVEL), **values)


def z_line(*, total: float, variance: float, temperature: bool = False, **values: Any) -> Line:
    """A sum of centred terms over its standard deviation, against the standard normal, two-sided.

    temperature: the terms are log p - E log p. A temperature off by a factor 1 + e then moves z by e·sqrt(variance).
    """
    z = total / math.sqrt(variance) if variance > 0 else (0.0 if total == 0 else math.copysign(math.inf, total))
    p_value = 2 * float(stats.norm.sf(abs(z)))
    detects = SEEN_FOR_SURE / math.sqrt(variance) if temperature and variance > 0 else None
    return random_line(p_value=p_value, statistic="z", value=z, detects=detects, **values)


def exact_line(*, value: float, tolerance: float, **values: Any) -> Line:
    """Passes when value <= tolerance. Not a number fails."""
    return Line(value=float(value), tolerance=tolerance, passed=bool(value <= tolerance), **values)
