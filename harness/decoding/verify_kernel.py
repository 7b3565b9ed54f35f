"""The contract of sgl-kernel's `tree_speculative_sampling_target_only`, in torch, and the door to the real one.

Shapes: B batch, N nodes with the root, W path width, V vocabulary.

Written after TreeSpeculativeSamplingTargetOnly (sgl-kernel csrc/speculative/speculative_sampling.cuh) and flashinfer's
DeviceSamplingFromProb. The same coins against the same float32 sums; the final draw adds up in another order.
"""

import importlib
import importlib.metadata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

NAME = "tree_speculative_sampling_target_only"
# Module, and the distributions that may own it. Compiled ahead of time up to sglang-kernel 0.4.7, at first use since.
HOMES = (
    ("sgl_kernel", ("sglang-kernel", "sgl-kernel")),
    ("sglang.kernels.ops.speculative.sampling", ("sglang",)),
    ("sglang.jit_kernel.speculative_sampling", ("sglang",)),
)


@dataclass(frozen=True)
class SglKernel:
    """The real kernel under the contract below, whichever build it is. Same positional arguments.

    origin: module, distribution and version, for the facts of a run. takes_equal: a coin equal to the running sum
    accepts, as in the builds ahead of time; the JIT build wants it smaller. One float less turns one rule into the other.
    """

    run: Callable[..., Any]
    origin: str
    takes_equal: bool

    def __call__(self, *arguments: Any) -> None:
        """Raises ValueError where the kernel's 32-bit offsets would wrap."""
        *before, coin_BN, final_B, target_BNV, draft_BNV = arguments[:11]
        if target_BNV.numel() >= 2**32:
            raise ValueError(
                f"engine.batch_size × nodes × vocabulary is {tuple(target_BNV.shape)}, and the kernel counts to 2**32. "
                "Lower engine.batch_size or speculative.tree_budget, or set speculative.verifier=coupled"
            )
        if not self.takes_equal:
            coin_BN = torch.nextafter(coin_BN, torch.zeros_like(coin_BN))
        self.run(*before, coin_BN, final_B, target_BNV, draft_BNV, *arguments[11:])


@lru_cache(maxsize=8)
def find_kernel(device_type: str) -> Callable[..., None]:
    """The implementation for a device: sgl-kernel's on CUDA, the one below elsewhere. Same positional arguments.

    The first call on CUDA runs a tree and waits for it, so it must come before a graph is captured. Raises ValueError
    when CUDA has no kernel: the form below would run there, N - 1 steps one after the other, and pass for the kernel.
    """
    return find_sgl_kernel("cuda") if device_type == "cuda" else tree_speculative_sampling_target_only


def kernel_origin(device_type: str) -> str:
    """Which implementation `find_kernel` gives, for the resolved facts of a run."""
    return getattr(find_kernel(device_type), "origin", "torch form of the contract")


def find_sgl_kernel(device: str) -> SglKernel:
    """The first kernel in HOMES, or registered as torch.ops.sgl_kernel, that verifies a small tree rightly.

    Found by what it does: its home, name and strictness have changed between versions. Raises ValueError.
    """
    reasons: list[str] = []
    for origin, kernel in _candidates(reasons):
        try:
            return SglKernel(kernel, origin, _takes_equal(kernel, device))
        except Exception as error:  # other arguments, another architecture, no compiler: all end in the message
            reasons.append(f"{origin}: {_brief(error)}")
    raise ValueError(
        "speculative.verifier=kernel: no kernel for CUDA tensors. Install one that fits this torch: pip install "
        "sglang-kernel (once sgl-kernel; from sglang 0.5.21 on sglang brings it), or set "
        f"speculative.verifier=coupled or walk. Tried: {'; '.join(reasons)}"
    )


def _candidates(reasons: list[str]) -> Iterator[tuple[str, Callable[..., Any]]]:
    for module_name, owners in HOMES:
        try:
            kernel = getattr(importlib.import_module(module_name), NAME)
        except Exception as error:  # a library that does not fit raises more than ImportError
            reasons.append(f"{module_name}: {_brief(error)}")
            continue
        yield f"{module_name} ({_version(owners)})", kernel
    if hasattr(torch.ops.sgl_kernel, NAME):
        yield f"torch.ops.sgl_kernel ({_version(HOMES[0][1])})", getattr(torch.ops.sgl_kernel, NAME)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def _version(owners: tuple[str, ...]) -> str:
    for owner in owners:
        try:
            return f"{owner} {importlib.metadata.version(owner)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "version unknown"


def _takes_equal(kernel: Callable[..., Any], device: str) -> bool:
    """Whether a coin equal to the sum accepts. Root and two leaves, p = 1/4 each, coin 1/2: the second leaf or none."""

    def ids(*values: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor([values], dtype=dtype, device=device)

    predicts, path, num = (ids(*[-7] * n, dtype=torch.int32) for n in (3, 2, 1))
    target = torch.full((1, 3, 4), 0.25, device=device)
    draft, coins = torch.zeros_like(target), torch.full((1, 3), 0.5, device=device)
    kernel(
        *(predicts[0], path, num[0], ids(0, 1, 2), ids(0, 1, 2), ids(1, -1, -1), ids(-1, 2, -1)),
        *(coins, coins[0, :1], target, draft, 1.0, 1.0, True),
    )
    got = num.item(), path[0].tolist(), predicts[0].tolist(), draft[0, 0].tolist()
    if got == (1, [0, 2], [2, -7, 2], [0.0, 0.25, 0.0, 0.0]):
        return True
    if got == (0, [0, -7], [3, -7, -7], [0.0, 0.25, 0.25, 0.0]):
        return False
    raise RuntimeError(f"answered {got} to the tree it is tried with")


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
    if left_BV.device.type == "cpu":  # one addition after the other, so the sum rises at positive entries alone
        first_B = torch.searchsorted(cdf_BV, (coin_B * cdf_BV[:, -1])[:, None], right=True)[:, 0]
        is_found_B = first_B < left_BV.shape[1]
        return first_B if bool(is_found_B.all()) else torch.where(is_found_B, first_B, last_positive(left_BV))
    beyond_BV = (cdf_BV > (coin_B * cdf_BV[:, -1])[:, None]) & (left_BV > 0)
    return torch.where(beyond_BV.any(1), beyond_BV.to(torch.int32).argmax(1), last_positive(left_BV))
