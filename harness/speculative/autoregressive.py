"""One target forward a token: a tree of the root alone, decoded by the same loop as every other mode."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from harness.decoding.tree import DraftTree, root_only
from harness.speculative.base import VerifierName


@dataclass(frozen=True, kw_only=True)
class Autoregressive:
    needs_drafter: ClassVar[bool] = False
    verifier: VerifierName = "kernel"

    def num_nodes(self, block_size: int) -> int:
        return 1

    def build(self, root_B: Tensor, draft_logits_BDV: Tensor | None) -> DraftTree:
        return root_only(root_B)
