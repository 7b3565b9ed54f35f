"""The functions that serve, as the certificate calls them. A negative control replaces one of them by a known mistake.

Shapes: B draws, N nodes with the root, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from harness.decoding.sampling import SamplingBatch, probabilities
from harness.decoding.tree import DraftTree
from harness.decoding.verify import (
    Verified,
    Verifier,
    accept_by_kernel,
    kernel_coins,
    verify_coupled,
    verify_kernel,
    verify_walk,
)

Build = Callable[[Tensor, Tensor | None], DraftTree]
Commit = Callable[[Tensor, Tensor], None]


class KernelRedraw:
    """`verify_kernel` for many draws of one context: tree and logits_1NV of one request, `sampling` and index_B of B.

    The same steps, but the probabilities are computed once, and in the kept scratch only what can have been written,
    the children's places, is set back to zero.
    """

    def __init__(self) -> None:
        self._logits = self._target = self._scratch = torch.empty(0)

    def __call__(self, tree: DraftTree, logits_1NV: Tensor, sampling: SamplingBatch, index_B: Tensor) -> Verified:
        if logits_1NV is not self._logits:
            self._logits, self._target = logits_1NV, probabilities(logits_1NV, first_request(sampling))
        draws = len(index_B)
        coin_BN, final_B = kernel_coins(tree, self._target, sampling, index_B)
        target_BNV = self._target.expand(draws, -1, -1)
        if len(self._scratch) < draws or self._scratch.shape[1:] != target_BNV.shape[1:]:
            self._scratch = torch.zeros(target_BNV.shape, dtype=target_BNV.dtype, device=target_BNV.device)
        draft_BNV = self._scratch[:draws]
        verified = accept_by_kernel(repeated(tree, draws), target_BNV, coin_BN, final_B, draft_BNV)
        self.clean(draft_BNV, tree)
        return verified

    def clean(self, draft_BNV: Tensor, tree: DraftTree) -> None:
        draft_BNV[:, tree.parent_BN[0].clamp(min=0), tree.token_BN[0]] = 0


def redraw_with(verify: Verifier) -> Verifier:
    """Any verifier for many draws of one context; the logits are repeated without a copy."""

    def redraw(tree: DraftTree, logits_1NV: Tensor, sampling: SamplingBatch, index_B: Tensor) -> Verified:
        draws = len(index_B)
        return verify(repeated(tree, draws), logits_1NV.expand(draws, -1, -1), sampling, index_B)

    return redraw


def repeated(tree: DraftTree, times: int) -> DraftTree:
    """The tree of one request, `times` times, without a copy; what was derived from it is derived again."""
    names = [f.name for f in fields(tree) if f.name.endswith(("_BN", "_B"))]
    copies = {name: getattr(tree, name).expand(times, *getattr(tree, name).shape[1:]) for name in names}
    return replace(tree, **copies, ancestors_BNN=None, layout=None)


def first_request(sampling: SamplingBatch) -> SamplingBatch:
    return replace(sampling, **{f.name: getattr(sampling, f.name)[:1] for f in fields(sampling) if "_B" in f.name})


@dataclass
class Serving:
    """verify: the verifiers by name. redraw: the same for many draws of one context. build and commit: given the
    function that serves, the one to use. lowest_coin: the least number that `noise.uniform` gives."""

    verify: dict[str, Verifier] = field(
        default_factory=lambda: {"kernel": verify_kernel, "walk": verify_walk, "coupled": verify_coupled}
    )
    redraw: dict[str, Verifier] = field(
        default_factory=lambda: {
            "kernel": KernelRedraw(),
            "walk": redraw_with(verify_walk),
            "coupled": redraw_with(verify_coupled),
        }
    )
    build: Callable[[Build], Build] = lambda build: build
    commit: Callable[[Commit], Commit] = lambda commit: commit
    lowest_coin: float = 2.0**-24
