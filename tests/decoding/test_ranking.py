"""Top-k in one order, whichever of its ways is taken: they must agree with a sort by (value falling, id)."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decoding.ranking import _top_by_key, top_sorted
from harness.decoding.tree import candidates

numbers = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, -3.0, float("-inf"), 1e-45, -1e-45, 3e38])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(numbers, min_size=1, max_size=12), st.data())
def test_every_way_ranks_alike(row, data):
    k = data.draw(st.integers(1, len(row)))
    expected = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
    for dtype in (torch.float32, torch.float64):
        values = torch.tensor([row, row[::-1]], dtype=dtype)
        top, ids = top_sorted(values, k)
        assert ids[0].tolist() == expected
        assert torch.equal(top, values.gather(1, ids))
    top, ids = _top_by_key(torch.tensor([row]), k)  # the way of accelerators
    assert ids[0].tolist() == expected
    assert torch.equal(top[0], torch.tensor(row)[ids[0]])


def test_candidates_of_a_flat_drafter_are_the_lowest_ids():
    logp, ids = candidates(torch.zeros(2, 3, 1000, dtype=torch.bfloat16), 7)
    assert ids.tolist() == [[list(range(7))] * 3] * 2
    assert logp.dtype == torch.float32
    assert torch.allclose(logp.exp(), torch.tensor(1e-3))


def test_candidates_are_cut_to_the_vocabulary():
    assert candidates(torch.zeros(1, 1, 3), 16)[1].shape == (1, 1, 3)
