"""One round on fixed buffers: draft -> build tree -> verify -> commit, without a question to the device.

Shapes: B batch, N tree nodes (root included), D draft depths, V vocabulary, W path width (D + 1), F feature size,
S stop ids, X = W + 4 entries of a report.

Everything that changes between rounds lives in tensors that are written in place: the same work can be done again
without the host, or be captured once as a CUDA graph. What the host wants to know of a round is one row a sample.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from harness.decoding.sampling import SamplingBatch
from harness.decoding.tree import DraftTree
from harness.decoding.verify import Verified, Verifier

# The columns of a report behind the W emitted tokens.
NUM_EMITTED, STOPPED, NUM_ACCEPTED, NUM_DRAFTS = -4, -3, -2, -1


class Target(Protocol):
    """The model whose distribution the output must have. It keeps the key/value rows of what was committed."""

    def prefill(self, prompts: list[list[int]], slots: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """Start a batch: logits_BV of each prompt's last token, features_BQF of its rows (None without), length_B."""

    def forward(self, tree: DraftTree, longest: int) -> tuple[Tensor, Tensor | None]:
        """logits_BNV and features_BNF of every node, each seeing the committed rows and its own ancestors.

        `longest` is the most rows that any sample has committed: the host knows it, so that no round asks the device.
        """

    def commit(self, path_BW: Tensor, num_B: Tensor) -> None:
        """Keep the rows of the first num_B nodes of the path, in order; forget the other nodes of the last forward."""


class Drafter(Protocol):
    block_size: int

    def new_state(self, batch: int, slots: int) -> Any: ...

    def extend(self, state: Any, feature_BQF: Tensor, num_B: Tensor) -> None: ...

    def propose(self, state: Any, root_B: Tensor, *, num_slots: int) -> Tensor: ...


@dataclass
class RoundState:
    """What a round reads and leaves behind, written in place.

    root_B int64: last committed tokens. index_B int64: their places in the output. active_B bool: false once a sample
    has ended; such a row emits nothing. cap_B int64: the most output tokens. stop_S int64. num_B int64: rows to commit.
    report_BX int64: W emitted tokens, then NUM_EMITTED, STOPPED, NUM_ACCEPTED (before the cut), NUM_DRAFTS (nodes less
    the root). Entries of a report behind its emitted tokens mean nothing.
    """

    root_B: Tensor
    index_B: Tensor
    active_B: Tensor
    cap_B: Tensor
    stop_S: Tensor
    num_B: Tensor
    report_BX: Tensor

    @classmethod
    def new(
        cls, batch: int, width: int, stop_ids: list[int], max_new_tokens: int, device: torch.device
    ) -> "RoundState":
        zero_B = torch.zeros(batch, dtype=torch.int64, device=device)
        return cls(
            root_B=zero_B.clone(),
            index_B=zero_B.clone(),
            active_B=torch.zeros(batch, dtype=torch.bool, device=device),
            cap_B=torch.full_like(zero_B, max_new_tokens),
            stop_S=torch.tensor(stop_ids, dtype=torch.int64, device=device),
            num_B=zero_B.clone(),
            report_BX=torch.zeros(batch, width + 4, dtype=torch.int64, device=device),
        )


# Verifies a tree's logits, then brings the state to the next root.
Sampler = Callable[[DraftTree, Tensor, SamplingBatch, RoundState], Verified]


def sampler(verify: Verifier) -> Sampler:
    """The sampler of a verifier, in torch."""

    def sample(tree: DraftTree, logits_BNV: Tensor, sampling: SamplingBatch, state: RoundState) -> Verified:
        verified = verify(tree, logits_BNV, sampling, state.index_B)
        finish(tree, verified, state)
        return verified

    return sample


def finish(tree: DraftTree, verified: Verified, state: RoundState) -> None:
    """Cut what was accepted at a stop id or the cap, and move the state to the next root."""
    token_BW = emitted_tokens(tree, verified)
    room_B = state.cap_B - 1 - state.index_B
    num_B, stopped_B = cut(token_BW, verified.num_accepted_B + 1, state.stop_S, room_B)
    num_B = torch.where(state.active_B, num_B, 0)
    last_B = token_BW.gather(1, (num_B - 1).clamp(min=0)[:, None])[:, 0]
    state.num_B.copy_(num_B)
    state.report_BX[:, :-4] = token_BW
    for column, value in (
        (NUM_EMITTED, num_B),
        (STOPPED, stopped_B),
        (NUM_ACCEPTED, verified.num_accepted_B),
        (NUM_DRAFTS, tree.count_B - 1),
    ):
        state.report_BX[:, column] = value
    state.root_B.copy_(torch.where(state.active_B, last_B, state.root_B))
    state.index_B += num_B
    state.active_B &= ~stopped_B & (state.index_B < state.cap_B - 1)


def emitted_tokens(tree: DraftTree, verified: Verified) -> Tensor:
    """int64 [B, W]: the accepted drafts, then the bonus token; entries behind it mean nothing."""
    follows_BW = torch.cat([verified.path_BW[:, 1:], verified.path_BW[:, :1]], dim=1).clamp(min=0)
    token_BW = tree.token_BN.gather(1, follows_BW)
    return token_BW.scatter(1, verified.num_accepted_B[:, None], verified.bonus_B[:, None])


def cut(token_BW: Tensor, num_B: Tensor, stop_S: Tensor, room_B: Tensor) -> tuple[Tensor, Tensor]:
    """How many of a round's num_B tokens reach the output, and whether the last of them is a stop id.

    A stop id ends the sample at itself, also inside the accepted path; `room_B` (int64, >= 1 while active) is the cap.
    A stop id in the last place that the cap allows counts as a stop.
    """
    width = token_BW.shape[1]
    place_W = torch.arange(width, device=token_BW.device)
    stop_BW = torch.isin(token_BW, stop_S) & (place_W < num_B[:, None])
    first_B = torch.where(stop_BW, place_W + 1, width + 1).amin(dim=1)
    kept_B = torch.minimum(torch.minimum(num_B, first_B), room_B)
    return kept_B, first_B <= kept_B


class Round:
    """The stages of a round, each leaving what the next one reads. `longest` bounds every committed length."""

    STAGES = ("draft", "build", "verify", "sample", "commit")

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        drafter_state: Any,
        build: Callable[[Tensor, Tensor | None], DraftTree],
        sample: Sampler,
        sampling: SamplingBatch,
        state: RoundState,
        num_nodes: int,
    ):
        self.target, self.drafter, self.drafter_state = target, drafter, drafter_state
        self.behaviours = build, sample
        self.sampling, self.state, self.num_nodes = sampling, state, num_nodes
        self.draft_logits_BDV: Tensor | None = None
        self.tree: DraftTree
        self.logits_BNV: Tensor
        self.feature_BNF: Tensor | None
        self.verified: Verified

    def draft(self, longest: int) -> None:
        if self.drafter:
            num_slots = longest + self.drafter.block_size
            self.draft_logits_BDV = self.drafter.propose(self.drafter_state, self.state.root_B, num_slots=num_slots)

    def build(self, longest: int) -> None:
        self.tree = self.behaviours[0](self.state.root_B, self.draft_logits_BDV)

    def verify(self, longest: int) -> None:
        self.logits_BNV, self.feature_BNF = self.target.forward(self.tree, longest)

    def sample(self, longest: int) -> None:
        self.verified = self.behaviours[1](self.tree, self.logits_BNV, self.sampling, self.state)

    def commit(self, longest: int) -> None:
        path_BW, num_B = self.verified.path_BW, self.state.num_B
        self.target.commit(path_BW, num_B)
        if self.drafter:
            assert self.feature_BNF is not None
            rows_BWF = path_BW.clamp(min=0)[..., None].expand(-1, -1, self.feature_BNF.shape[-1])
            self.drafter.extend(self.drafter_state, self.feature_BNF.gather(1, rows_BWF), num_B)

    def __call__(self, longest: int) -> None:
        for stage in self.STAGES:
            getattr(self, stage)(longest)
