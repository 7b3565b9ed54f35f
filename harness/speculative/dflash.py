"""DFlash as published (arXiv 2602.06036): the chain of the drafter's most likely token at each depth."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from harness.decoding.tree import DraftTree, chain, level_wise
from harness.kernels.choice import searchers
from harness.speculative.base import VerifierName


@dataclass(frozen=True, kw_only=True)
class DFlash:
    """The draft is deterministic whatever the temperature: verification alone draws, so the output stays exact."""

    needs_drafter: ClassVar[bool] = True
    verifier: VerifierName = "kernel"
    drafter: str | None = None

    def num_nodes(self, block_size: int) -> int:
        return block_size

    def build(self, root_B: Tensor, draft_logits_BDV: Tensor | None) -> DraftTree:
        assert draft_logits_BDV is not None
        candidates, search = searchers(draft_logits_BDV, draft_logits_BDV.shape[1])
        logp_BD1, id_BD1 = candidates(draft_logits_BDV, 1)
        if search is not level_wise:  # the best prefixes of one candidate a depth are the chain, in one launch
            return search(root_B, logp_BD1, id_BD1, logp_BD1.shape[1])
        return chain(root_B, id_BD1[..., 0], logp_BD1[..., 0].cumsum(-1))
