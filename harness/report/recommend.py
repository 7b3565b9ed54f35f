"""Which setting to ship: the fastest one that is shown to keep the quality and meets the latency limit."""

import math
from dataclasses import dataclass, field
from typing import Any

from harness.report.compare import Column
from harness.report.groups import Group

TPOT = "latency/tpot_s_p90"


@dataclass(frozen=True)
class Limits:
    """quality_margin: the largest loss of mean score that is acceptable. max_tpot_ms: the 90 % quantile of TPOT."""

    quality_margin: float = 0.02
    max_tpot_ms: float | None = None


@dataclass
class Verdict:
    label: str
    column: Column
    objections: list[str] = field(default_factory=list)  # empty: it may be shipped


@dataclass
class Recommendation:
    group: Group
    verdicts: list[Verdict]
    chosen: Verdict | None
    text: str


def recommend(group: Group, summaries: dict[str, dict[str, Any]], limits: Limits) -> Recommendation:
    """The drafting run with the largest speed-up among those without an objection; else the baseline.

    A loss is excluded only where the lower bound of the 95 % interval of the score difference is above -margin, so few
    samples never pass for equal quality.
    """
    verdicts = [
        Verdict(label, column, _objections(column, summaries[str(column.run.folder.path)], limits))
        for label, column in group.drafting
    ]
    fit = [v for v in verdicts if not v.objections and v.column.speed_up]
    if fit:
        chosen = max(fit, key=lambda v: v.column.speed_up.value if v.column.speed_up else 0.0)
        return Recommendation(group, verdicts, chosen, _praise(chosen, limits))
    if not verdicts:
        return Recommendation(group, verdicts, None, "No drafting mode among the runs: nothing to recommend.")
    if group.comparison.baseline is None:
        return Recommendation(group, verdicts, None, "No autoregressive run: nothing can be held against the baseline.")
    text = "Stay with autoregressive decoding: no setting is shown to be faster and within the limits."
    return Recommendation(group, verdicts, None, text)


def everywhere(found: list[Recommendation]) -> list[str]:
    """For each model and hardware with several tasks or temperatures: the one setting that may be shipped in all.

    Of the settings without an objection anywhere, the one with the largest geometric mean of its speed-ups.
    """
    lines = []
    for place in dict.fromkeys((r.group.model, r.group.hardware) for r in found):
        members = [r for r in found if (r.group.model, r.group.hardware) == place]
        if len(members) < 2:
            continue
        fit = [
            {v.label: v.column.speed_up for v in r.verdicts if v.column.speed_up and not v.objections} for r in members
        ]
        means = {
            label: math.exp(sum(math.log(each[label].value) for each in fit) / len(fit))
            for label in fit[0]
            if all(label in each for each in fit)
        }
        head = f"{' on '.join(place)}, one setting for all {len(members)}:"
        if means:
            best = max(means, key=lambda label: means[label])
            lines.append(f"{head} {best}, {means[best]:.2f} times the baseline's decode speed (geometric mean).")
        else:
            lines.append(f"{head} none is shown to be faster and within the limits in every one.")
    return lines


def _objections(column: Column, summary: dict[str, Any], limits: Limits) -> list[str]:
    found = []
    if column.run.manifest.status not in ("finished", "failed"):
        found.append(f"the run is {column.run.manifest.status}")
    if "RED" in column.certificate:
        found.append("its exactness certificate is red: it is not lossless")
    if column.speed_up is None:
        found.append("no speed-up is known")
    elif column.speed_up.low is None or column.speed_up.low <= 1:
        found.append("not shown to be faster: the interval of the speed-up reaches 1")
    difference = column.score_difference
    if difference is None:
        found.append("no scores to compare, so quality is unknown")
    elif difference.low is None or difference.low < -limits.quality_margin:
        low = "unknown" if difference.low is None else f"{difference.low:+.3f}"
        found.append(
            f"a loss of more than {limits.quality_margin:g} is not excluded: the lower bound is {low}"
            + _samples_needed(column, limits)
        )
    if limits.max_tpot_ms is not None:
        tpot = summary.get(TPOT)
        if tpot is None:
            found.append("TPOT is unknown")
        elif 1000 * tpot > limits.max_tpot_ms:
            found.append(f"TPOT p90 is {1000 * tpot:.1f} ms, over {limits.max_tpot_ms:g} ms")
    return found


def _samples_needed(column: Column, limits: Limits) -> str:
    """How many samples would settle it with 80 % power if the true difference were 0: widths fall with the root."""
    if not column.detectable_difference or not limits.quality_margin:
        return ""
    needed = column.samples * (column.detectable_difference / limits.quality_margin) ** 2
    return (
        f" (about {needed:.0f} samples would settle it, {column.samples} are there)" if needed > column.samples else ""
    )


def _praise(chosen: Verdict, limits: Limits) -> str:
    column = chosen.column
    assert column.speed_up is not None
    verb = "Ship" if column.certified else "Certify, then ship"
    text = f"{verb} {chosen.label}: {column.speed_up.value:.2f} times the baseline's decode speed"
    if column.score_difference is not None:
        text += f", a loss of more than {limits.quality_margin:g} in score excluded"
    if limits.max_tpot_ms is not None:
        text += f", TPOT p90 within {limits.max_tpot_ms:g} ms"
    return f"{text}; exactness: {column.certificate}."
