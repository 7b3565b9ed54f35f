"""The drafter's likeliest tokens at each depth, through the target's LM head, whole or split over ranks.

Shapes: B requests, D draft depths, H hidden size, V vocabulary, K candidates, R ranks.
"""

from typing import Any

import torch
from torch import Tensor

from harness.decoding.ranking import top_sorted
from harness.kernels.choice import searchers


def head_slice(head: Any) -> tuple[int, int]:
    """(rows of the real vocabulary on this rank, id of the first). Padding rows and added tokens are never drafted."""
    shard = getattr(head, "shard_indices", None)
    if shard is None:
        return int(head.weight.shape[0]), 0
    return int(shard.num_org_elements), int(shard.org_vocab_start_index)


def draft_candidates(hidden_BDH: Tensor, head: Any, k: int, group: Any = None) -> tuple[Tensor, Tensor]:
    """(log p float32, ids int64), [B, D, K], log p falling, ties by lower id: as `harness.decoding.tree.candidates`.

    group: SGLang's tensor-parallel group when the head is split. All ranks get the same: they see the same gathered data.
    """
    rows, first = head_slice(head)
    hidden_BDH = hidden_BDH.to(head.weight.dtype)
    if group is None or group.world_size == 1:
        logits_BDV = torch.nn.functional.linear(hidden_BDH, head.weight[:rows])
        candidates, _ = searchers(logits_BDV, k)
        return candidates(logits_BDV, k)
    # Ranks may hold unequal parts of the real vocabulary, or none of it, but gather equal shapes: -inf is no candidate.
    logits_BDV = torch.nn.functional.linear(hidden_BDH, head.weight).float()
    logits_BDV[..., rows:] = float("-inf")
    top_BDK, id_BDK = top_sorted(logits_BDV, min(k, logits_BDV.shape[-1]))
    mass_BD1 = logits_BDV.logsumexp(-1, keepdim=True)
    logits_BDX, ids_BDX, mass_BDR = (
        group.all_gather(x.contiguous(), dim=-1) for x in (top_BDK, id_BDK + first, mass_BD1)
    )
    return merge_shards(logits_BDX, ids_BDX, mass_BDR, k)


def merge_shards(logits_BDX: Tensor, ids_BDX: Tensor, mass_BDR: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Join the ranks' best logits (X = R times their K) and their log-sums into global log-probabilities."""
    logp_BDX = logits_BDX - mass_BDR.logsumexp(-1, keepdim=True)
    id_BDX, by_id = ids_BDX.sort(dim=-1)
    logp_BDX, by_value = logp_BDX.gather(-1, by_id).sort(dim=-1, descending=True, stable=True)
    return logp_BDX[..., :k], id_BDX.gather(-1, by_value)[..., :k]
