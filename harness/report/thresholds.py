"""`--fail-if 'acceptance_length<2.0'`: conditions under which a drafter's CI must fail."""

import difflib
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from harness.report.groups import Report
from harness.report.statistics import Estimate

COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ESTIMATES = ("acceptance_length", "speed_up", "score", "score_difference")
PLAIN = ("decode_tokens_per_s", "repetition_rate", "truncated_rate", "error_rate", "equal_outputs_share")
CONDITION = re.compile(r"\s*([A-Za-z_][\w/.-]*?)\s*(<=|>=|<|>)\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*")


@dataclass(frozen=True)
class Threshold:
    """`name` is a figure of the table, with `.low` or `.high` for a bound of its interval, or a metric of summary.json.

    A metric of summary.json is one with a `/` in its name.
    """

    text: str
    name: str
    compare: str
    limit: float


def parse(text: str) -> Threshold:
    """Raises ValueError for what is no condition, and for a figure that does not exist, with the nearest that does."""
    found = CONDITION.fullmatch(text)
    if not found:
        raise ValueError(f"--fail-if {text!r} is no condition: write NAME<NUMBER, for example 'acceptance_length<2.0'")
    name, compare, limit = found.groups()
    try:
        number = float(limit)
    except ValueError as error:
        raise ValueError(f"--fail-if {text!r}: {limit} is no number") from error
    known = [*ESTIMATES, *(f"{e}.{bound}" for e in ESTIMATES for bound in ("low", "high")), *PLAIN]
    if name not in known and "/" not in name:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"--fail-if {text!r}: no figure {name}; {hint}Known: {', '.join(known)}, or a summary metric")
    return Threshold(text, name, compare, number)


def failures(report: Report, thresholds: list[Threshold]) -> list[str]:
    """A line for every condition that holds, over every drafting run. A figure that is missing fails as well.

    So a CI never passes because nothing was measured.
    """
    found = []
    for threshold in thresholds:
        columns = [(g.title, label, column) for g in report.groups for label, column in g.drafting]
        if not columns:
            found.append(f"{threshold.text}: no drafting run to check")
        for title, label, column in columns:
            summary = report.summaries[str(column.run.folder.path)]
            value = summary.get(threshold.name) if "/" in threshold.name else _figure(threshold.name, column)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                found.append(f"{threshold.text}: {threshold.name} is missing for {label} on {title}")
            elif value != value or COMPARE[threshold.compare](value, threshold.limit):
                found.append(f"{threshold.text}: {threshold.name} is {value:.4g} for {label} on {title}")
    return found


def _figure(name: str, column) -> float | None:
    if name.endswith("_rate"):
        return column.rates.get(name.removesuffix("_rate"))
    if name == "equal_outputs_share":
        return None if column.equal_outputs is None else column.equal_outputs / column.compared_outputs
    name, _, bound = name.partition(".")
    value = getattr(column, name)
    if isinstance(value, Estimate):
        return getattr(value, bound) if bound else value.value
    return value
