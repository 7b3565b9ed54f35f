"""The flag of a degenerate loop, against its definition read literally."""

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.metrics import quality_flags, repetition

TOKENS = st.lists(st.integers(0, 9), max_size=40)


@settings(max_examples=100, deadline=None)
@given(TOKENS, st.lists(st.integers(0, 99), min_size=1, max_size=64), TOKENS)
def test_a_loop_is_seen_wherever_it_stands(before: list[int], block: list[int], after: list[int]) -> None:
    times = max(3, -(-32 // len(block)))
    assert repetition(before + block * times + after)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=80))
def test_repetition_against_its_definition(ids: list[int]) -> None:
    def periodic(start: int, period: int, length: int) -> bool:
        return all(ids[i] == ids[i - period] for i in range(start + period, start + length))

    lengths = [(p, max(32, 3 * p)) for p in range(1, 65)]
    naive = any(periodic(start, p, n) for p, n in lengths for start in range(len(ids) - n + 1))
    assert repetition(ids) == naive


def test_ordinary_output_is_no_loop() -> None:
    assert not repetition([])
    assert not repetition(list(range(2000)))
    assert not repetition([7] * 31)
    assert repetition([7] * 32)
    assert not repetition(list(range(65)) * 3)  # a block too long to be called a loop


def test_quality_flags() -> None:
    assert quality_flags([1, 2], " \n", "length") == {"repetition": False, "truncated": True, "empty": True}
    assert quality_flags([1] * 50, "aa", "stop") == {"repetition": True, "truncated": False, "empty": False}
