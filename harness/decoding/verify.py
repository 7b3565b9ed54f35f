"""The three verifiers: probabilities on a draft tree -> accepted path and bonus token. All keep the target's law.

Shapes: B batch, N nodes with the root, D draft depths, W = D + 1 path width, V vocabulary.

A verifier is called with (tree, logits_BNV, sampling, index_B): logits_BNV[b, i] are the target's logits after node i,
index_B the place in the output of the root (the prefill token is 0), so the token after a node of depth d has index
index_B + 1 + d. Why they are exact: the tree depends on the context alone; each step draws from the target's own
distribution, and follows the child that carries the token or emits the token as the bonus.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.decoding.layout import to_sibling_layout
from harness.decoding.noise import DRAW, FINAL_COIN, gumbel, uniform
from harness.decoding.sampling import SamplingBatch, filtered_scores, probabilities
from harness.decoding.tree import DraftTree
from harness.decoding.verify_kernel import find_kernel, last_positive


@dataclass(frozen=True)
class Verified:
    """path_BW: int64 node ids, root (0) first, -1 behind the end. num_accepted_B: int64 drafts. bonus_B: int64 ids."""

    path_BW: Tensor
    num_accepted_B: Tensor
    bonus_B: Tensor


Verifier = Callable[[DraftTree, Tensor, SamplingBatch, Tensor], Verified]


def verify_kernel(tree: DraftTree, logits_BNV: Tensor, sampling: SamplingBatch, index_B: Tensor) -> Verified:
    """One coin a node against the running sum of its children's probabilities (`verify_kernel.py`). Any device.

    Coins are keyed by (stream, index of the root, node): never 0, and independent of the tree.
    """
    target_BNV = probabilities(logits_BNV, sampling)
    coin_BN, final_B = kernel_coins(tree, target_BNV, sampling, index_B)
    draft_BNV = torch.zeros_like(target_BNV)  # the kernel writes into it: never reused
    return accept_by_kernel(tree, target_BNV, coin_BN, final_B, draft_BNV)


def kernel_coins(
    tree: DraftTree, target_BNV: Tensor, sampling: SamplingBatch, index_B: Tensor
) -> tuple[Tensor, Tensor]:
    """The coin of every node and of the final draw, float32 [B, N] and [B], in (0, 1].

    Tree and probabilities may be those of one request while `sampling` and `index_B` hold B of them.
    """
    node_N = torch.arange(target_BNV.shape[1], device=target_BNV.device)
    coin_BN = uniform(sampling.stream_B[:, None], index_B[:, None], node_N)
    return _clamp_coins(coin_BN, tree, target_BNV), uniform(sampling.stream_B, index_B, FINAL_COIN)


def accept_by_kernel(
    tree: DraftTree, target_BNV: Tensor, coin_BN: Tensor, final_B: Tensor, draft_BNV: Tensor
) -> Verified:
    """What the kernel makes of given coins. draft_BNV: zeros, as large as the probabilities; scratch afterwards."""
    batch, num_nodes, _ = target_BNV.shape
    device = target_BNV.device
    if device.type != "cpu":
        target_BNV = target_BNV.contiguous()
    layout = to_sibling_layout(tree)
    predict_BN = torch.zeros(batch * num_nodes, dtype=torch.int32, device=device)
    accept_BW = torch.zeros(batch, tree.max_depth + 1, dtype=torch.int32, device=device)
    num_B = torch.zeros(batch, dtype=torch.int32, device=device)
    find_kernel(device.type)(
        predict_BN,
        accept_BW,
        num_B,
        tree.token_BN.contiguous(),
        layout.retrieve_index_BN.contiguous(),
        layout.retrieve_next_token_BN.contiguous(),
        layout.retrieve_next_sibling_BN.contiguous(),
        coin_BN,
        final_B,
        target_BNV,
        draft_BNV,
        1.0,
        1.0,
        True,
    )
    num_accepted_B = num_B.to(torch.int64)
    row_B = torch.arange(batch, device=device)
    last_B = accept_BW[row_B, num_accepted_B].to(torch.int64)
    node_B = last_B - row_B * num_nodes
    # Rounding can end the final draw on a token with nothing left: the last token with something left is meant.
    bonus_B = predict_BN[last_B].to(torch.int64)
    is_left_B = target_BNV[row_B, node_B, bonus_B] > draft_BNV[row_B, node_B, bonus_B]
    if device.type != "cpu" or not bool(is_left_B.all()):  # the host asks first: it is rare, and costs four passes
        left_BV = (target_BNV[row_B, node_B] - draft_BNV[row_B, node_B]).clamp(min=0)
        bonus_B = torch.where(is_left_B, bonus_B, last_positive(left_BV))
    local_BW = accept_BW.to(torch.int64) - row_B[:, None] * num_nodes
    on_path_BW = torch.arange(accept_BW.shape[1], device=device) <= num_accepted_B[:, None]
    return Verified(torch.where(on_path_BW, local_BW, -1), num_accepted_B, bonus_B)


def verify_walk(tree: DraftTree, logits_BNV: Tensor, sampling: SamplingBatch, index_B: Tensor) -> Verified:
    """On the host: one draw by inverse CDF at each visited node, probabilities computed at visited nodes only.

    The draw is keyed by (stream, index of the token), so the output equals that of `root_only` trees, token for token.
    """

    def draw(logits_BV: Tensor, index_B: Tensor) -> Tensor:
        cdf_BV = probabilities(logits_BV, sampling).to(torch.float64).cumsum(1)
        coin_B = uniform(sampling.stream_B, index_B, DRAW)
        # The first entry that reaches coin · total > 0 has positive probability.
        return torch.searchsorted(cdf_BV, coin_B[:, None] * cdf_BV[:, -1:])[:, 0]

    return _walk(tree, logits_BNV, index_B, draw)


def verify_coupled(tree: DraftTree, logits_BNV: Tensor, sampling: SamplingBatch, index_B: Tensor) -> Verified:
    """Each node takes argmax(filtered scores + Gumbel noise of its output index); the path follows what was taken.

    Noise belongs to the output index and token id alone, so the output equals that of `root_only` trees token for
    token at any temperature, as far as the logits do. float64 logits get float64 noise. At temperature 0: the argmax,
    lowest id. An accelerator computes all nodes at once and is never asked; the CPU computes those that it visits.
    """
    if logits_BNV.device.type != "cpu":
        return coupled_at_once(tree, logits_BNV, sampling, index_B)

    def draw(logits_BV: Tensor, index_B: Tensor) -> Tensor:
        scores_BV = filtered_scores(logits_BV, sampling)
        if not sampling.all_greedy:
            scores_BV += gumbel(sampling.stream_B, index_B, scores_BV.shape[-1], scores_BV.dtype)
        return scores_BV.max(-1).indices

    return _walk(tree, logits_BNV, index_B, draw)


def coupled_at_once(tree: DraftTree, logits_BNV: Tensor, sampling: SamplingBatch, index_B: Tensor) -> Verified:
    """`verify_coupled` without any question to the device, for CUDA graphs. The same result."""
    scores_BNV = filtered_scores(logits_BNV, sampling)
    batch, num_nodes, vocab = scores_BNV.shape
    device = scores_BNV.device
    row_B = torch.arange(batch, device=device)
    if not sampling.all_greedy:
        # Nodes of one depth share their noise.
        index_BW = index_B[:, None] + 1 + torch.arange(min(tree.max_depth + 1, num_nodes), device=device)
        noise_BWV = gumbel(sampling.stream_B[:, None], index_BW, vocab, scores_BNV.dtype)
        scores_BNV += noise_BWV[row_B[:, None], tree.depth_BN]
    return follow(tree, scores_BNV.max(-1).indices)


def follow(tree: DraftTree, taken_BN: Tensor) -> Verified:
    """The path through the children that carry the token their parent took, int64 [B, N]. The device is not asked."""
    batch, num_nodes = taken_BN.shape
    device = taken_BN.device
    row_B = torch.arange(batch, device=device)
    # child_BN: the child that carries the token its parent took; the sink, column N, where there is none.
    parent_BN, node_BN = tree.parent_BN, torch.arange(num_nodes, device=device).expand(batch, -1)
    follows_BN = (parent_BN >= 0) & (taken_BN.gather(1, parent_BN.clamp(min=0)) == tree.token_BN)
    child_BN = parent_BN.new_full((batch, num_nodes + 1), num_nodes)
    child_BN = child_BN.scatter_reduce(1, torch.where(follows_BN, parent_BN, num_nodes), node_BN, "amin")
    child_BN[:, num_nodes] = num_nodes
    path = [torch.zeros_like(row_B)]
    for _ in range(tree.max_depth):
        path.append(child_BN[row_B, path[-1]])
    path_BW = torch.stack(path, 1)
    path_BW = torch.where(path_BW == num_nodes, -1, path_BW)
    num_accepted_B = (path_BW >= 0).sum(1) - 1
    return Verified(path_BW, num_accepted_B, taken_BN[row_B, path_BW[row_B, num_accepted_B]])


VERIFIERS: dict[str, Verifier] = {"kernel": verify_kernel, "walk": verify_walk, "coupled": verify_coupled}


def _clamp_coins(coin_BN: Tensor, tree: DraftTree, target_BNV: Tensor) -> Tensor:
    """Where the children of a node carry all its mass, keep its coin within their float32 sum: none may be rejected.

    The kernel would otherwise draw from a residual of zeros when the sum rounds to less than the coin.
    """
    batch, num_nodes, _ = target_BNV.shape
    parent_BN = tree.parent_BN.clamp(min=0)
    row_B1 = torch.arange(batch, device=coin_BN.device)[:, None]
    child_p_BN = target_BNV[row_B1, parent_BN, tree.token_BN].masked_fill(tree.parent_BN < 0, 0.0)
    num_positive_BN = torch.zeros_like(parent_BN).scatter_add(1, parent_BN, (child_p_BN > 0).to(torch.int64))
    covered_BN = num_positive_BN == target_BNV.sign().sum(-1)  # counts exactly below 2**24, faster than count_nonzero
    # One child at a time, in order: the sum must be the kernel's own, bit for bit.
    child_p_NBN = torch.zeros(num_nodes, batch, num_nodes, device=coin_BN.device)
    child_p_NBN.scatter_(2, parent_BN.T[:, :, None], child_p_BN.T[:, :, None])
    sum_BN = torch.zeros_like(coin_BN)
    for node in range(1, num_nodes):
        sum_BN = sum_BN + child_p_NBN[node]
    return torch.where(covered_BN, torch.minimum(coin_BN, sum_BN), coin_BN)


def _walk(tree: DraftTree, logits_BNV: Tensor, index_B: Tensor, draw: Callable[[Tensor, Tensor], Tensor]) -> Verified:
    """From the root, follow the child that carries the drawn token; the first token without one is the bonus."""
    row_B = torch.arange(len(index_B), device=logits_BNV.device)
    node_B, num_accepted_B = torch.zeros_like(index_B), torch.zeros_like(index_B)
    bonus_B = torch.full_like(index_B, -1)
    path_BW = index_B.new_full((len(index_B), tree.max_depth + 1), -1)
    path_BW[:, 0] = 0
    going_B = torch.ones_like(row_B, dtype=torch.bool)
    while bool(going_B.any()):
        token_B = draw(logits_BNV[row_B, node_B], index_B + 1 + num_accepted_B)
        bonus_B = torch.where(going_B, token_B, bonus_B)
        match_BN = (tree.parent_BN == node_B[:, None]) & (tree.token_BN == token_B[:, None])
        going_B = going_B & match_BN.any(1)
        node_B = torch.where(going_B, match_BN.to(torch.int32).argmax(1), node_B)
        num_accepted_B = num_accepted_B + going_B
        path_BW[row_B, num_accepted_B] = node_B  # rewrites the last entry of a path that has ended
    return Verified(path_BW, num_accepted_B, bonus_B)
