"""The cache against plain Python lists: what is written, kept and forgotten, ragged batches included."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decoding.cache import PositionCache

SLOTS, HEADS, SIZE, LAYERS = 64, 2, 3, 2


@st.composite
def rounds(draw):
    """A batch size and, per round, the rows written and for each sample the increasing path that it keeps."""
    batch = draw(st.integers(1, 3))
    steps = []
    for _ in range(draw(st.integers(1, 4))):
        num_new = draw(st.integers(1, 6))
        kept = [
            sorted(draw(st.sets(st.integers(0, num_new - 1), max_size=num_new))) for _ in range(batch)
        ]  # a path visits rows in order: parents stand before children
        steps.append((num_new, kept))
    return batch, steps


@settings(max_examples=60, deadline=None)
@given(rounds(), st.integers(0, 2**32 - 1))
def test_committed_rows_are_the_kept_ones_in_order(case, seed):
    batch, steps = case
    generator = torch.Generator().manual_seed(seed)
    cache = PositionCache(batch, SLOTS, "cpu")
    expected: list[list[torch.Tensor]] = [[] for _ in range(batch)]
    for num_new, kept in steps:
        rows = torch.randn(LAYERS, 2, batch, HEADS, num_new, SIZE, generator=generator)
        for layer in range(LAYERS):
            cache.write(layer, rows[layer, 0], rows[layer, 1])
        width = max(1, *map(len, kept))
        path = torch.tensor([path + [-1] * (width - len(path)) for path in kept])
        cache.commit(path, torch.tensor([len(path) for path in kept]))
        for b, path_b in enumerate(kept):
            expected[b] += [rows[:, :, b, :, row] for row in path_b]
    for b in range(batch):
        assert int(cache.length_B[b]) == len(expected[b])
        for place, row in enumerate(expected[b]):
            for layer in range(LAYERS):
                key, value = cache.view(layer, SLOTS)
                assert torch.equal(key[b, :, place], row[layer, 0])
                assert torch.equal(value[b, :, place], row[layer, 1])


def test_layers_may_differ_in_heads_and_sizes():
    cache = PositionCache(1, 8, "cpu")
    cache.write(0, torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 6))
    cache.write(1, torch.ones(1, 1, 3, 5), torch.ones(1, 1, 3, 5))
    assert [t.shape for t in cache.view(0, 3)] == [(1, 2, 3, 4), (1, 2, 3, 6)]
    assert cache.view(1, 2)[0].shape == (1, 1, 2, 5)
