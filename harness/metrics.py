"""Every metric of a run, defined once, as pure functions of its records. docs/metrics.md gives formulas and units.

A metric that cannot be computed is absent, never 0: no rounds means no acceptance length, no score means no mean.
Names are grouped with `/`; `summary.json`, W&B and the report use the same ones.
"""

import math
from typing import Any

import numpy as np

from harness.alarms import absent, context_buckets, warnings
from harness.flags import quality_flags as quality_flags
from harness.flags import repetition as repetition
from harness.intervals import score_interval
from harness.records import Round, RunManifest, SampleRecord

FLAGS = ("repetition", "truncated", "empty", "open_reasoning", "grader_error")
QUANTILES = (50, 90, 99)


def summarize(records: list[SampleRecord], profile: list[SampleRecord], manifest: RunManifest) -> dict[str, Any]:
    """All metrics of one run: JSON-able, flat, without the ones that cannot be computed.

    `records` are those of the timed pass, `profile` those of the profile pass (stage times and expected acceptance
    come from there and from nowhere else). Raises ValueError when a record breaks an identity.
    """
    for record in (*records, *profile):
        record.check()
    ok = [r for r in records if r.status == "ok"]
    rounds = [r for record in ok for r in record.rounds]
    counts = [num for record in ok if (num := num_rounds(record)) is not None]
    found: dict[str, Any] = {
        "samples/records": len(records),
        "samples/planned": manifest.samples_planned or None,
        "tokens/output": sum(r.num_output for r in ok),
        "rounds/total": sum(counts) if len(counts) == len(ok) else None,
        **_acceptance(ok),
        **_by_context(rounds),
        **_expected([r for record in profile if record.status == "ok" for r in record.rounds]),
        **_speed(ok),
        **_stages(profile),
        "memory/peak_bytes": manifest.measured.get("peak_memory_bytes"),
        "certificate/status": manifest.measured.get("certificate"),
        **_quality(ok),
        **_target_logprob([*(r for r in profile if r.status == "ok"), *ok]),
        **_rates(records, ok),
    }
    found = {name: value for name, value in found.items() if value is not None}
    return {**found, **absent(manifest, found), "warnings": warnings(found, ok, manifest)}


def sample_scalars(record: SampleRecord) -> dict[str, float]:
    """The scalars of one sample, for a tracker's history. An error record gives `sample/error` = 1 and nothing else."""
    if record.status == "error":
        return {"sample/error": 1.0}
    speed = decode_seconds(record)
    values = {
        "sample/error": 0.0,
        "sample/prompt_tokens": float(record.prompt_tokens),
        "sample/output_tokens": float(record.num_output),
        "sample/rounds": num_rounds(record),
        "sample/acceptance_length": acceptance_length(record),
        "sample/decode_tokens_per_s": decoded_tokens(record) / speed if speed else None,
        "sample/ttft_s": record.ttft_s,
        "sample/decode_s": record.decode_s,
        "sample/score": record.score,
        "sample/target_logprob": record.target_logprob,
        **{f"sample/{name}": float(value) for name, value in record.flags.items()},
    }
    return {name: float(value) for name, value in values.items() if value is not None}


def num_rounds(record: SampleRecord) -> int | None:
    """Rounds of the sample; None where a server does not count them."""
    return record.totals.num_rounds if record.totals else len(record.rounds)


def num_emitted(record: SampleRecord) -> int:
    """Output tokens that the sample's rounds made."""
    return record.totals.num_emitted if record.totals else sum(r.num_emitted for r in record.rounds)


def acceptance_length(record: SampleRecord) -> float | None:
    """Tokens committed in a round, mean over the sample's rounds; None at 0 rounds and where they are not known."""
    rounds = num_rounds(record)
    return num_emitted(record) / rounds if rounds else None


def accepted_histogram(record: SampleRecord) -> list[int] | None:
    """The sample's rounds by accepted drafts; None where a server does not show it."""
    if record.totals:
        return record.totals.histogram
    return [int(count) for count in np.bincount([r.num_accepted for r in record.rounds])] if record.rounds else []


def decoded_tokens(record: SampleRecord) -> int:
    """Output tokens that rounds made: all but the first, which belongs to prefill."""
    return max(record.num_output - 1, 0)


def decode_seconds(record: SampleRecord) -> float | None:
    """The sample's share of the decode time, so that the shares of all samples add up to the time that passed.

    Of a batch that begins and ends together each has an equal share. Beside others that come and go, each has 1/n of
    every moment in which n samples were decoding.
    """
    if record.decode_s is None or not decoded_tokens(record):
        return None
    return record.decode_s / record.batch_size if record.decode_share_s is None else record.decode_share_s


def _pooled(counted: list[SampleRecord]) -> float | None:
    total = sum(num_rounds(record) or 0 for record in counted)
    return sum(num_emitted(record) for record in counted) / total if total else None


def _acceptance(ok: list[SampleRecord]) -> dict[str, Any]:
    counted = [record for record in ok if num_rounds(record)]
    if not counted:
        return {}
    total = sum(num_rounds(record) or 0 for record in counted)
    lengths = [length for record in counted if (length := acceptance_length(record)) is not None]
    found: dict[str, Any] = {
        "acceptance_length/pooled": sum(num_emitted(record) for record in counted) / total,
        "acceptance_length/sample_mean": sum(lengths) / len(lengths),
        "acceptance_length/without_repetition": _pooled([r for r in counted if not r.flags.get("repetition")]),
    }
    nodes = _num_nodes(counted)
    if nodes is not None:
        found["acceptance/nodes_per_round"] = nodes / total
    histograms = [shown for record in counted if (shown := accepted_histogram(record)) is not None]
    if len(histograms) < len(counted):
        return found
    histogram = np.zeros(max(map(len, histograms)), np.int64)
    for shown in histograms:
        histogram[: len(shown)] += shown
    histogram = histogram[: int(np.flatnonzero(histogram).max()) + 1]
    assert histogram.sum() == total
    accepted = int(histogram @ np.arange(len(histogram)))
    deepest = max(len(histogram) - 1, 1 if nodes else 0)
    per_position = [float(histogram[i:].sum() / total) for i in range(1, deepest + 1)]
    return {
        **found,
        "acceptance/mean_accepted": accepted / total,
        "acceptance/per_position": per_position or None,
        "acceptance/histogram": [int(count) for count in histogram],
        "acceptance/draft_rate": accepted / nodes if nodes else None,
    }


def _num_nodes(counted: list[SampleRecord]) -> int | None:
    """Draft nodes of all rounds; None where one of the servers asked does not count them."""
    nodes = [r.totals.num_nodes if r.totals else sum(x.num_nodes for x in r.rounds) for r in counted]
    return None if None in nodes else sum(n for n in nodes if n is not None)


def _by_context(rounds: list[Round]) -> dict[str, Any]:
    found = {}
    for (low, high), bucket in context_buckets(rounds).items():
        found[f"acceptance_length/context/{low}-{high}"] = sum(r.num_emitted for r in bucket) / len(bucket)
        found[f"rounds/context/{low}-{high}"] = len(bucket)
    return found


def _expected(rounds: list[Round]) -> dict[str, Any]:
    """Expected against accepted drafts on the same rounds of the profile pass.

    Given its context a round's accepts have the recorded mean and variance, so the differences are a martingale and
    their sum over its standard deviation is near a standard normal when the verifier is exact.
    """
    known = [r for r in rounds if r.expected_accepted is not None]
    if not known:
        return {}
    expected, measured = sum(r.expected_accepted or 0.0 for r in known), sum(r.num_accepted for r in known)
    variances = [r.expected_variance for r in known]
    variance = sum(v for v in variances if v is not None) if None not in variances else 0.0
    return {
        "acceptance/expected_accepted": expected / len(known),
        "acceptance/expected_measured": measured / len(known),
        "acceptance/expected_rounds": len(known),
        "acceptance/expected_z": (measured - expected) / math.sqrt(variance) if variance > 0 else None,
    }


def _speed(ok: list[SampleRecord]) -> dict[str, Any]:
    """Samples that fell into a loop are in no headline: drafting a loop is easy, so they are fast for a bad reason."""
    everything = [(decoded_tokens(r), seconds, r) for r in ok if (seconds := decode_seconds(r))]
    timed = [(n, s, r) for n, s, r in everything if not r.flags.get("repetition")]
    found: dict[str, Any] = {}
    for name, some in (("decode_tokens_per_s", timed), ("decode_tokens_per_s_with_repetition", everything)):
        if some:
            found[f"throughput/{name}"] = sum(n for n, _, _ in some) / sum(s for _, s, _ in some)
    if everything:
        found["throughput/n_samples"] = len(timed)
        found["throughput/n_repetition"] = len(everything) - len(timed)
    waits = {
        "ttft_s": [r.ttft_s for r in ok if r.ttft_s is not None],  # prefill does not know how the answer will go
        "tpot_s": [(r.decode_s or 0.0) / n for n, _, r in timed],  # as the sample's reader waits: not shared
    }
    for name, values in waits.items():
        for q in QUANTILES if values else ():
            found[f"latency/{name}_p{q}"] = float(np.percentile(values, q))
    return found


def _stages(profile: list[SampleRecord]) -> dict[str, Any]:
    staged = [r for r in profile if r.status == "ok" and r.stage_s is not None and r.rounds]
    count = sum(len(r.rounds) for r in staged)
    names = sorted({name for r in staged for name in r.stage_s or {}})
    return {
        f"stage/{name}_s_per_round": sum((r.stage_s or {}).get(name, 0.0) for r in staged) / count for name in names
    }


def _quality(ok: list[SampleRecord]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if interval := score_interval(ok):
        mean, low, high, n = interval
        found = {"quality/score": mean, "quality/n_samples": n}
        if not math.isnan(low):
            found |= {"quality/score_low": low, "quality/score_high": high}
    found["quality/n_scored"] = sum(r.score is not None for r in ok)
    found["quality/n_unscored"] = sum(r.score is None for r in ok)
    return found


def _target_logprob(records: list[SampleRecord]) -> dict[str, Any]:
    """Weighted by tokens, over the samples for which it was computed, each counted once."""
    known = {r.key: (r.target_logprob, len(r.output_ids)) for r in records if r.target_logprob is not None}
    tokens = sum(n for _, n in known.values())
    if not tokens:
        return {}
    mean = sum(logprob * n for logprob, n in known.values()) / tokens
    return {"quality/target_logprob": mean, "quality/n_target_logprob": len(known)}


def _rates(records: list[SampleRecord], ok: list[SampleRecord]) -> dict[str, Any]:
    found: dict[str, Any] = {"rate/error": sum(r.status == "error" for r in records) / len(records)} if records else {}
    cached = [(r.cached_tokens, r.prompt_tokens) for r in ok if r.cached_tokens is not None]
    if sum(prompt for _, prompt in cached):
        found["rate/prompt_cached"] = sum(hit for hit, _ in cached) / sum(prompt for _, prompt in cached)
    for flag in FLAGS:
        seen = [r.flags[flag] for r in ok if flag in r.flags]
        found[f"rate/{flag}"] = sum(seen) / len(seen) if seen else None
    return found
