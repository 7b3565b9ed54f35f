"""The contract of sgl-kernel's `tree_speculative_sampling_target_only`, in torch, and the door to the real one.

Shapes: B batch, N nodes with the root, W path width, V vocabulary.

Written after TreeSpeculativeSamplingTargetOnly (sgl-kernel csrc/speculative/speculative_sampling.cuh) and flashinfer's
DeviceSamplingFromProb. The same coins against the same float32 sums; the final draw adds up in another order.
"""

import importlib
import importlib.util
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=8)
def find_kernel(device_type: str) -> Callable[..., None]:
    """The implementation for a device: sgl-kernel's where it can run, else the one below. Same positional arguments."""
    if device_type == "cuda" and importlib.util.find_spec("sgl_kernel") is not None:
        sgl_kernel = importlib.import_module("sgl_kernel")
        if hasattr(sgl_kernel, "tree_speculative_sampling_target_only"):
            return sgl_kernel.tree_speculative_sampling_target_only
    return tree_speculative_sampling_target_only


def tree_speculative_sampling_target_only(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Walk each tree with one coin a node, then draw the next token from what the rejected children left over.

    Written in place: predicts int32 [B·N] (the token after a node, at nodes of the path), accept_index int32 [B, W]
    (global rows of the path), accept_token_num int32 [B] (drafts only), draft_probs float32 [B, N, V] (scratch: zeros
    in, rejected children's mass out). Entries that no path reaches stay as they are.
    Read: candidates and retrieve_* int64 [B, N]; uniform_samples float32 [B, N] and [B], in (0, 1]; target_probs
    float32 [B, N, V]. As in the kernel, a coin of 0 accepts a child of probability 0, an all-zero residual gives V - 1,
    and thresholds below 1 or stale draft_probs bias the result.
    """
    del deterministic  # always is
    batch, num_nodes, _ = target_probs.shape
    width = accept_index.shape[1]
    b = torch.arange(batch, device=candidates.device)
    accept_over = max(threshold_acc, 1e-9)

    row = torch.zeros_like(b)  # the last accepted node, local
    place = retrieve_index[:, 0]  # the same, as a global row
    coin = uniform_samples[:, 0]
    mass = torch.zeros_like(coin)  # of the children tried so far at `row`
    num_accepted = torch.zeros_like(b)
    accept_index[:, 0] = place.to(accept_index.dtype)
    node = retrieve_next_token[:, 0]
    active = (node >= 0) & (width > 1)
    for _ in range(num_nodes - 1):  # every step tries another node
        if node.device.type == "cpu" and not bool(active.any()):
            break
        at = node.clamp(min=0)
        token = candidates[b, at]
        p = target_probs[b, row, token]
        mass = mass + p
        accept = active & ((coin <= mass / accept_over) | (p >= threshold_single))
        reject = active & ~accept
        draft_probs[b, row, token] = torch.where(reject, p, draft_probs[b, row, token])
        predicts[place] = torch.where(accept, token.to(predicts.dtype), predicts[place])
        num_accepted = num_accepted + accept
        place = torch.where(accept, retrieve_index[b, at], place)
        accept_index[b, num_accepted] = torch.where(accept, place.to(accept_index.dtype), accept_index[b, num_accepted])
        row = torch.where(accept, at, row)
        coin = torch.where(accept, uniform_samples[b, at], coin)
        mass = torch.where(accept, 0.0, mass)
        node = torch.where(accept, retrieve_next_token[b, at], retrieve_next_sibling[b, at])
        active = active & (node >= 0) & (num_accepted < width - 1)
    accept_token_num.copy_(num_accepted)

    # A path of full width ends on a leaf of the widest tree: the kernel reads no draft mass there.
    full = (num_accepted == width - 1)[:, None]
    left_BV = (target_probs[b, row] - torch.where(full, 0.0, draft_probs[b, row])).clamp(min=0)
    predicts[place] = _draw(left_BV, uniform_samples_for_final_sampling).to(predicts.dtype)


def last_positive(left_BV: Tensor) -> Tensor:
    """int64 [B], the highest id with positive mass; V - 1 where there is none."""
    vocab = left_BV.shape[1]
    from_end = (left_BV.flip(1) > 0).to(torch.int32).argmax(1)  # 0 where none
    return vocab - 1 - from_end


def _draw(left_BV: Tensor, coin_B: Tensor) -> Tensor:
    """First id whose running sum exceeds coin · total; the last positive one when rounding leaves none."""
    cdf_BV = left_BV.cumsum(1)
    beyond_BV = (cdf_BV > (coin_B * cdf_BV[:, -1])[:, None]) & (left_BV > 0)
    return torch.where(beyond_BV.any(1), beyond_BV.to(torch.int32).argmax(1), last_positive(left_BV))
