"""The budget search: heap, level-wise form and full enumeration must agree to the bit, ties and -inf included."""

import functools
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decoding.tree import best_first, candidates, chain, level_wise, root_only

NEG_INF = float("-inf")
FIELDS = ("token_BN", "parent_BN", "depth_BN", "score_BN", "count_B")

# Peaked marginals give log p = 0.0 exactly, so that parent and child tie; a coarse grid makes all kinds of ties.
values = st.one_of(
    st.sampled_from([0.0, -1.0, -2.0, -3.0]),
    st.sampled_from([0.0, 40.0, -40.0]),
    st.sampled_from([0.0, NEG_INF, -1.0]),
    st.floats(-4, 4, width=32),
)


@st.composite
def marginals(draw):
    batch, depth, vocab = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 6))
    size = batch * depth * vocab
    logits = torch.tensor(draw(st.lists(values, min_size=size, max_size=size))).view(batch, depth, vocab)
    logits[..., 0] = logits[..., 0].clamp(min=-50)  # every position has a token
    budget = draw(st.integers(1, 14))
    spine = budget >= depth and draw(st.booleans())
    return logits, budget, spine


def enumerate_all(logp: np.ndarray, ids: np.ndarray, budget: int, spine: bool) -> list[tuple[tuple[int, ...], float]]:
    """Every prefix of ranks with its float32 score, put in the defined order by comparing definitions, then cut."""
    depth_limit, num_ranks = logp.shape
    score = {(): np.float32(0)}
    for depth in range(1, depth_limit + 1):
        for ranks in itertools.product(range(num_ranks), repeat=depth):
            if ranks[:-1] in score and logp[depth - 1, ranks[-1]] > NEG_INF:
                score[ranks] = np.float32(score[ranks[:-1]] + min(logp[depth - 1, ranks[-1]], np.float32(0)))

    def compare(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        if a == b:
            return 0
        if score[a] != score[b]:
            return -1 if score[a] > score[b] else 1
        if len(a) != len(b):
            return len(a) - len(b)
        return compare(a[:-1], b[:-1]) or a[-1] - b[-1]

    order = sorted((ranks for ranks in score if ranks), key=functools.cmp_to_key(compare))
    first = [ranks for ranks in order if spine and not any(ranks)]
    chosen = set((first + [ranks for ranks in order if ranks not in first])[:budget])
    return [(ranks, float(score[ranks])) for ranks in order if ranks in chosen]


@settings(max_examples=250, deadline=None, derandomize=True)
@given(marginals())
def test_heap_level_wise_and_enumeration_agree(case):
    logits, budget, spine = case
    logp, ids = candidates(logits, budget)
    roots = torch.arange(len(logits)) + 7
    tree = level_wise(roots, logp, ids, budget, spine)
    assert tree.num_nodes == budget + 1
    assert tree.max_depth == logits.shape[1]
    for b in range(len(logits)):
        heap = best_first(7 + b, logp[b], ids[b], budget, spine)
        for name in FIELDS:
            fast, reference = getattr(tree, name)[b : b + 1], getattr(heap, name)
            assert torch.equal(fast, reference), name
            assert fast.dtype == reference.dtype, name
        oracle = enumerate_all(logp[b].numpy(), ids[b].numpy(), budget, spine)
        place = {(): 0} | {ranks: 1 + i for i, (ranks, _) in enumerate(oracle)}
        assert int(tree.count_B[b]) == 1 + len(oracle)
        for ranks, score in oracle:
            node = place[ranks]
            assert int(tree.token_BN[b, node]) == int(ids[b, len(ranks) - 1, ranks[-1]])
            assert int(tree.parent_BN[b, node]) == place[ranks[:-1]] < node
            assert int(tree.depth_BN[b, node]) == len(ranks)
            assert float(tree.score_BN[b, node]) == score


@settings(max_examples=60, deadline=None, derandomize=True)
@given(marginals())
def test_ancestor_mask_is_the_walk_to_the_root(case):
    logits, budget, spine = case
    tree = level_wise(torch.zeros(len(logits), dtype=torch.int64), *candidates(logits, budget), budget, spine)
    mask = tree.ancestor_mask_BNN()
    for b, i in itertools.product(range(len(logits)), range(tree.num_nodes)):
        line, node = set(), i
        while node >= 0:
            line.add(node)
            node = int(tree.parent_BN[b, node])
        assert set(mask[b, i].nonzero()[:, 0].tolist()) == line
        assert bool(tree.valid_BN[b, i]) == (0 in line)


def test_spine_keeps_the_greedy_chain_that_a_small_budget_drops():
    logits = torch.zeros(1, 3, 4)
    logits[..., 0] = 0.1  # flat: siblings beat depth
    logp, ids = candidates(logits, 4)
    root = torch.tensor([0])
    assert int(level_wise(root, logp, ids, 4).depth_BN.max()) == 1
    tree = level_wise(root, logp, ids, 4, spine=True)
    assert tree.depth_BN.tolist() == [[0, 1, 1, 2, 3]]
    assert tree.token_BN.tolist() == [[0, 0, 1, 0, 0]]


@pytest.mark.parametrize(("budget", "spine", "key"), [(0, False, "tree_budget"), (2, True, "spine")])
def test_impossible_budgets_are_refused_by_key(budget, spine, key):
    logp, ids = candidates(torch.zeros(1, 3, 4), 2)
    with pytest.raises(ValueError, match=f"speculative.{key}"):
        level_wise(torch.tensor([0]), logp, ids, budget, spine)


def test_more_budget_than_prefixes_leaves_padding():
    tree = level_wise(torch.tensor([1]), *candidates(torch.zeros(1, 1, 3), 8), 8)
    assert tree.num_nodes == 9
    assert tree.count_B.tolist() == [4]
    assert tree.parent_BN[0, 4:].tolist() == [-1] * 5
    assert tree.depth_BN[0, 4:].tolist() == [0] * 5


def test_chain_and_root_are_trees():
    tree = chain(torch.tensor([5]), torch.tensor([[3, 4, 2]]), torch.tensor([[-0.5, -1.0, NEG_INF]]))
    assert tree.token_BN.tolist() == [[5, 3, 4, 0]]
    assert tree.parent_BN.tolist() == [[-1, 0, 1, -1]]
    assert tree.depth_BN.tolist() == [[0, 1, 2, 0]]
    assert tree.score_BN.tolist() == [[0.0, -0.5, -1.0, NEG_INF]]
    assert tree.count_B.tolist() == [3]
    alone = root_only(torch.tensor([5, 6]))
    assert alone.token_BN.tolist() == [[5], [6]]
    assert alone.max_depth == 0
    assert alone.count_B.tolist() == [1, 1]
