"""Every metric against counts done by hand or with numpy, and what is undefined is absent."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.intervals import score_interval, wilson
from harness.metrics import quality_flags, sample_scalars, summarize
from harness.records import Round, RunManifest, SampleRecord, Totals

MANIFEST = RunManifest(
    id="x", name="n", command=[], asked={"speculative": {"name": "ddtree"}}, measured={"peak_memory_bytes": 2**30}
)


def record(sample_id: str, accepted: list[int], cut: int = 0, nodes: int = 15, **values: Any) -> SampleRecord:
    """Rounds that accepted so many drafts; the last one emits `cut` tokens fewer than it could."""
    context, rounds = 10, []
    for place, count in enumerate(accepted):
        emitted = count + 1 - (cut if place == len(accepted) - 1 else 0)
        rounds.append(Round(num_accepted=count, num_emitted=emitted, num_nodes=nodes, context_length=context))
        context += emitted
    ids = list(range(1 + sum(r.num_emitted for r in rounds)))
    given = {"output_ids": ids, "rounds": rounds, "status": "ok", "decode_s": 1.0, "ttft_s": 0.1}
    return SampleRecord(task="t", sample_id=sample_id, repeat=0, **{**given, **values})


def test_acceptance_by_hand() -> None:
    # Rounds accept 2, 0, 3 (cut by 2) and 1: emitted 3, 1, 2 and 2.
    found = summarize([record("a", [2, 0, 3], cut=2), record("b", [1])], [], MANIFEST)
    assert found["acceptance_length/pooled"] == 8 / 4
    assert found["acceptance_length/sample_mean"] == (6 / 3 + 2) / 2
    assert found["acceptance/histogram"] == [1, 1, 1, 1]
    assert found["acceptance/per_position"] == [3 / 4, 2 / 4, 1 / 4]
    assert found["acceptance/mean_accepted"] == 6 / 4
    assert found["acceptance/draft_rate"] == 6 / 60
    assert found["acceptance/nodes_per_round"] == 15
    assert found["tokens/output"] == 10
    assert found["memory/peak_bytes"] == 2**30


def test_fifteen_of_fifteen_is_length_sixteen_and_rate_one() -> None:
    """vllm-project/vllm#17908: the bonus token counts in the length and never in the rate."""
    found = summarize([record("a", [15, 15])], [], MANIFEST)
    assert found["acceptance_length/pooled"] == 16
    assert found["acceptance/draft_rate"] == 1
    assert found["acceptance/per_position"] == [1.0] * 15


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=6), min_size=1, max_size=4))
def test_identities_of_the_acceptance_metrics(samples: list[list[int]]) -> None:
    """sgl-project/sglang#33518, speculators#1096: mass, mean and the sum of per-position acceptance agree."""
    found = summarize([record(str(i), accepted) for i, accepted in enumerate(samples)], [], MANIFEST)
    histogram = np.array(found["acceptance/histogram"])
    assert histogram.sum() == found["rounds/total"] == sum(len(s) for s in samples)
    mean = (histogram * np.arange(len(histogram))).sum() / histogram.sum()
    assert found["acceptance/mean_accepted"] == pytest.approx(mean)
    assert found["acceptance_length/pooled"] == pytest.approx(1 + sum(found["acceptance/per_position"]))
    # Counters of a server give the same figure: (completion tokens - 1) / verify rounds.
    completions = [1 + sum(a + 1 for a in s) for s in samples]
    assert found["acceptance_length/pooled"] == pytest.approx(
        sum(c - 1 for c in completions) / sum(len(s) for s in samples)
    )


def test_figures_belong_to_the_records_and_to_nothing_that_ran_before() -> None:
    """sgl-project/sglang#10846: no counter lives on, so order and restarts change nothing."""
    samples = [record("a", [2, 0, 3], cut=1), record("b", [1]), record("c", [4, 4])]
    assert summarize(samples, [], MANIFEST) == summarize(samples[::-1], [], MANIFEST)
    first = summarize(samples[:1], [], MANIFEST)
    summarize(samples[1:], [], MANIFEST)
    assert summarize(samples[:1], [], MANIFEST) == first


def test_what_is_undefined_is_absent() -> None:
    stopped = record("a", [], output_ids=[0], decode_s=None, ttft_s=None)
    found = summarize([stopped], [], MANIFEST)
    assert not [name for name in found if name.startswith(("acceptance", "latency", "throughput", "stage"))]
    assert "quality/score" not in found
    assert found["quality/n_unscored"] == 1
    assert "rate/repetition" not in found
    assert None not in found.values()
    assert summarize([], [], MANIFEST)["samples/records"] == 0


def test_an_autoregressive_run_has_length_one_and_no_draft_metrics() -> None:
    plain = RunManifest(id="x", name="n", command=[], asked={"speculative": {"name": "autoregressive"}})
    found = summarize([record("a", [0, 0, 0], nodes=0)], [], plain)
    assert found["acceptance_length/pooled"] == 1
    assert "acceptance/draft_rate" not in found
    assert "acceptance/per_position" not in found
    assert found["warnings"] == []


def test_a_broken_record_stops_the_summary() -> None:
    with pytest.raises(ValueError, match="output tokens"):
        summarize([record("a", [1], output_ids=[1])], [], MANIFEST)


def test_zero_acceptance_and_a_silent_drafter_are_flagged() -> None:
    assert "zero acceptance" in summarize([record("a", [0, 0])], [], MANIFEST)["warnings"][0]
    assert "drafted nothing" in summarize([record("a", [0, 0], nodes=0)], [], MANIFEST)["warnings"][0]
    assert summarize([record("a", [0, 1])], [], MANIFEST)["warnings"] == []


def test_shared_decode_time_counts_once() -> None:
    """Four samples decoded together in 2 s gave 4 * 10 tokens: 20 tokens/s, and 0.2 s a token for each reader."""
    together = [record(str(i), [9], decode_s=2.0, batch_size=4) for i in range(4)]
    found = summarize(together, [], MANIFEST)
    assert found["throughput/decode_tokens_per_s"] == pytest.approx(20)
    assert found["latency/tpot_s_p50"] == pytest.approx(0.2)
    assert sample_scalars(together[0])["sample/decode_tokens_per_s"] == pytest.approx(20)


def test_speed_is_total_tokens_over_total_time_and_quantiles_are_linear() -> None:
    samples = [record(str(i), [9], decode_s=float(i), ttft_s=i / 10) for i in range(1, 11)]
    found = summarize(samples, [], MANIFEST)
    assert found["throughput/decode_tokens_per_s"] == pytest.approx(100 / 55)  # not the mean of rates, 2.93
    assert found["latency/ttft_s_p50"] == pytest.approx(0.55)
    assert found["latency/ttft_s_p90"] == pytest.approx(0.91)
    assert found["latency/tpot_s_p99"] == pytest.approx(0.991)


def test_stages_and_expected_acceptance_come_from_the_profile_pass_only() -> None:
    rounds = [
        Round(
            num_accepted=a,
            num_emitted=a + 1,
            num_nodes=4,
            context_length=9,
            expected_accepted=e,
            expected_variance=v,
        )
        for a, e, v in ((2, 1.5, 0.5), (0, 1.0, 0.75), (3, 2.0, 1.0))
    ]
    slow = record(
        "p", [], rounds=rounds, output_ids=list(range(9)), stage_s={"draft": 0.3, "verify": 0.6}, decode_s=99.0
    )
    fast = record("p", [1], stage_s={"draft": 100.0})
    found = summarize([fast], [slow], MANIFEST)
    assert found["stage/draft_s_per_round"] == pytest.approx(0.1)
    assert found["stage/verify_s_per_round"] == pytest.approx(0.2)
    assert found["throughput/decode_tokens_per_s"] == pytest.approx(2)
    assert found["acceptance/expected_accepted"] == pytest.approx(1.5)
    assert found["acceptance/expected_measured"] == pytest.approx(5 / 3)
    assert found["acceptance/expected_z"] == pytest.approx((5 - 4.5) / math.sqrt(2.25))


def expecting(accepts: np.ndarray, p: float) -> SampleRecord:
    rounds = [
        Round(
            num_accepted=int(a),
            num_emitted=int(a) + 1,
            num_nodes=1,
            context_length=9,
            expected_accepted=p,
            expected_variance=p * (1 - p),
        )
        for a in accepts
    ]
    return record("p", [], rounds=rounds, output_ids=list(range(1 + int(accepts.sum()) + len(accepts))))


def test_a_verifier_that_accepts_too_much_is_warned_of() -> None:
    """4,000 rounds at p = 0.5; the alarm is at |z| > 4, false-alarm level 6e-5, and the seed is fixed."""
    coins = np.random.default_rng(0).random(4000)
    honest, biased = (summarize([], [expecting(coins < p, 0.5)], MANIFEST) for p in (0.5, 0.56))
    assert honest["warnings"] == []
    assert "is the verifier exact" in biased["warnings"][0]


def test_acceptance_by_context_and_the_cliff() -> None:
    """buun-llama-cpp#32: acceptance falls off past the drafter's trained context."""

    def rounds(accepted: int, context: int) -> list[Round]:
        one = Round(num_accepted=accepted, num_emitted=accepted + 1, num_nodes=9, context_length=context)
        return [one] * 50

    def run(last: int) -> dict[str, Any]:
        every = rounds(4, 0) + rounds(4, 127) + rounds(4, 128) + rounds(last, 256) + rounds(last, 511)
        ids = list(range(1 + sum(r.num_emitted for r in every)))
        return summarize([record("a", [], rounds=every, output_ids=ids)], [], MANIFEST)

    found = run(1)
    assert found["acceptance_length/context/0-127"] == 5
    assert found["rounds/context/0-127"] == 100
    assert found["rounds/context/128-255"] == 50
    assert found["acceptance_length/context/256-511"] == 2
    assert "acceptance falls at context 256-511" in found["warnings"][0]
    assert run(3)["warnings"] == []


def test_unscored_is_not_zero_and_an_error_is_not_a_score() -> None:
    failed = SampleRecord(task="t", sample_id="e", repeat=0, status="error", error="x")
    found = summarize([record("a", [1], score=1.0), record("b", [1], score=None), failed], [], MANIFEST)
    assert found["quality/score"] == 1
    assert (found["quality/n_scored"], found["quality/n_unscored"]) == (1, 1)
    assert found["rate/error"] == 1 / 3


def test_rates_and_log_probability() -> None:
    flags = {"repetition": True, "truncated": False, "empty": False}
    samples = [
        record("a", [1], flags=flags, target_logprob=-1.0),
        record("b", [5], flags={**flags, "repetition": False}, target_logprob=-2.0),
    ]
    found = summarize(samples, [], MANIFEST)
    assert (found["rate/repetition"], found["rate/truncated"], found["rate/empty"]) == (0.5, 0, 0)
    assert found["quality/target_logprob"] == pytest.approx((-1 * 3 - 2 * 7) / 10)


@pytest.mark.parametrize(("k", "n"), [(0, 8), (3, 8), (8, 8), (130, 164)])
def test_wilson_against_scipy(k: int, n: int) -> None:
    from scipy.stats import binomtest

    expected = binomtest(k, n).proportion_ci(0.95, "wilson")
    assert wilson(k / n, n) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_repeats_of_a_sample_are_no_new_samples() -> None:
    once = [record(str(i), [1], score=float(i % 2)) for i in range(8)]
    thrice = [record(r.sample_id, [1], score=r.score) for r in once for _ in range(3)]
    assert score_interval(once) == score_interval(thrice)


def test_a_graded_score_gets_a_bootstrap_interval() -> None:
    scores = np.random.default_rng(1).random(200)
    mean, low, high, n = score_interval([record(str(i), [1], score=float(s)) for i, s in enumerate(scores)])
    half = 1.96 * scores.std() / math.sqrt(200)
    assert (mean, n) == (pytest.approx(scores.mean()), 200)
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=0.1 * half)
    assert "quality/score_low" not in summarize([record("a", [1], score=0.5)], [], MANIFEST)


def test_the_summary_is_json_and_finite() -> None:
    found = summarize([record("a", [3, 1], score=1.0, flags={"repetition": False})], [], MANIFEST)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


LOOP = {"repetition": True, "truncated": True, "empty": False, "open_reasoning": False}
SOUND = {"repetition": False, "truncated": False, "empty": False, "open_reasoning": False}


def test_samples_that_loop_are_in_no_speed_headline() -> None:
    """9 tokens in 9 s and 9 in 3 s are sound; the loop's 99 in 1 s would flatter every one of these figures."""
    sound = [record("a", [8], decode_s=9.0, flags=SOUND), record("b", [8], decode_s=3.0, flags=SOUND)]
    found = summarize([*sound, record("c", [98], nodes=99, decode_s=1.0, flags=LOOP)], [], MANIFEST)
    assert found["throughput/decode_tokens_per_s"] == pytest.approx(18 / 12)
    assert found["throughput/decode_tokens_per_s_with_repetition"] == pytest.approx(117 / 13)
    assert (found["throughput/n_samples"], found["throughput/n_repetition"]) == (2, 1)
    assert found["latency/tpot_s_p50"] == pytest.approx((1 + 1 / 3) / 2)
    assert found["acceptance_length/without_repetition"] == 9
    assert found["acceptance_length/pooled"] == pytest.approx(117 / 3)
    assert found["rate/repetition"] == found["rate/truncated"] == pytest.approx(1 / 3)
    assert found["rate/empty"] == found["rate/open_reasoning"] == 0


def test_only_loops_give_no_headline_and_say_so() -> None:
    found = summarize([record("c", [9], flags=LOOP)], [], MANIFEST)
    assert "throughput/decode_tokens_per_s" not in found
    assert "acceptance_length/without_repetition" not in found
    assert found["throughput/decode_tokens_per_s_with_repetition"] == pytest.approx(10)
    assert any("fell into a loop" in warning for warning in found["warnings"])


def test_a_failed_grader_is_no_zero() -> None:
    graded = [record("a", [1], score=1.0, flags={**SOUND, "grader_error": False})]
    failed = [record("b", [1], score=None, flags={**SOUND, "grader_error": True})]
    found = summarize(graded + failed, [], MANIFEST)
    assert found["quality/score"] == 1.0
    assert (found["quality/n_scored"], found["quality/n_unscored"]) == (1, 1)
    assert found["rate/grader_error"] == 0.5
    assert any("could not be graded" in warning for warning in found["warnings"])


def as_totals(one: SampleRecord, ids: bool = True) -> SampleRecord:
    """What a server that does not tell rounds apart would have counted."""
    accepted = [r.num_accepted for r in one.rounds]
    totals = Totals(
        num_output=len(one.output_ids),
        num_rounds=len(accepted),
        num_accepted=sum(accepted),
        num_nodes=sum(r.num_nodes for r in one.rounds),
        histogram=[accepted.count(i) for i in range(max(accepted, default=-1) + 1)],
    )
    return replace(one, rounds=[], totals=totals, output_ids=one.output_ids if ids else [])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 15), max_size=6), min_size=1, max_size=4), st.integers(0, 3), st.integers(0, 15)
)
def test_totals_give_the_same_metrics_as_the_rounds_they_sum_up(samples, cut, which) -> None:
    records = [
        record(str(i), accepted, cut=min(cut, accepted[-1]) if accepted else 0) for i, accepted in enumerate(samples)
    ]
    mixed = [as_totals(r, ids=bool(i % 2)) if which >> i & 1 else r for i, r in enumerate(records)]
    expected, found = (summarize(some, [], MANIFEST) for some in (records, mixed))
    by_context = {name for name in expected if "/context/" in name}
    for name in set(expected) - by_context - {"warnings"}:
        assert found[name] == pytest.approx(expected[name]), name
    assert {name for name in found if "/context/" not in name} == set(expected) - by_context
    for one, other in zip(records, mixed, strict=True):
        assert sample_scalars(one) == pytest.approx(sample_scalars(other))


def test_a_server_that_counts_no_rounds_has_no_acceptance_metric_and_a_warning() -> None:
    silent = record("a", [], output_ids=[], totals=Totals(num_output=9))
    found = summarize([silent], [], MANIFEST)
    assert found["tokens/output"] == 9
    assert found["throughput/decode_tokens_per_s"] == 8
    assert not [name for name in found if name.startswith(("acceptance", "rounds"))]
    assert "the server counts no rounds" in found["warnings"][0]
    plain = replace(MANIFEST, asked={"speculative": {"name": "autoregressive"}})
    assert summarize([silent], [], plain)["warnings"] == []
    # One such sample among others: the sum of rounds would be that of a part, so there is none.
    assert "rounds/total" not in summarize([silent, record("b", [1])], [], MANIFEST)


def test_a_server_without_a_histogram_has_a_length_and_no_distribution() -> None:
    found = summarize([record("a", [], output_ids=[], totals=Totals(num_output=9, num_rounds=4))], [], MANIFEST)
    assert found["acceptance_length/pooled"] == 2
    assert not {"acceptance/histogram", "acceptance/mean_accepted", "acceptance/nodes_per_round"} & set(found)


def test_what_an_engine_cannot_show_is_listed_unless_it_is_there() -> None:
    manifest = replace(MANIFEST, measured={"absent": {"stage/": "not timed", "acceptance": "not counted"}})
    found = summarize([record("a", [1])], [], manifest)
    assert found["absent"] == {"stage/": "not timed"}
    assert "absent" not in summarize([record("a", [1])], [], MANIFEST)


def test_shares_of_samples_that_came_and_went_add_up() -> None:
    """Two samples of 10 tokens each in 3 s together, each with a wall time of 2 s."""
    samples = [record(str(i), [9], decode_s=2.0, batch_size=2, decode_share_s=1.5) for i in range(2)]
    found = summarize(samples, [], MANIFEST)
    assert found["throughput/decode_tokens_per_s"] == pytest.approx(20 / 3)
    assert found["latency/tpot_s_p50"] == pytest.approx(0.2)


def test_prefix_cache_hits_are_shown() -> None:
    """sgl-project/sglang#10846: hits move TTFT, so they are in the record."""
    samples = [record(str(i), [1], prompt_tokens=10, cached_tokens=hit) for i, hit in enumerate((0, 5))]
    assert summarize(samples, [], MANIFEST)["rate/prompt_cached"] == 0.25
    assert "rate/prompt_cached" not in summarize([record("a", [1], prompt_tokens=10)], [], MANIFEST)


def test_without_ids_no_loop_is_looked_for() -> None:
    assert "repetition" not in quality_flags([], "so so so", "stop")
    assert quality_flags([], "", "stop")["repetition"] is False
