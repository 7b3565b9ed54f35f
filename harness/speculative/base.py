"""What a speculative mode is: it turns a root and the drafter's block into a draft tree. Nothing else differs."""

from typing import ClassVar, Literal, Protocol

from torch import Tensor

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
