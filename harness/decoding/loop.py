"""The decode loop: draft -> build tree -> verify -> commit, one round a target forward, for every mode.

Shapes: B batch, N tree nodes (root included), D draft depths, V vocabulary, W path width (D + 1), F feature size,
S stop ids.

The root is the last committed token: it is in the output, but its key/value row is written by the round that it roots.
So the rows that a round commits are as many as the tokens that it emits: the root and the accepted path, less the last.
Autoregressive decoding is this loop with a tree of the root alone.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from harness.decoding.expected import path_moments, step_probabilities
from harness.decoding.sampling import SamplingBatch, probabilities
from harness.decoding.trace import MAX_TRACED_ROUNDS, TracedTree, trace_trees
from harness.decoding.tree import DraftTree, root_only
from harness.decoding.verify import Verified, Verifier


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


@dataclass(frozen=True)
class RoundStats:
    num_accepted: int
    num_emitted: int
    num_nodes: int
    context_length: int
    expected_accepted: float | None = None
    expected_variance: float | None = None


@dataclass
class Decoded:
    output_ids: list[int] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] | None = None
    rounds: list[RoundStats] = field(default_factory=list)
    trees: list[TracedTree] = field(default_factory=list)  # of the first rounds, with `profile` only
    ttft_s: float = 0.0
    decode_s: float = 0.0


Stage = Callable[[str], AbstractContextManager]
Observer = Callable[[int, int], None]  # (rounds, tokens) that have just been added


@torch.inference_mode()
def decode(
    target: Target,
    drafter: Drafter | None,
    build: Callable[[Tensor, Tensor | None], DraftTree],
    verify: Verifier,
    prompts: list[list[int]],
    sampling: SamplingBatch,
    *,
    max_new_tokens: int,
    num_nodes: int,
    stop_ids: list[int],
    profile: Stage | None = None,
    observe: Observer = lambda rounds, tokens: None,
) -> list[Decoded]:
    """Decode a batch of prompts to their ends.

    `num_nodes` is the tree's width, root included. With `profile`, each stage runs inside `profile(name)`, each round
    carries the expected number of accepted drafts and leaves a trace of its tree; leave it out where time is measured.
    """
    stage: Stage = profile or (lambda name: nullcontext())
    device = sampling.temperature_B.device
    results = [Decoded() for _ in prompts]
    block = drafter.block_size if drafter else 1
    slots = max(map(len, prompts)) + max_new_tokens + max(num_nodes, block) + block

    started = time.perf_counter()
    with stage("prefill"):
        logits_BV, feature_BQF, length_B = target.prefill(prompts, slots)
        state = None
        if drafter:
            assert feature_BQF is not None
            state = drafter.new_state(len(prompts), slots)
            drafter.extend(state, feature_BQF, length_B)
        if torch.isnan(logits_BV).any():
            raise ValueError(
                "the target's logits are NaN: its weights are damaged, or engine.dtype is too narrow for it"
            )
        # The token drawn from prefill has output index 0, so its "root" stands at -1.
        start = root_only(torch.zeros(len(prompts), dtype=torch.int64, device=device))
        root_B = verify(start, logits_BV[:, None], sampling, torch.full_like(length_B, -1)).bonus_B
    stop_S = torch.tensor(stop_ids, dtype=torch.int64, device=device)
    stopped = torch.isin(root_B, stop_S).tolist()
    ttft = time.perf_counter() - started
    for result, token, stop in zip(results, root_B.tolist(), stopped, strict=True):
        result.output_ids.append(token)
        result.ttft_s = ttft
        if stop or max_new_tokens == 1:
            result.finish_reason = "stop" if stop else "length"

    index_B = torch.zeros_like(length_B)  # place of the root in the output
    context = length_B.tolist()
    started = time.perf_counter()
    while any(result.finish_reason is None for result in results):
        active_B = torch.tensor([result.finish_reason is None for result in results], device=device)
        with stage("draft"):
            draft_logits_BDV = drafter.propose(state, root_B, num_slots=max(context) + block) if drafter else None
        with stage("build"):
            tree = build(root_B, draft_logits_BDV)
        with stage("verify"):
            logits_BNV, feature_BNF = target.forward(tree, max(context))
        with stage("sample"):
            verified = verify(tree, logits_BNV, sampling, index_B)
            token_BW = emitted_tokens(tree, verified)
            num_B, stopped_B = cut(token_BW, verified.num_accepted_B + 1, stop_S, max_new_tokens - 1 - index_B)
            num_B = torch.where(active_B, num_B, 0)
        with stage("commit"):
            target.commit(verified.path_BW, num_B)
            if drafter:
                assert feature_BNF is not None
                rows_BWF = verified.path_BW.clamp(min=0)[..., None].expand(-1, -1, feature_BNF.shape[-1])
                drafter.extend(state, feature_BNF.gather(1, rows_BWF), num_B)
        seen = _look(tree, logits_BNV, sampling, verified) if profile else None
        index_B = index_B + num_B
        root_B = torch.where(active_B, token_BW.gather(1, (num_B - 1).clamp(min=0)[:, None])[:, 0], root_B)

        tokens, nums, stops = token_BW.tolist(), num_B.tolist(), stopped_B.tolist()
        accepted, nodes = verified.num_accepted_B.tolist(), (tree.count_B - 1).tolist()
        elapsed = time.perf_counter() - started
        for b, result in enumerate(results):
            if result.finish_reason is not None:
                continue
            result.output_ids += tokens[b][: nums[b]]
            expected = (seen[0][b], seen[1][b]) if seen else (None, None)
            if seen and len(result.trees) < MAX_TRACED_ROUNDS:
                result.trees.append(seen[2][b])
            result.rounds.append(RoundStats(accepted[b], nums[b], nodes[b], context[b], *expected))
            result.decode_s = elapsed
            context[b] += nums[b]
            if stops[b] or len(result.output_ids) >= max_new_tokens:
                result.finish_reason = "stop" if stops[b] else "length"
            observe(1, nums[b])
    return results


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


def _look(
    tree: DraftTree, logits_BNV: Tensor, sampling: SamplingBatch, verified: Verified
) -> tuple[list[float], list[float], list[TracedTree]]:
    """Mean and variance of the accepted drafts under the target, and the tree itself: for the profile pass."""
    step_BN = step_probabilities(tree, probabilities(logits_BNV, sampling))
    mean_B, variance_B = path_moments(tree, step_BN)
    return mean_B.tolist(), variance_B.tolist(), trace_trees(tree, verified, step_BN)
