"""First-child / next-sibling arrays: a faithful, reversible picture of the tree."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decoding.layout import SiblingLayout, from_sibling_layout, to_sibling_layout
from harness.decoding.tree import DraftTree


@st.composite
def trees(draw):
    """Any parents that stand before their children, with some padding."""
    batch, num_nodes = draw(st.integers(1, 3)), draw(st.integers(1, 14))
    parent, depth, count = [], [], []
    for _ in range(batch):
        valid = draw(st.integers(1, num_nodes))
        row = [-1] + [draw(st.integers(0, i - 1)) for i in range(1, valid)] + [-1] * (num_nodes - valid)
        deep: list[int] = []
        for above in row:
            deep.append(0 if above < 0 else deep[above] + 1)
        parent.append(row)
        depth.append(deep)
        count.append(valid)
    parent_BN = torch.tensor(parent)
    zeros = torch.zeros_like(parent_BN)
    return DraftTree(zeros, parent_BN, torch.tensor(depth), zeros.float(), torch.tensor(count))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(trees())
def test_round_trip_from_the_tree(tree):
    parent_BN, depth_BN = from_sibling_layout(to_sibling_layout(tree))
    assert torch.equal(parent_BN, tree.parent_BN)
    assert torch.equal(depth_BN, tree.depth_BN)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(trees())
def test_round_trip_from_the_layout(tree):
    """Built here by hand, node by node, so that both directions are checked against a third form."""
    batch, num_nodes = tree.parent_BN.shape
    child, sibling = torch.full((batch, num_nodes), -1), torch.full((batch, num_nodes), -1)
    for b in range(batch):
        last: dict[int, int] = {}
        for node in range(1, int(tree.count_B[b])):
            parent = int(tree.parent_BN[b, node])
            if parent in last:
                sibling[b, last[parent]] = node
            else:
                child[b, parent] = node
            last[parent] = node
    index = torch.arange(batch * num_nodes).view(batch, num_nodes)
    by_hand = SiblingLayout(index, child, sibling)
    parent_BN, depth_BN = from_sibling_layout(by_hand)
    again = to_sibling_layout(DraftTree(tree.token_BN, parent_BN, depth_BN, tree.score_BN, tree.count_B))
    for name in ("retrieve_index_BN", "retrieve_next_token_BN", "retrieve_next_sibling_BN"):
        assert torch.equal(getattr(again, name), getattr(by_hand, name)), name


@settings(max_examples=100, deadline=None, derandomize=True)
@given(trees())
def test_padding_is_unreachable_and_all_else_is_reached(tree):
    layout = to_sibling_layout(tree)
    for b in range(len(tree.count_B)):
        seen, stack = set(), [0]
        while stack:
            node = stack.pop()
            assert node not in seen
            seen.add(node)
            for pointer in (layout.retrieve_next_token_BN, layout.retrieve_next_sibling_BN):
                if int(pointer[b, node]) >= 0:
                    stack.append(int(pointer[b, node]))
        assert seen == set(range(int(tree.count_B[b])))
