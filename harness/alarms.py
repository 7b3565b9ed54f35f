"""What a reader must know before trusting a run's metrics: what is missing, and what looks wrong."""

from collections import defaultdict
from typing import Any

from harness.records import Round, RunManifest, SampleRecord

MIN_BUCKET_ROUNDS = 50  # fewer rounds in a context bucket say nothing about a cliff
CLIFF = 0.5  # a bucket that accepts less than this share of what shorter contexts accept is a cliff
Z_ALARM = 4.0  # two-sided false-alarm level 6e-5 a run


def warnings(found: dict[str, Any], ok: list[SampleRecord], manifest: RunManifest) -> list[str]:
    """found: the metrics; ok: the timed records without errors."""
    rounds = [r for record in ok for r in record.rounds]
    said = []
    if found.get("throughput/n_samples") == 0:
        said.append("every timed sample fell into a loop: there is no speed figure without repetition")
    if found.get("rate/grader_error"):
        said.append(
            f"{found['rate/grader_error']:.1%} of the answers could not be graded (score_detail says why): they are "
            "unscored, and `python -m harness.rescore RUN` grades them without decoding"
        )
    mode = manifest.asked.get("speculative", {}).get("name")
    total, nodes = found.get("rounds/total"), found.get("acceptance/nodes_per_round")
    if total and nodes == 0 and mode not in (None, "autoregressive"):
        said.append(f"mode {mode} drafted nothing in {total} rounds: no drafter was at work")
    elif total and nodes and found.get("acceptance/mean_accepted") == 0:
        said.append(f"zero acceptance: no draft was accepted in {total} rounds, drafter and target do not fit")
    elif not total and mode not in (None, "autoregressive") and any(r.num_output > 1 for r in ok):
        said.append(f"the server counts no rounds: whether mode {mode} was at work there, these records do not say")
    z = found.get("acceptance/expected_z")
    if z is not None and abs(z) > Z_ALARM:
        said.append(f"measured acceptance is {z:+.1f} standard deviations from the expected: is the verifier exact?")
    shorter: list[Round] = []
    for (low, high), bucket in context_buckets(rounds).items():
        if min(len(bucket), len(shorter)) >= MIN_BUCKET_ROUNDS:
            here, before = (sum(r.num_accepted for r in some) / len(some) for some in (bucket, shorter))
            if here < CLIFF * before:
                said.append(
                    f"acceptance falls at context {low}-{high}: {here:.2f} accepted drafts a round, {before:.2f} before"
                )
        shorter = shorter + bucket
    return said


def absent(manifest: RunManifest, found: dict[str, Any]) -> dict[str, Any]:
    """What the engine says that it cannot show, with the reason: a reader must not take a gap for a zero."""
    said = manifest.measured.get("absent") or {}
    missing = {name: why for name, why in said.items() if not any(metric.startswith(name) for metric in found)}
    return {"absent": missing} if missing else {}


def context_buckets(rounds: list[Round]) -> dict[tuple[int, int], list[Round]]:
    """Rounds by context length, in octaves from 0-127, 128-255, 256-511 on; both ends belong to the bucket."""
    buckets: dict[tuple[int, int], list[Round]] = defaultdict(list)
    for r in rounds:
        octave = max(r.context_length, 1).bit_length() - 1
        buckets[(0, 127) if octave < 7 else (1 << octave, (2 << octave) - 1)].append(r)
    return dict(sorted(buckets.items()))
