"""The kernels where they serve, the torch forms that they equal elsewhere: on a CPU, for float64, without Triton.

Shapes: B batch, D draft depths, V vocabulary.
"""

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from harness.decoding import tree
from harness.decoding.sampling import SamplingBatch
from harness.decoding.tree import DraftTree
from harness.decoding.verify import VERIFIERS, Verified, Verifier


def searchers(logits_BDV: Tensor, budget: int) -> tuple[Callable[..., Any], Callable[..., DraftTree]]:
    """(`candidates`, `level_wise`) of harness.decoding.tree, or their kernels: the same arrays."""
    if logits_BDV.is_cuda and logits_BDV.dtype != torch.float64 and kernels() and budget <= kernels().most_budget:
        return kernels().candidates, kernels().build_tree
    return tree.candidates, tree.level_wise


def verifier(name: str) -> Verifier:
    """`harness.decoding.verify.VERIFIERS[name]`, by kernels where there are some for it."""

    def verify(draft: DraftTree, logits_BNV: Tensor, sampling: SamplingBatch, index_B: Tensor) -> Verified:
        here = kernels().verifiers if logits_BNV.is_cuda and kernels() else {}
        return here.get(name, VERIFIERS[name])(draft, logits_BNV, sampling, index_B)

    return verify


@cache
def kernels() -> Any:
    """Functions by name; None without Triton."""
    try:
        from harness.kernels.candidates import candidates
        from harness.kernels.tree_build import MOST_BUDGET, build_tree
        from harness.kernels.verify import verify_coupled, verify_kernel
    except ImportError:
        return None
    return SimpleNamespace(
        candidates=candidates,
        build_tree=build_tree,
        most_budget=MOST_BUDGET,
        verifiers={"coupled": verify_coupled, "kernel": verify_kernel},
    )
