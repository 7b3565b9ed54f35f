"""The decode loop: one round after the other, for every mode, until each sample of a batch has ended.

Shapes: B batch, V vocabulary, F feature size, Q prompt rows, S stop ids.

The root is the last committed token: it is in the output, but its key/value row is written by the round that it roots.
So the rows that a round commits are as many as the tokens that it emits: the root and the accepted path, less the last.
Autoregressive decoding is this loop with a tree of the root alone.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from harness.decoding.expected import path_moments, step_probabilities
from harness.decoding.round import (
    NUM_ACCEPTED,
    NUM_DRAFTS,
    NUM_EMITTED,
    STOPPED,
    Drafter,
    Round,
    RoundState,
    Sampler,
    Target,
    sampler,
)
from harness.decoding.sampling import SamplingBatch, probabilities
from harness.decoding.trace import MAX_TRACED_ROUNDS, TracedTree, trace_trees
from harness.decoding.tree import DraftTree, root_only
from harness.decoding.verify import Verifier


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


class Runner(Protocol):
    """Who does the rounds. `ahead` of them may be under way beyond the one that is read."""

    ahead: int

    def start(self, round: Round) -> Round:
        """Take a batch. Returns the round that does the work, with buffers of its own where it keeps some."""

    def launch(self, longest: int) -> None: ...

    def read(self) -> list[list[int]]:
        """The report of the oldest round that was launched and not yet read."""

    def end(self) -> None:
        """The batch has ended: leave nothing under way."""


class Stepwise:
    """One round at a time, each stage inside `stage(name)`."""

    ahead = 0

    def __init__(self, stage: Stage = lambda name: nullcontext()):
        self.stage = stage

    def start(self, round: Round) -> Round:
        self.round = round
        return round

    def launch(self, longest: int) -> None:
        for name in Round.STAGES:
            with self.stage(name):
                getattr(self.round, name)(longest)

    def read(self) -> list[list[int]]:
        return self.round.state.report_BX.tolist()

    def end(self) -> None:
        pass


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
    slots: int | None = None,
    sample: Sampler | None = None,
    runner: Runner | None = None,
    profile: Stage | None = None,
    observe: Observer = lambda rounds, tokens: None,
) -> list[Decoded]:
    """Decode a batch of prompts to their ends.

    `num_nodes` is the tree's width, root included. `slots`: key/value rows to provide for, by default what this batch
    needs (`slots_needed`). `sample` and `runner` do the same work faster where a device has something better than the
    torch form. With `profile`, stages run inside `profile(name)`, each round carries the expected number of
    accepted drafts and leaves a trace of its tree; leave it out where time is measured.
    """
    stage: Stage = profile or (lambda name: nullcontext())
    runner = runner or Stepwise(stage)
    results = [Decoded() for _ in prompts]
    block = drafter.block_size if drafter else 1
    slots = slots or slots_needed(max(map(len, prompts)), max_new_tokens, num_nodes, block)

    started = time.perf_counter()
    with stage("prefill"):
        logits_BV, feature_BQF, length_B = target.prefill(prompts, slots)
        drafter_state = None
        if drafter:
            assert feature_BQF is not None
            drafter_state = drafter.new_state(len(prompts), slots)
            drafter.extend(drafter_state, feature_BQF, length_B)
        if torch.isnan(logits_BV).any():
            raise ValueError(
                "the target's logits are NaN: its weights are damaged, or engine.dtype is too narrow for it"
            )
        # The token drawn from prefill has output index 0, so its "root" stands at -1.
        start = root_only(torch.zeros_like(length_B))
        root_B = verify(start, logits_BV[:, None], sampling, torch.full_like(length_B, -1)).bonus_B
    state = RoundState.new(len(prompts), block, stop_ids, max_new_tokens, root_B.device)
    state.root_B.copy_(root_B)
    stopped_B = torch.isin(root_B, state.stop_S)
    state.active_B.copy_(~stopped_B & (max_new_tokens > 1))
    roots, stopped = root_B.tolist(), stopped_B.tolist()
    ttft = time.perf_counter() - started
    for result, token, stop in zip(results, roots, stopped, strict=True):
        result.output_ids.append(token)
        result.ttft_s = ttft
        if stop or max_new_tokens == 1:
            result.finish_reason = "stop" if stop else "length"
    if all(result.finish_reason for result in results):
        return results

    round = Round(target, drafter, drafter_state, build, sample or sampler(verify), sampling, state, num_nodes)
    round = runner.start(round)
    context = length_B.tolist()
    under_way = 0
    started = time.perf_counter()
    while any(result.finish_reason is None for result in results):
        while under_way <= runner.ahead:
            # A round that is not read yet may have committed a whole path.
            runner.launch(min(max(context) + under_way * block, slots - max(num_nodes, block)))
            under_way += 1
        report = runner.read()
        under_way -= 1
        seen = _look(round, sampling) if profile else None
        elapsed = time.perf_counter() - started
        for b, result in enumerate(results):
            if result.finish_reason is not None:
                continue
            row = report[b]
            num = row[NUM_EMITTED]
            result.output_ids += row[:num]
            expected = (seen[0][b], seen[1][b]) if seen else (None, None)
            if seen and len(result.trees) < MAX_TRACED_ROUNDS:
                result.trees.append(seen[2][b])
            result.rounds.append(RoundStats(row[NUM_ACCEPTED], num, row[NUM_DRAFTS], context[b], *expected))
            result.decode_s = elapsed
            context[b] += num
            if row[STOPPED] or len(result.output_ids) >= max_new_tokens:
                result.finish_reason = "stop" if row[STOPPED] else "length"
            observe(1, num)
    runner.end()
    return results


def slots_needed(longest_prompt: int, max_new_tokens: int, num_nodes: int, block_size: int) -> int:
    """Key/value rows of the longest sample with the widest forward behind it, and a block of slack."""
    return longest_prompt + max_new_tokens + max(num_nodes, block_size) + block_size


def _look(round: Round, sampling: SamplingBatch) -> tuple[list[float], list[float], list[TracedTree]]:
    """Mean and variance of the accepted drafts under the target, and the tree itself: for the profile pass."""
    step_BN = step_probabilities(round.tree, probabilities(round.logits_BNV, sampling))
    mean_B, variance_B = path_moments(round.tree, step_BN)
    return mean_B.tolist(), variance_B.tolist(), trace_trees(round.tree, round.verified, step_BN)
