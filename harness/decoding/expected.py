"""How many drafts the target is expected to accept, computed from its own probabilities.

Shapes: B batch, N nodes, V vocabulary. A draft node is accepted exactly when the target draws the path to it, so the
expected number of accepted drafts is the sum over draft nodes of the path's probability. With A accepted drafts,
A^2 = sum over accepted depths d of (2d - 1), which gives the variance from the same numbers.
"""

import torch
from torch import Tensor

from harness.decoding.tree import DraftTree


def expected_accepted(tree: DraftTree, probability_BNV: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance, float64 [B] each, of the number of accepted drafts; probabilities carry every filter."""
    return path_moments(tree, step_probabilities(tree, probability_BNV))


def step_probabilities(tree: DraftTree, probability_BNV: Tensor) -> Tensor:
    """float64 [B, N]: the target's probability of each node's token given its parent; 1 for root and padding."""
    parent_BN = tree.parent_BN.clamp(min=0)
    at_parent_BNV = probability_BNV.gather(1, parent_BN[..., None].expand(-1, -1, probability_BNV.shape[-1]))
    step_BN = at_parent_BNV.gather(2, tree.token_BN[..., None])[..., 0].double()
    return torch.where(tree.parent_BN >= 0, step_BN, 1.0)


def path_moments(tree: DraftTree, step_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance, float64 [B] each, of the number of accepted drafts, from `step_probabilities`."""
    parent_BN, is_draft_BN = tree.parent_BN.clamp(min=0), tree.parent_BN >= 0
    # The product over ancestors, a node at a time: a parent stands before its children.
    path_BN = torch.ones_like(step_BN)
    for node in range(1, tree.token_BN.shape[1]):
        above_B = path_BN.gather(1, parent_BN[:, node : node + 1])[:, 0]
        path_BN[:, node] = above_B * step_BN[:, node]
    path_BN = torch.where(is_draft_BN, path_BN, 0.0)
    mean_B = path_BN.sum(1)
    variance_B = ((2 * tree.depth_BN - 1) * path_BN).sum(1) - mean_B**2
    return mean_B, variance_B.clamp(min=0)
