"""From decoded samples to the numbers of `benchmarks.decode`: plain functions of what was recorded.

Every ratio is between totals over the samples that both arms decoded; its 95 % interval resamples prompts, all of
whose rounds stay together. Acceptance length: tokens a round. Speed-ups are against our own fastest autoregressive arm.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.decode_arms import Decoded
from harness.report.statistics import Estimate, speed_up

Found = Mapping[str, Decoded]  # one arm at one temperature, by sample


def rows(arms: Mapping[str, Found]) -> dict[str, dict[str, Any]]:
    """A row for every arm of one temperature. Names: `autoregressive-*`, `dflash`, `ddtree-N`, and `official ` + these."""
    ours = {name: found for name, found in arms.items() if name.startswith("autoregressive") and found}
    baseline = fastest(ours)
    result = {}
    for name, found in arms.items():
        if not found:
            continue
        row: dict[str, Any] = {
            "samples": len(found),
            "rounds": sum(d.rounds for d in found.values()),
            "acceptance_length": acceptance_length(found),
            "tokens_per_s": tokens_per_s(found),
            "round_ms": 1000 * sum(d.seconds for d in found.values()) / sum(d.rounds for d in found.values()),
        }
        if baseline:
            row["baseline"] = baseline
            row["speed_up"] = _estimate(speed(found, ours[baseline]))
            row["round_over_autoregressive"] = _estimate(round_time(found, ours[baseline]))
        theirs = arms.get(f"official {_method(name)}")
        if not name.startswith("official") and theirs:
            row["over_official"] = {
                "acceptance_length": _estimate(acceptance(found, theirs)),
                "tokens_per_s": _estimate(speed(found, theirs)),
                "same_output": same_output(found, theirs),
                "samples": len(_both(found, theirs)),
            }
        result[name] = row
    return result


def fastest(arms: Mapping[str, Found]) -> str | None:
    """The arm with most tokens a second."""
    return max(arms, key=lambda name: tokens_per_s(arms[name])) if arms else None


def acceptance_length(found: Found) -> float:
    return sum(d.tokens for d in found.values()) / sum(d.rounds for d in found.values())


def tokens_per_s(found: Found) -> float:
    return sum(d.tokens for d in found.values()) / sum(d.seconds for d in found.values())


def speed(found: Found, base: Found) -> Estimate:
    """Tokens a second of `found` over those of `base`."""
    return _ratio(found, base, "seconds", "tokens")


def acceptance(found: Found, base: Found) -> Estimate:
    """Acceptance length of `found` over that of `base`."""
    return _ratio(found, base, "rounds", "tokens")


def round_time(found: Found, base: Found) -> Estimate:
    """Seconds a round of `found` over those of `base`."""
    return _ratio(base, found, "seconds", "rounds")


def same_output(found: Found, base: Found) -> float:
    """Share of samples with equal outputs, token for token."""
    both = _both(found, base)
    return sum(found[s].output_ids == base[s].output_ids for s in both) / len(both)


def _ratio(found: Found, base: Found, cost: str, gain: str) -> Estimate:
    """(gain / cost of found) / (gain / cost of base), totals over the samples of both."""
    both = _both(found, base)
    columns = [[getattr(arm[s], field) for s in both] for arm in (base, found) for field in (cost, gain)]
    return speed_up(*columns)


def _both(found: Found, base: Found) -> list[str]:
    both = [sample for sample in found if sample in base]
    if not both:
        raise ValueError("the two arms share no decoded sample")
    return both


def _method(name: str) -> str:
    return "autoregressive" if name.startswith("autoregressive") else name


def _estimate(value: Estimate) -> dict[str, float | None]:
    return {key: None if x is None else round(x, 4) for key, x in asdict(value).items()}
