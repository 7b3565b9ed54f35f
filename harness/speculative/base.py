"""What a speculative mode is: it turns a root and the drafter's block into a draft tree. Nothing else differs."""

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from harness.decoding import tree
from harness.decoding.tree import DraftTree

VerifierName = Literal["kernel", "walk", "coupled"]


class Mode(Protocol):
    """Implementations are dataclasses: their fields are the keys that `speculative.KEY=...` may set."""

    needs_drafter: ClassVar[bool]
    verifier: VerifierName

    def num_nodes(self, block_size: int) -> int:
        """Nodes of every tree, root included. Raises ValueError when the drafter's block cannot serve this setting."""

    def build(self, root_B: Tensor, draft_logits_BDV: Tensor | None) -> DraftTree:
        """The tree under root_B (int64 [B]); draft_logits_BDV are the drafter's logits for depths 1..D, None without."""


def searchers(logits_BDV: Tensor, budget: int) -> tuple[Callable[..., Any], Callable[..., DraftTree]]:
    """(`candidates`, `level_wise`) of harness.decoding.tree, or their kernels where these serve: the same arrays."""
    if logits_BDV.is_cuda and logits_BDV.dtype != torch.float64 and (kernels := _kernels()) and budget <= kernels[2]:
        return kernels[:2]
    return tree.candidates, tree.level_wise


@cache
def _kernels() -> tuple[Any, ...]:
    try:
        from harness.kernels.candidates import candidates
        from harness.kernels.tree_build import MOST_BUDGET, build_tree
    except ImportError:  # no Triton: the torch forms do the same, launch by launch
        return ()
    return candidates, build_tree, MOST_BUDGET
