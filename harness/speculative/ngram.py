"""SGLang's n-gram speculation: drafts are looked up in the text so far, without a drafter. A name and its options."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

from harness.decoding.tree import DraftTree
from harness.speculative.base import VerifierName


@dataclass(frozen=True, kw_only=True)
class Ngram:
    """Options: SGLang's --speculative-num-draft-tokens and --speculative-ngram-max-trie-depth."""

    needs_drafter: ClassVar[bool] = False
    engines: ClassVar[tuple[str, ...]] = ("sglang", "openai")
    num_draft_tokens: Annotated[int, Ge(2)] = 12  # as SGLang counts: the root is one of them
    max_trie_depth: Annotated[int, Ge(2)] = 18
    verifier: VerifierName = "kernel"

    def num_nodes(self, block_size: int) -> int:
        return self.num_draft_tokens

    def build(self, root_B: Tensor, draft_logits_BDV: Tensor | None) -> DraftTree:
        raise NotImplementedError("a server builds the trees of this mode")
