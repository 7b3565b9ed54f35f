"""First-child / next-sibling arrays, as the verification kernels of sgl-kernel read a tree, and back.

Shapes: B batch, N nodes with the root. Pure functions of the arrays, without waiting for a device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.decoding.tree import DraftTree


@dataclass(frozen=True)
class SiblingLayout:
    """int64 [B, N] each. sgl-kernel spells them `retrive_*`.

    retrieve_index_BN: global row b·N + i. retrieve_next_token_BN: first child of i, local, -1 without one.
    retrieve_next_sibling_BN: next sibling of i, local, -1 for the last.
    """

    retrieve_index_BN: Tensor
    retrieve_next_token_BN: Tensor
    retrieve_next_sibling_BN: Tensor


def to_sibling_layout(tree: DraftTree) -> SiblingLayout:
    """Children are linked in node order, which is falling score. No pointer leads to padding."""
    if tree.layout is not None:
        return tree.layout
    parent_BN = tree.parent_BN
    batch, num_nodes = parent_BN.shape
    node_BN = torch.arange(num_nodes, device=parent_BN.device).expand(batch, -1)
    # Root and padding hang below a sink, column N, which is dropped.
    owner_BN = torch.where(parent_BN < 0, num_nodes, parent_BN)
    first_BN = parent_BN.new_full((batch, num_nodes + 1), num_nodes)
    first_BN = first_BN.scatter_reduce(1, owner_BN, node_BN, "amin")[:, :num_nodes]
    family_BN, order_BN = owner_BN.sort(dim=1, stable=True)
    together_BN = (family_BN[:, :-1] == family_BN[:, 1:]) & (family_BN[:, 1:] < num_nodes)
    next_BN = torch.full_like(parent_BN, -1)
    next_BN = next_BN.scatter(1, order_BN[:, :-1], torch.where(together_BN, order_BN[:, 1:], -1))
    row_B1 = torch.arange(batch, device=parent_BN.device)[:, None]
    return SiblingLayout(
        retrieve_index_BN=row_B1 * num_nodes + node_BN,
        retrieve_next_token_BN=torch.where(first_BN == num_nodes, -1, first_BN),
        retrieve_next_sibling_BN=next_BN,
    )


def from_sibling_layout(layout: SiblingLayout) -> tuple[Tensor, Tensor]:
    """(parent_BN, depth_BN), int64. Root and unreachable nodes: parent -1, depth 0.

    The inverse of `to_sibling_layout` for every layout whose siblings stand in node order.
    """
    child_BN, sibling_BN = layout.retrieve_next_token_BN, layout.retrieve_next_sibling_BN
    steps = child_BN.shape[1].bit_length()
    before_BN = _inverse(sibling_BN)
    eldest_BN = _extend(torch.where(before_BN < 0, _nodes(before_BN), before_BN))
    for _ in range(steps):  # pointer doubling to the first of the siblings
        eldest_BN = eldest_BN.gather(1, eldest_BN)
    owner_BN = _extend(_inverse(child_BN))
    parent_BN = owner_BN.gather(1, eldest_BN)[:, :-1]
    sink = parent_BN.shape[1]
    jump_BN = _extend(torch.where(parent_BN < 0, sink, parent_BN))
    depth_BN = (jump_BN < sink).to(torch.int64)
    for _ in range(steps):  # and to the root, counting
        depth_BN = depth_BN + depth_BN.gather(1, jump_BN)
        jump_BN = jump_BN.gather(1, jump_BN)
    return parent_BN, depth_BN[:, :-1]


def _nodes(like_BN: Tensor) -> Tensor:
    return torch.arange(like_BN.shape[1], device=like_BN.device).expand_as(like_BN)


def _extend(pointer_BN: Tensor) -> Tensor:
    """Add a sink, column N, that points to itself."""
    return torch.nn.functional.pad(pointer_BN, (0, 1), value=pointer_BN.shape[1])


def _inverse(pointer_BN: Tensor) -> Tensor:
    """source_BN with source[pointer[i]] = i, -1 where nothing points."""
    batch, num_nodes = pointer_BN.shape
    source_BN = pointer_BN.new_full((batch, num_nodes + 1), -1)
    goal_BN = torch.where(pointer_BN < 0, num_nodes, pointer_BN)
    return source_BN.scatter(1, goal_BN, _nodes(pointer_BN))[:, :num_nodes]
