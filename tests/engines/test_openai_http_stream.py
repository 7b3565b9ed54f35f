"""The streaming client that the server engines share: whatever a server does, a sample ends, and nothing hangs."""

import asyncio
import json
import time
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engines.http_stream import BusyClock, ServerError, Stream, Watch, concurrently
from tests.engines.served import DONE, serving


def read(url: str, timeout_s: float = 5.0) -> list:
    async def all_events():
        stream = Stream(url, timeout_s, {}, 1)
        async with stream.client, aclosing(stream.events("/x", {"a": 1})) as events:
            return [event async for event in events]

    return asyncio.run(all_events())


def test_events_come_in_order_whole_and_without_comments():
    """U+2028 and form feed are line ends to Python's splitlines and not to the protocol."""
    odd = {"n": 2, "text": "é\u2028\x0c\x85 漢字"}
    raw = json.dumps(odd, ensure_ascii=False)
    torn = [f"data: {raw[:9]}", 0.02, f"{raw[9:]}\r\n\r\n"]
    with serving(lambda path, body: [{"n": 1}, ": ping\n\n", "event: x\n", odd, *torn, DONE]) as served:
        assert read(served.url) == [{"n": 1}, odd, odd]
        assert served.bodies == [("/x", {"a": 1})]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([{"n": 1}], r"ended before its \[DONE\]"),
        ([{"n": 1}, None], r"ended before its \[DONE\]"),
        ([], r"ended before its \[DONE\]"),
        (["data: {torn\n\n"], "not JSON"),
        (["data: [1]\n\n"], "not an object"),
        ([{"error": {"message": "out of memory", "code": 500}}, DONE], "reports: out of memory"),
        ([{"error": "plain words"}, DONE], "reports: plain words"),
        ((400, {"error": {"message": "top_k must be"}}), "refused with status 400: top_k must be"),
        ((503, "no"), "refused with status 503"),
        ([{"n": 1}, 2.0, DONE], "silent for too long"),
    ],
)
def test_what_a_server_can_do_wrong_is_said(answer, said):
    with serving(lambda path, body: answer) as served, pytest.raises(ServerError, match=said):
        read(served.url, timeout_s=0.3)


def test_a_server_that_is_not_there_is_said():
    with serving(lambda path, body: []) as served:
        url = served.url
    with pytest.raises(ServerError, match="the connection failed"):
        read(url)


def run_all(count: int, concurrency: int, url: str):
    stream = Stream(url, 5.0, {}, concurrency)

    async def one(item):
        async with aclosing(stream.events("/x", {"item": item})) as events:
            return item, [event async for event in events]

    return concurrently(list(range(count)), one, concurrency, stream.client.aclose)


def test_so_many_at_a_time_and_no_more():
    with serving(lambda path, body: [{"n": body["item"]}, 0.05, DONE]) as served:
        results = dict(run_all(9, 3, served.url))
        assert results == {n: [{"n": n}] for n in range(9)}
        assert served.most_in_flight == 3


def test_a_reader_that_leaves_hangs_up_on_the_server():
    def answer(path, body):
        yield {"n": 0}
        yield from ([0.01, {"n": 1}] * 500 if body["item"] else [])
        yield DONE

    with serving(answer) as served:
        for item, _ in run_all(4, 2, served.url):
            assert item == 0
            break
        deadline = time.monotonic() + 5
        while served.in_flight and time.monotonic() < deadline:
            time.sleep(0.01)
        assert served.in_flight == 0
        assert served.hung_up >= 1


def test_what_the_work_raises_reaches_the_reader():
    async def broken(item):
        raise RuntimeError("ours")

    async def close():
        pass

    with pytest.raises(RuntimeError, match="ours"):
        list(concurrently([1, 2], broken, 2, close))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=8))
def test_shares_add_up_to_the_time_in_which_anything_decoded(spans):
    """Oracle: second by second, who was decoding."""
    now = [0.0]
    clock = BusyClock(lambda: now[0])
    readings, shares = {}, {}
    for t in range(101):
        now[0] = float(t)
        for place, (start, length) in enumerate(spans):
            if t == start + length:
                shares[place] = clock.leave(readings[place])
        for place, (start, _) in enumerate(spans):
            if t == start:
                readings[place] = clock.enter()
    expected = dict.fromkeys(range(len(spans)), 0.0)
    busy = 0
    for t in range(101):
        here = [place for place, (start, length) in enumerate(spans) if start <= t < start + length]
        busy += bool(here)
        for place in here:
            expected[place] += 1 / len(here)
    assert shares == pytest.approx(expected)
    assert sum(shares.values()) == pytest.approx(busy)


def test_times_of_a_sample_and_what_one_event_cannot_tell():
    now = [10.0]
    clock = BusyClock(lambda: now[0])

    def watched(*steps):
        with Watch(clock, 10.0) as watch:
            for at, tokens in steps:
                now[0] = at
                watch.seen(tokens)
        return watch.times()

    assert watched((11.0, 1), (12.0, 1), (15.0, 4)) == {"ttft_s": 1.0, "decode_s": 4.0, "decode_share_s": 4.0}
    assert watched((16.0, 1)) == {"ttft_s": 6.0, "decode_s": None, "decode_share_s": None}
    assert watched((17.0, 5)) == {"ttft_s": None, "decode_s": None, "decode_share_s": None}
    assert watched() == {"ttft_s": None, "decode_s": None, "decode_share_s": None}


def test_a_sample_that_fails_leaves_no_share_behind():
    now = [0.0]
    clock = BusyClock(lambda: now[0])

    def fail():
        with Watch(clock, 0.0) as watch:
            watch.seen(1)
            assert clock.count == 1
            raise ServerError("broken")

    with pytest.raises(ServerError, match="broken"):
        fail()
    assert clock.count == 0
