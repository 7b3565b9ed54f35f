"""Many draft blocks over one conversation in one forward pass: what training and the held-out measurement share.

Shapes: B conversations, S context slots, A anchors of a conversation, K block size, D = K - 1 drafted tokens, Q = A x
K.

An anchor is the place of a root. Its block sits at anchor .. anchor + K - 1, sees the context before the anchor and
itself, exactly as in serving.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.drafters.corpus import Batch


@dataclass(frozen=True)
class Blocks:
    """token_BQ, position_BQ: int64. mask_B1QX: bool, X = S + Q. label_BAD int64; valid_BAD: the text goes that far."""

    token_BQ: Tensor
    position_BQ: Tensor
    mask_B1QX: Tensor
    label_BAD: Tensor
    valid_BAD: Tensor


def random_anchors(batch: Batch, num: int, whole_blocks_of: int = 2) -> Tensor:
    """int64 [B, num], uniform over answer tokens that have at least whole_blocks_of - 1 tokens behind them."""
    low_B = batch.start_B
    span_B = (batch.end_B - whole_blocks_of + 1 - low_B).clamp(min=1)
    uniform_BA = torch.rand(len(low_B), num, device=low_B.device)
    return low_B[:, None] + (uniform_BA * span_B[:, None]).long().clamp(max=span_B[:, None] - 1)


def make_blocks(batch: Batch, anchor_BA: Tensor, block_size: int, mask_token_id: int) -> Blocks:
    """anchor_BA: int64, places of roots in the text."""
    num_rows, num_slots = batch.ids_BS.shape
    num_anchors, device = anchor_BA.shape[1], anchor_BA.device
    place_BAK = anchor_BA[..., None] + torch.arange(block_size, device=device)
    token_BAK = torch.full_like(place_BAK, mask_token_id)
    token_BAK[..., 0] = batch.ids_BS.gather(1, anchor_BA)
    label_BAK = batch.ids_BS.gather(1, place_BAK.flatten(1).clamp(max=num_slots - 1)).view_as(place_BAK)
    valid_BAK = place_BAK < batch.end_B[:, None, None]
    context_BAS = torch.arange(num_slots, device=device) < anchor_BA[..., None]
    context_BQS = context_BAS.repeat_interleave(block_size, 1)
    block_Q = torch.arange(num_anchors, device=device).repeat_interleave(block_size)
    own_QQ = block_Q[:, None] == block_Q
    mask_BQX = torch.cat([context_BQS, own_QQ.expand(num_rows, -1, -1)], -1)
    return Blocks(token_BAK.flatten(1), place_BAK.flatten(1), mask_BQX[:, None], label_BAK[..., 1:], valid_BAK[..., 1:])
