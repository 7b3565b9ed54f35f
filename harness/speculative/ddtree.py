"""DDTree (arXiv 2604.12989): the `tree_budget` most likely prefixes under the drafter's per-position marginals."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le
from torch import Tensor

from harness.decoding.tree import DraftTree
from harness.kernels.choice import searchers
from harness.speculative.base import VerifierName


@dataclass(frozen=True, kw_only=True)
class DDTree:
    needs_drafter: ClassVar[bool] = True
    tree_budget: Annotated[int, Ge(1), Le(4096)] = 15
    spine: bool = False
    verifier: VerifierName = "kernel"
    drafter: str | None = None

    def num_nodes(self, block_size: int) -> int:
        if self.spine and self.tree_budget < block_size - 1:
            raise ValueError(
                f"speculative.tree_budget={self.tree_budget}: speculative.spine=true keeps a chain of {block_size - 1} "
                f"draft nodes, so the budget must be at least {block_size - 1}"
            )
        return self.tree_budget + 1

    def build(self, root_B: Tensor, draft_logits_BDV: Tensor | None) -> DraftTree:
        assert draft_logits_BDV is not None
        candidates, search = searchers(draft_logits_BDV, self.tree_budget)
        logp_BDK, id_BDK = candidates(draft_logits_BDV, min(self.tree_budget, draft_logits_BDV.shape[-1]))
        return search(root_B, logp_BDK, id_BDK, self.tree_budget, self.spine)
