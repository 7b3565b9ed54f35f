"""The least time that a round can take: every weight of the target read once from memory."""

from dataclasses import dataclass

from harness.records import RunManifest

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


def stages(summary: dict) -> dict[str, float]:
    """Seconds a round by stage, in the order they run, prefill left out."""
    found = {
        key.removeprefix("stage/").removesuffix("_s_per_round"): value
        for key, value in summary.items()
        if key.startswith("stage/")
    }
    names = [n for n in ORDER if n in found] + sorted(set(found) - set(ORDER) - set(NOT_OF_A_ROUND))
    return {name: found[name] for name in names}
