"""Counts out of SGLang's events against a simulation of its scheduler, which shares no code with the reader.

The simulation follows SGLang 0.5.17: `_resolve_spec_v2_tokens` counts a round whole, `update_finish_state` looks at the cap
before it looks for stop ids (sgl-project/sglang#31599), the output streamer cuts behind the finish.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engines.http_stream import ServerError
from harness.engines.sglang_counts import Counted
from harness.records import SampleRecord, Totals

STOP, WIDTH, PROMPT = 7, 6, 11


def simulate(accepts, tokens, cap, joins, retract_at=None):
    """Events, and the rounds as they were. tokens: an endless supply; joins: whether event i waits for the next."""
    out, verified, correct, histogram = [next(tokens)], 0, 0, []
    reason = {"type": "length"} if cap <= 1 else {"type": "stop", "matched": STOP} if out[0] == STOP else None
    steps = [(list(out), 0, 0, [])]
    truth = []
    accepts = iter(accepts)
    while reason is None:
        if retract_at is not None and verified == retract_at:
            retract_at = None
            out.append(next(tokens))  # of the second prefill
        else:
            accepted = next(accepts)
            before = len(out)
            out += [next(tokens) for _ in range(accepted + 1)]
            verified, correct = verified + 1, correct + accepted
            histogram += [0] * (accepted + 1 - len(histogram))
            histogram[accepted] += 1
            truth.append((accepted, before))
        new = out[len(steps[-1][0]) :]
        if len(out) >= cap:
            reason, out = {"type": "length", "length": cap}, out[:cap]
        elif STOP in new:
            reason, out = {"type": "stop", "matched": STOP}, out[: len(steps[-1][0]) + new.index(STOP) + 1]
        steps.append((list(out), verified, correct, list(histogram)))
    events, sent = [], 0
    for place, (ids, count, accepted, shown) in enumerate(steps):
        last = place == len(steps) - 1
        if not last and next(joins, False):
            continue
        meta = {"completion_tokens": len(ids), "finish_reason": reason if last else None, "cached_tokens": 3}
        if count and last:
            meta |= {
                "spec_verify_ct": count,
                "spec_num_correct_drafts": accepted,
                "spec_num_proposed_drafts": count * (WIDTH - 1),
                "spec_correct_drafts_histogram": shown,
            }
        events.append({"text": "", "output_ids": ids[sent:], "meta_info": meta})
        sent = len(ids)
    return events, truth, out


def supply(stop_at):
    place = 0
    while True:
        yield STOP if place == stop_at else 100 + place
        place += 1


def read(events, speculates=True):
    counted = Counted(PROMPT, speculates)
    for event in events:
        counted.add(event)
    return counted.result([STOP])


def record(result) -> SampleRecord:
    return SampleRecord(task="t", sample_id="s", repeat=0, status="ok", prompt_tokens=PROMPT, **result)


RANDOM = dict(
    accepts=st.lists(st.integers(0, WIDTH - 1), min_size=40, max_size=40),
    stop_at=st.integers(0, 60),
    cap=st.integers(1, 40),
)


@settings(max_examples=300, deadline=None)
@given(**RANDOM, joins=st.lists(st.booleans(), max_size=40))
def test_rounds_or_totals_are_those_of_the_scheduler(accepts, stop_at, cap, joins):
    events, truth, _ = simulate(accepts, supply(stop_at), cap, iter(joins))
    found = record(read(events))
    found.check()
    size = min(cap, stop_at + 1)
    assert found.output_ids == [STOP if t == stop_at else 100 + t for t in range(size)]
    assert found.finish_reason == ("stop" if stop_at < cap else "length")
    assert found.cached_tokens == 3
    if found.totals is None:
        assert [(r.num_accepted, r.context_length - PROMPT + 1) for r in found.rounds] == truth
        assert 1 + sum(r.num_emitted for r in found.rounds) == size
        assert {r.num_nodes for r in found.rounds} <= {WIDTH - 1}
    else:
        assert any(joins)
        totals = found.totals
        assert totals.num_rounds == len(truth)
        assert totals.num_accepted == sum(accepted for accepted, _ in truth)
        assert totals.num_nodes == len(truth) * (WIDTH - 1)
        assert totals.histogram == [sum(accepted == i for accepted, _ in truth) for i in range(len(totals.histogram))]
    assert (found.totals is None) == (len(events) == 1 + len(truth) and len(events[0]["output_ids"]) == 1)
    if not any(joins):
        assert found.totals is None


def test_a_stop_id_before_the_cap_in_one_round_ends_the_sample():
    """sgl-project/sglang#31599: accepted [10, 11, STOP, 20, 21, 22], cap 5: SGLang goes on to the cap."""
    tokens = iter([9, 10, 11, STOP, 20, 21, 22])
    events, _, sent = simulate([5], tokens, 6, iter(()))
    assert sent == [9, 10, 11, STOP, 20, 21]
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "length"
    result = read(events)
    assert (result["output_ids"], result["finish_reason"]) == ([9, 10, 11, STOP], "stop")
    [only] = result["rounds"]
    assert (only.num_accepted, only.num_emitted) == (5, 3)


def test_a_second_prefill_gives_a_token_that_no_round_made():
    events, _, _ = simulate([2, 1, 0, 3], supply(None), 10, iter(()), retract_at=2)
    events[-1]["meta_info"]["num_retractions"] = 1
    found = record(read(events))
    found.check()
    assert found.totals == Totals(
        num_output=10, num_rounds=4, num_accepted=6, num_nodes=20, histogram=[1, 1, 1, 1], num_prefills=2
    )


@pytest.mark.parametrize("joins", [[], [True, False, True]])
def test_without_speculation_each_token_is_a_round(joins):
    events, _, _ = simulate([0] * 9, supply(None), 5, iter(joins))
    for event in events:
        event["meta_info"] = {k: v for k, v in event["meta_info"].items() if not k.startswith("spec")}
    result = read(events, speculates=False)
    assert [(r.num_accepted, r.num_emitted, r.num_nodes, r.context_length) for r in result["rounds"]] == [
        (0, 1, 0, PROMPT + t) for t in range(4)
    ]


def changed(place, **meta):
    events, _, _ = simulate([2, 1, 0, 3], supply(None), 8, iter(()))
    events[place]["meta_info"] |= meta
    return events


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (changed(-1, spec_num_correct_drafts=99), "contradict each other: .*accepted"),
        (changed(-1, spec_correct_drafts_histogram=[2, 0, 1, 1]), "contradict each other: .*histogram"),
        (changed(-1, spec_correct_drafts_histogram=[2, 0, 0, 2]), "contradict each other: .*histogram"),
        (changed(-1, spec_verify_ct=9), "contradict each other: .*rounds"),
        (changed(-1, finish_reason={"type": "abort", "message": "out of memory"}), "ended the sample: out of memory"),
        (changed(-1, finish_reason=None), "ended the sample: no end"),
        (changed(-1, finish_reason={"type": "stop", "matched": 5}), "stopped at 5, which is no end token"),
        (changed(1, completion_tokens=1), "--incremental-streaming-output"),
        ([{"text": "x"}], "lacks 'output_ids'"),
        ([{"output_ids": [1], "meta_info": {}}], "lacks 'completion_tokens'"),
    ],
)
def test_what_does_not_add_up_is_an_error(events, said):
    with pytest.raises(ServerError, match=said):
        read(events)


def test_totals_that_contradict_themselves_are_an_error():
    events, _, _ = simulate([2, 1, 0, 3], supply(None), 8, iter([True, True, True, True]))
    read(events)
    events[-1]["meta_info"]["spec_correct_drafts_histogram"] = [0, 0, 0, 4]
    with pytest.raises(ServerError, match="contradict each other"):
        read(events)
