"""EAGLE-3 (arXiv 2503.01840) as SGLang has it. A name and the server's options: this project decodes no EAGLE drafter."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, MinLen
from torch import Tensor

from harness.decoding.tree import DraftTree
from harness.speculative.base import VerifierName


@dataclass(frozen=True, kw_only=True)
class Eagle3:
    """Options: SGLang's --speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens."""

    needs_drafter: ClassVar[bool] = True
    engines: ClassVar[tuple[str, ...]] = ("sglang", "openai")
    drafter: Annotated[str, MinLen(1)]  # the model's own drafter is a DFlash one
    num_steps: Annotated[int, Ge(1)] = 3
    top_k: Annotated[int, Ge(1)] = 1
    num_draft_tokens: Annotated[int, Ge(2)] = 4  # as SGLang counts: the root is one of them
    verifier: VerifierName = "kernel"

    def num_nodes(self, block_size: int) -> int:
        return self.num_draft_tokens

    def build(self, root_B: Tensor, draft_logits_BDV: Tensor | None) -> DraftTree:
        raise NotImplementedError("a server builds the trees of this mode")
