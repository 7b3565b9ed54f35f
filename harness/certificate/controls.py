"""Negative controls: mistakes that real implementations made. Each must turn the certificate red.

Shapes: B batch, N nodes with the root, V vocabulary, W path width.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.certificate.serving import Build, Commit, KernelRedraw, Serving, redraw_with
from harness.decoding.noise import uniform
from harness.decoding.sampling import SamplingBatch, probabilities
from harness.decoding.tree import DraftTree
from harness.decoding.verify import Verified, Verifier, accept_by_kernel, kernel_coins

OTHER_COIN = -99  # a purpose of `noise.uniform` that nothing else uses


def inject(serving: Serving, mistake: str) -> Serving:
    """The serving functions with one mistake. Raises KeyError for an unknown one."""
    return MISTAKES[mistake](serving)


def _min_ratio(serving: Serving) -> Serving:
    """min(1, p/q) on a deterministic tree: q is the drafter's probability, though the draft is no sample of q."""

    def verify(tree: DraftTree, logits_BNV: Tensor, sampling: SamplingBatch, index_B: Tensor) -> Verified:
        p_BNV = probabilities(logits_BNV, sampling)
        row_B = torch.arange(len(index_B), device=index_B.device)
        parent_BN = tree.parent_BN.clamp(min=0)
        q_BN = (tree.score_BN - tree.score_BN.gather(1, parent_BN)).exp()
        node_B, num_B = torch.zeros_like(index_B), torch.zeros_like(index_B)
        path_BW = index_B.new_full((len(index_B), tree.max_depth + 1), -1)
        path_BW[:, 0] = 0
        left_BV = p_BNV[row_B, 0].clone()
        for child in range(1, tree.num_nodes):  # parents stand before children: one pass follows a whole path
            token_B = tree.token_BN[:, child]
            is_child_B = tree.parent_BN[:, child] == node_B
            ratio_B = p_BNV[row_B, node_B, token_B] / q_BN[:, child]
            accept_B = is_child_B & (uniform(sampling.stream_B, index_B, child) <= ratio_B)
            left_BV[row_B, token_B] = torch.where(is_child_B & ~accept_B, 0.0, left_BV[row_B, token_B])
            num_B = num_B + accept_B
            node_B = torch.where(accept_B, child, node_B)
            path_BW[row_B, num_B] = node_B
            left_BV = torch.where(accept_B[:, None], p_BNV[row_B, node_B], left_BV)
        return Verified(path_BW, num_B, _inverse_cdf(left_BV, sampling, index_B))

    return _kernel(serving, verify, redraw_with(verify))


def _stale_draft_probs(serving: Serving) -> Serving:
    """The scratch of the call before, not zeroed."""
    kept: dict[Any, Tensor] = {}

    def verify(tree: DraftTree, logits_BNV: Tensor, sampling: SamplingBatch, index_B: Tensor) -> Verified:
        target_BNV = probabilities(logits_BNV, sampling)
        draft_BNV = kept.setdefault(target_BNV.shape, torch.zeros_like(target_BNV))
        return accept_by_kernel(tree, target_BNV, *kernel_coins(tree, target_BNV, sampling, index_B), draft_BNV)

    class Redraw(KernelRedraw):
        def clean(self, draft_BNV: Tensor, tree: DraftTree) -> None:
            pass

    return _kernel(serving, verify, Redraw())


def _duplicated_siblings(serving: Serving) -> Serving:
    """The second child of every node carries the token of the first."""

    def wrap(build: Build) -> Build:
        def wrong(root_B: Tensor, draft_logits_BDV: Tensor | None) -> DraftTree:
            tree = build(root_B, draft_logits_BDV)
            parent_BN = tree.parent_BN
            same_BNN = (parent_BN[:, :, None] == parent_BN[:, None]) & (parent_BN >= 0)[:, :, None]
            rank_BN = same_BNN.tril(-1).sum(2)
            first_BN = same_BNN.to(torch.int32).argmax(2)
            token_BN = torch.where(rank_BN == 1, tree.token_BN.gather(1, first_BN), tree.token_BN)
            return replace(tree, token_BN=token_BN)

        return wrong

    return replace(serving, build=wrap)


def _temperature_off(serving: Serving) -> Serving:
    """5 % too warm, in every verifier."""

    def wrap(verify: Verifier) -> Verifier:
        def wrong(tree: DraftTree, logits_BNV: Tensor, sampling: SamplingBatch, index_B: Tensor) -> Verified:
            warm = replace(sampling, temperature_B=sampling.temperature_B * 1.05)
            return verify(tree, logits_BNV, warm, index_B)

        return wrong

    return replace(serving, verify=_each(serving.verify, wrap), redraw=_each(serving.redraw, wrap))


def _wrong_kv_row(serving: Serving) -> Serving:
    """The first rows of the tree are kept in place of the accepted path's."""

    def wrap(commit: Commit) -> Commit:
        return lambda path_BW, num_B: commit(torch.arange(path_BW.shape[1]).expand_as(path_BW).to(path_BW), num_B)

    return replace(serving, commit=wrap)


def _parent_bonus(serving: Serving) -> Serving:
    """The bonus token is drawn from the distribution before the last accepted draft."""

    def wrap(verify: Verifier) -> Verifier:
        def wrong(tree: DraftTree, logits_BNV: Tensor, sampling: SamplingBatch, index_B: Tensor) -> Verified:
            verified = verify(tree, logits_BNV, sampling, index_B)
            row_B, num_B = torch.arange(len(index_B), device=index_B.device), verified.num_accepted_B
            node_B = verified.path_BW[row_B, (num_B - 1).clamp(min=0)]
            at_B = row_B if len(logits_BNV) > 1 else torch.zeros_like(row_B)
            p_BV = probabilities(logits_BNV[at_B, node_B], sampling)
            bonus_B = _inverse_cdf(p_BV, sampling, index_B)
            return replace(verified, bonus_B=torch.where(num_B > 0, bonus_B, verified.bonus_B))

        return wrong

    return _kernel(serving, wrap(serving.verify["kernel"]), wrap(serving.redraw["kernel"]))


def _zero_coin(serving: Serving) -> Serving:
    """Coins in [0, 1) in place of (0, 1]: a 0 accepts a child of probability 0. By chance once in 2**24 draws."""
    return replace(serving, lowest_coin=0.0)


MISTAKES: dict[str, Callable[[Serving], Serving]] = {
    "min_ratio": _min_ratio,
    "stale_draft_probs": _stale_draft_probs,
    "duplicated_siblings": _duplicated_siblings,
    "temperature_off": _temperature_off,
    "wrong_kv_row": _wrong_kv_row,
    "parent_bonus": _parent_bonus,
    "zero_coin": _zero_coin,
}


def _kernel(serving: Serving, verify: Verifier, redraw: Verifier) -> Serving:
    """The mistake in the verifier named `kernel` alone."""
    return replace(serving, verify={**serving.verify, "kernel": verify}, redraw={**serving.redraw, "kernel": redraw})


def _each(verifiers: dict[str, Verifier], wrap: Callable[[Verifier], Verifier]) -> dict[str, Verifier]:
    return {name: wrap(verify) for name, verify in verifiers.items()}


def _inverse_cdf(p_BV: Tensor, sampling: SamplingBatch, index_B: Tensor) -> Tensor:
    cdf_BV = p_BV.double().cumsum(1)
    coin_B1 = uniform(sampling.stream_B, index_B, OTHER_COIN)[:, None]
    return torch.searchsorted(cdf_BV, coin_B1 * cdf_BV[:, -1:])[:, 0].clamp(max=p_BV.shape[1] - 1)
