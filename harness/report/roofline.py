"""The least time that a round can take: every weight of the target read once from memory."""

from dataclasses import dataclass
from typing import Any

from harness.records import RunManifest
from harness.report.groups import Report
from harness.report.table import DASH, Table

NOT_OF_A_ROUND = ("prefill",)
ORDER = ("draft", "build", "verify", "sample", "commit")


@dataclass(frozen=True)
class Floor:
    """Seconds, or None with the reason. KV reads, launches and the drafter come on top, so no round reaches it."""

    seconds: float | None
    why: str


def floor(manifest: RunManifest) -> Floor:
    """Bytes of the weights that a forward streams (run.json) over the profile's peak bandwidth, all devices together."""
    bandwidth = manifest.asked.get("hardware", {}).get("bandwidth_gb_s")
    count = manifest.asked.get("hardware", {}).get("count") or 1
    weights = manifest.resolved.get("engine", {}).get("target_weight_bytes")
    if not weights:
        return Floor(None, "unknown: run.json has no size of the target's weights")
    if not bandwidth:
        return Floor(None, "unknown: hardware.bandwidth_gb_s is not set")
    seconds = weights / (bandwidth * 1e9 * count)
    return Floor(seconds, f"{weights / 1e9:.2f} GB / ({count} × {bandwidth:g} GB/s) = {1000 * seconds:.2f} ms")


def stages(summary: dict[str, Any]) -> dict[str, float]:
    """Seconds a round by stage, in the order they run, prefill left out."""
    found = {
        key.removeprefix("stage/").removesuffix("_s_per_round"): value
        for key, value in summary.items()
        if key.startswith("stage/")
    }
    names = [n for n in ORDER if n in found] + sorted(set(found) - set(ORDER) - set(NOT_OF_A_ROUND))
    return {name: found[name] for name in names}


def stage_table(report: Report) -> Table | None:
    """Milliseconds of a profiled round by stage, against the floor and the baseline's round; None without a profile.

    rho: the round over the baseline's; acceptance length / rho is the speed-up that these times promise.
    """
    rows = []
    for group in report.groups:
        base = group.comparison.baseline
        base_s = sum(stages(report.summaries[str(base.folder.path)]).values()) if base else 0.0
        for label, column in zip(group.labels, group.columns, strict=True):
            found = stages(report.summaries[str(column.run.folder.path)])
            if not found:
                continue
            total, least = sum(found.values()), floor(column.run.manifest).seconds
            rho, length = (total / base_s if base_s else None), column.acceptance_length
            rows.append(
                [
                    f"{label}\n{group.title}",
                    *(f"{1000 * found[name]:.2f}" if name in found else DASH for name in ORDER),
                    f"{1000 * total:.2f}",
                    DASH if least is None or not total else f"{least / total:.0%}",
                    DASH if rho is None else f"{rho:.2f}",
                    DASH if rho is None or length is None else f"{length.value / rho:.2f}×",
                ]
            )
    header = ["run", *ORDER, "round, ms", "floor / round", "ρ", "length / ρ"]
    return Table("Stage times of the profile pass, ms a round", header, rows, note=NOTE) if rows else None


NOTE = (
    "Floor / round: the share of the round that reading the weights alone would take. ρ: this round over the "
    "autoregressive one. Length / ρ: the speed-up that acceptance and these times promise; the measured one stands above."
)
