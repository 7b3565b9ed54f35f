"""Draft trees: arrays with a batch dimension, and the search for the best prefixes under a budget (DDTree).

Shapes: B batch, N nodes with the root, D draft depths, K candidates a depth, V vocabulary, P kept prefixes of a depth,
S candidate pairs, F prefixes kept over all depths.

Autoregressive decoding is a tree of the root alone, a drafted sequence is a tree of width one: one loop serves all.
The search takes the product of per-position marginals as the score of a prefix (DDTree, arXiv 2604.12989).
"""

import ctypes
import heapq
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from harness.decoding.ranking import top_sorted

if TYPE_CHECKING:
    from harness.decoding.layout import SiblingLayout

NEG_INF = float("-inf")


@dataclass(frozen=True)
class DraftTree:
    """Node 0 is the root. Parents stand before children, siblings by falling score, padding last and unreachable.

    token_BN int64; parent_BN int64, -1 for root and padding; depth_BN int64, 0 for root and padding; score_BN float32,
    the drafter's log-probability of the path (root 0, padding -inf); count_B int64, valid nodes with the root.
    depth_limit: no node is deeper (known without asking the device). None means N - 1.
    ancestors_BNN, layout: what `ancestor_mask_BNN` and `to_sibling_layout` answer, where the builder made them already.
    """

    token_BN: Tensor
    parent_BN: Tensor
    depth_BN: Tensor
    score_BN: Tensor
    count_B: Tensor
    depth_limit: int | None = None
    ancestors_BNN: Tensor | None = None
    layout: "SiblingLayout | None" = None

    @property
    def num_nodes(self) -> int:
        """N, a static size: padding counts."""
        return self.token_BN.shape[1]

    @property
    def max_depth(self) -> int:
        """D, a static bound on the depth; a path has room for D + 1 nodes."""
        return self.num_nodes - 1 if self.depth_limit is None else self.depth_limit

    @property
    def valid_BN(self) -> Tensor:
        """bool [B, N], false for padding."""
        return torch.arange(self.num_nodes, device=self.token_BN.device) < self.count_B[:, None]

    def ancestor_mask_BNN(self) -> Tensor:
        """bool [B, i, j]: j is i or an ancestor of i. Padding sees itself only."""
        if self.ancestors_BNN is not None:
            return self.ancestors_BNN
        num_nodes = self.num_nodes
        mask_BNN = torch.eye(num_nodes, dtype=torch.bool, device=self.token_BN.device).repeat(len(self.count_B), 1, 1)
        jump_BN = self.parent_BN
        # Pointer doubling: after step s a row holds 2**s generations, and jump leads to the next unseen one.
        for _ in range(min(self.max_depth, num_nodes - 1).bit_length()):
            known_BN, safe_BN = jump_BN >= 0, jump_BN.clamp(min=0)
            above_BNN = mask_BNN.gather(1, safe_BN[..., None].expand_as(mask_BNN))
            mask_BNN = mask_BNN | (above_BNN & known_BN[..., None])
            jump_BN = torch.where(known_BN, jump_BN.gather(1, safe_BN), jump_BN)
        return mask_BNN


def root_only(root_B: Tensor) -> DraftTree:
    """The tree of autoregressive decoding. root_B: int64 [B], the last committed tokens."""
    token_BN = root_B[:, None].to(torch.int64, copy=True)  # the round moves its root on in place
    zero_BN = torch.zeros_like(token_BN)
    return DraftTree(token_BN, zero_BN - 1, zero_BN, zero_BN.float(), zero_BN[:, 0] + 1, depth_limit=0)


def chain(root_B: Tensor, token_BD: Tensor, score_BD: Tensor) -> DraftTree:
    """A drafted sequence. token_BD: int64; score_BD: float32, cumulative log p. From the first -inf on: padding."""
    batch, depth = token_BD.shape
    device = token_BD.device
    score_BD = score_BD.to(torch.float32).clamp(max=0)
    valid_BD = (score_BD == NEG_INF).cumsum(1) == 0
    parent_D = torch.arange(depth, device=device)
    return _assemble(
        root_B,
        token_BD,
        parent_D.expand(batch, -1),
        (parent_D + 1).expand(batch, -1),
        score_BD.masked_fill(~valid_BD, NEG_INF),
        depth,
    )


def candidates(logits_BDV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k likeliest tokens of each draft position, log p falling, ties by lower id; k is cut to V.

    logits_BDV: logits or log-probabilities, any float dtype [..., V]. Returns (log p float32, ids int64), [..., K].
    """
    logp_BDV = torch.log_softmax(logits_BDV, dim=-1, dtype=torch.float32)
    return top_sorted(logp_BDV, min(k, logp_BDV.shape[-1]))


def best_first(root: int, logp_DK: Tensor, ids_DK: Tensor, budget: int, spine: bool = False) -> DraftTree:
    """Reference of the budget search: a heap on the host, one request. Same arguments and result as `level_wise`."""
    _check_budget(budget, logp_DK.shape[0], spine)
    logp = logp_DK.to(torch.float32).clamp(max=0).tolist()
    ids = ids_DK.tolist()
    depth_limit, num_ranks = logp_DK.shape
    num_spine = next((d for d, row in enumerate(logp) if row[0] == NEG_INF), depth_limit) if spine else 0
    room = budget - num_spine
    nodes: list[tuple[int, int, int, float]] = []  # token, parent, depth, score
    # (-score, depth, parent's place, sibling rank): the total order itself. The rest is payload.
    heap: list[tuple[float, int, int, int, float, bool]] = []

    def push(parent: int, depth: int, rank: int, parent_score: float, parent_on_spine: bool) -> None:
        if depth > depth_limit or rank >= num_ranks:
            return
        # A double rounded to float32 once is the float32 sum.
        score = ctypes.c_float(parent_score + logp[depth - 1][rank]).value
        if score != NEG_INF:
            heapq.heappush(heap, (-score, depth, parent, rank, parent_score, parent_on_spine))

    push(0, 1, 0, 0.0, spine)
    while heap and len(nodes) < budget:
        negative, depth, parent, rank, parent_score, parent_on_spine = heapq.heappop(heap)
        push(parent, depth, rank + 1, parent_score, parent_on_spine)
        on_spine = parent_on_spine and rank == 0
        if not on_spine:
            if room == 0:
                continue
            room -= 1
        nodes.append((ids[depth - 1][rank], parent, depth, -negative))
        push(len(nodes), depth + 1, 0, -negative, on_spine)

    nodes += [(0, -1, 0, NEG_INF)] * (budget - len(nodes))
    token, parent_place, depths, score = (
        torch.tensor([column], device=logp_DK.device) for column in zip(*nodes, strict=True)
    )
    root_B = torch.tensor([root], device=logp_DK.device)
    return _assemble(root_B, token, parent_place, depths, score.to(torch.float32), depth_limit)


def level_wise(root_B: Tensor, logp_BDK: Tensor, ids_BDK: Tensor, budget: int, spine: bool = False) -> DraftTree:
    """The `budget` best prefixes under the product of per-position marginals, batched, without waiting for the device.

    root_B: int64 [B]. logp_BDK: log p of the candidates of each draft position, falling along K. ids_BDK: int64, their
    tokens, distinct along K (see `candidates`; k = min(budget, V) loses nothing). budget: draft nodes without the root.

    One total order decides: score falling, depth, the parent's place in this order, sibling rank. The score of a prefix
    is float32, score(parent) + log p with log p cut to <= 0, so no child precedes its parent and the choice is closed
    under parents. A prefix of score -inf is no node: the tree is then smaller than its static N = budget + 1.
    spine: take the greedy prefix (rank 0) of every depth first, then the best others until the budget is full.
    Raises ValueError for a budget below 1, or below D with a spine.
    """
    batch, depth_limit, num_ranks = logp_BDK.shape
    _check_budget(budget, depth_limit, spine)
    device = logp_BDK.device
    logp_BDK = logp_BDK.to(torch.float32).clamp(max=0)
    above_BP = torch.zeros(batch, 1, device=device)
    scores, tokens, parents = [], [], []
    starts: list[int] = []
    num_flat = 0
    for level in range(depth_limit):
        place_S, rank_S = _pairs(above_BP.shape[1], num_ranks, budget, device)
        score_BS = above_BP[:, place_S] + logp_BDK[:, level, rank_S]
        score_BP, pick_BP = (x[:, :budget] for x in score_BS.sort(dim=1, descending=True, stable=True))
        scores.append(score_BP)
        tokens.append(ids_BDK[:, level].gather(1, rank_S[pick_BP]))
        parents.append(place_S[pick_BP] + (starts[-1] if starts else -1))  # -1: the root
        starts.append(num_flat)
        num_flat += score_BP.shape[1]
        above_BP = score_BP
    # Depth-major and in order within a depth: a stable sort by score alone completes the total order.
    score_BF, token_BF, parent_BF = torch.cat(scores, 1), torch.cat(tokens, 1), torch.cat(parents, 1)
    chosen_BN = _choose(score_BF, starts if spine else [], min(budget, num_flat))
    place_BF = torch.zeros_like(parent_BF)
    place_BF.scatter_(1, chosen_BN, torch.arange(1, chosen_BN.shape[1] + 1, device=device).expand(batch, -1))
    parent_BN = parent_BF.gather(1, chosen_BN)
    depth_BN = torch.bucketize(chosen_BN.contiguous(), _static(tuple(starts), device), right=True)
    tree_parent_BN = torch.where(parent_BN < 0, 0, place_BF.gather(1, parent_BN.clamp(min=0)))
    missing = budget - chosen_BN.shape[1]
    return _assemble(
        root_B,
        torch.nn.functional.pad(token_BF.gather(1, chosen_BN), (0, missing)),
        torch.nn.functional.pad(tree_parent_BN, (0, missing)),
        torch.nn.functional.pad(depth_BN, (0, missing)),
        torch.nn.functional.pad(score_BF.gather(1, chosen_BN), (0, missing), value=NEG_INF),
        depth_limit,
    )


def _choose(score_BF: Tensor, spine_starts: list[int], count: int) -> Tensor:
    """Flat places of the chosen prefixes, in the total order. A depth's greedy prefix is the first of its level."""
    if not spine_starts:
        return score_BF.sort(dim=1, descending=True, stable=True).indices[:, :count]
    start_D = _static(tuple(spine_starts), score_BF.device)
    forced_BF = score_BF.index_put(
        (torch.arange(len(score_BF), device=score_BF.device)[:, None], start_D),
        torch.where(score_BF[:, start_D] == NEG_INF, NEG_INF, -NEG_INF),
    )
    chosen_BN = forced_BF.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(dim=1).values
    order_BN = score_BF.gather(1, chosen_BN).sort(dim=1, descending=True, stable=True).indices
    return chosen_BN.gather(1, order_BN)


def _assemble(
    root_B: Tensor, token_BM: Tensor, parent_BM: Tensor, depth_BM: Tensor, score_BM: Tensor, depth_limit: int
) -> DraftTree:
    """Put the root before M draft nodes; those of score -inf, which stand last, become padding."""
    valid_BM = score_BM > NEG_INF
    root_B1 = root_B[:, None].to(torch.int64)
    zero_B1 = torch.zeros_like(root_B1)
    return DraftTree(
        token_BN=torch.cat([root_B1, token_BM.masked_fill(~valid_BM, 0)], 1),
        parent_BN=torch.cat([zero_B1 - 1, parent_BM.masked_fill(~valid_BM, -1)], 1),
        depth_BN=torch.cat([zero_B1, depth_BM.masked_fill(~valid_BM, 0)], 1),
        score_BN=torch.cat([zero_B1.float(), score_BM], 1),
        count_B=1 + valid_BM.sum(1),
        depth_limit=depth_limit,
    )


@lru_cache(maxsize=256)
def _pairs(num_above: int, num_ranks: int, budget: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(place of the parent in its depth, sibling rank), parent-major: the pairs that can be among the best `budget`.

    All (place', rank') <= (place, rank) stand before it, so (place + 1)(rank + 1) <= budget: about budget·ln(budget)
    pairs instead of budget². Cached on the device, so that a captured graph finds them there.
    """
    pairs = [(i, r) for i in range(num_above) for r in range(min(num_ranks, budget // (i + 1)))]
    place, rank = zip(*pairs, strict=True)
    return _static(place, device), _static(rank, device)


@lru_cache(maxsize=256)
def _static(values: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def _check_budget(budget: int, depth: int, spine: bool) -> None:
    if budget < 1:
        raise ValueError(f"speculative.tree_budget must be at least 1, got {budget}")
    if spine and budget < depth:
        raise ValueError(f"speculative.spine=true needs speculative.tree_budget >= {depth}, got {budget}")
