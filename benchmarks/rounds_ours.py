"""Our rounds for `benchmarks.rounds`: what engine=hf runs, opened on models in memory and set to a context at will.

On CUDA the fused stack, rounds replayed as CUDA graphs; elsewhere the plain loop, which the tests of this file use.
"""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.rounds_cells import tree_budget
from benchmarks.shapes import Shape, random_drafter, random_target
from harness.decoding.loop import Stepwise, slots_needed
from harness.decoding.round import Round, RoundState
from harness.decoding.sampling import SamplingParams, sampling_batch
from harness.engines.hf_models import samplers
from harness.speculative.autoregressive import Autoregressive
from harness.speculative.base import Mode, VerifierName
from harness.speculative.ddtree import DDTree
from harness.speculative.dflash import DFlash

NEVER = 10**9  # tokens that no sample reaches
PROMPT = [3, 4, 5, 6, 7, 8, 9, 10]


class OurModels:
    """Target and drafter of a shape with random weights; the target twice over, with and without a drafter's features."""

    def __init__(self, shape: Shape, device: str, dtype: torch.dtype, verifier: VerifierName):
        self.shape, self.device, self.fused, self.verifier = shape, device, device == "cuda", verifier
        self.model = random_target(shape, device, dtype)
        self.network = random_drafter(shape, self.model, device, dtype)
        if self.fused:
            from harness.engines.hf_fused import FusedDrafter, FusedTarget

            kind: Any = FusedTarget
            self.drafter: Any = FusedDrafter(self.network)
        else:
            from harness.engines.hf_target import HFTarget

            kind, self.drafter = HFTarget, self.network
        self.bare = kind(self.model, feature_layers=[])
        self.target = kind(self.model, feature_layers=list(shape.target_layer_ids))
        assert self.target.streamed_bytes() == shape.target_bytes * dtype.itemsize // 2

    def open(self, mode: str, batch: int, context: int, temperature: float) -> "OurRound":
        """`context` sizes the buffers, twice as long; `OurRound.set_context` goes there."""
        return OurRound(self, mode, batch, 2 * context, temperature)


class OurRound:
    """One mode at one batch. Every group's modes share their buffers, so set the context before each use."""

    @torch.inference_mode()
    def __init__(self, models: OurModels, name: str, batch: int, rows: int, temperature: float):
        mode = our_mode(name, models.verifier)
        block = models.shape.block_size
        self.target = models.target if mode.needs_drafter else models.bare
        self.drafter = models.drafter if mode.needs_drafter else None
        num_nodes = mode.num_nodes(block)
        slots = slots_needed(rows, 0, 512, block)  # the widest tree's, so that a group shares its buffers
        sampling = sampling_batch([SamplingParams(temperature, stream=b) for b in range(batch)], models.device)
        _, sample = samplers(models.verifier, fused=models.fused)
        self.prefill([PROMPT] * batch, slots)
        self.state = RoundState.new(batch, block if self.drafter else 1, [], NEVER, torch.device(models.device))
        self.round_ = Round(
            self.target, self.drafter, self.drafter_state, mode.build, sample, sampling, self.state, num_nodes
        )
        self.runner: Any = Stepwise()
        if models.fused:
            from harness.engines.hf_graphs import GraphRunner

            self.runner = GraphRunner()
        self.set_context(len(PROMPT))
        self.runner.start(self.round_)

    def prefill(self, prompts: list[list[int]], slots: int) -> None:
        _, feature_BQF, length_B = self.target.prefill(prompts, slots)
        self.drafter_state = None
        if self.drafter:
            self.drafter_state = self.drafter.new_state(len(prompts), slots)
            self.drafter.extend(self.drafter_state, feature_BQF, length_B)

    @torch.inference_mode()
    def set_context(self, length: int) -> None:
        """As though so many tokens were committed. Rows never written are zeros: what they hold costs nothing."""
        self.longest = length
        caches = [self.target.cache] + ([self.drafter_state.cache] if self.drafter else [])
        for cache in caches:
            cache.length_B.fill_(length)
        self.state.root_B.fill_(PROMPT[0])
        self.state.index_B.zero_()
        self.state.active_B.fill_(True)

    @torch.inference_mode()
    def round(self) -> None:
        """Enqueue a whole round, as the engine does, and wait for nothing."""
        self.longest += 1  # random drafts are hardly ever accepted; the next power of two is far
        self.runner.launch(self.longest)

    @torch.inference_mode()
    def rounds(self, number: int) -> None:
        """So many rounds as the engine decodes them, each one's report read on the host while the next is under way."""
        for place in range(number + self.runner.ahead):
            if place < number:
                self.round()
            if place >= self.runner.ahead:
                self.runner.read()

    @torch.inference_mode()
    def stages(self, captured: Callable[[Callable[[], None]], Callable[[], None]]) -> dict[str, Callable[[], None]]:
        """Each stage of the round by itself, made repeatable by `captured` (a CUDA graph, or the thing itself)."""
        longest = self.longest
        found = {}
        for name in Round.STAGES:
            if name == "draft" and not self.drafter:
                continue
            stage = getattr(self.round_, name)
            found[name] = captured(lambda stage=stage: stage(longest))
        return found

    @torch.inference_mode()
    def drain(self) -> None:
        """Wait, and forget reports that nobody read."""
        self.runner.start(self.round_)


def our_mode(name: str, verifier: VerifierName) -> Mode:
    if budget := tree_budget(name):
        return DDTree(tree_budget=budget, verifier=verifier)
    return DFlash(verifier=verifier) if name == "dflash" else Autoregressive(verifier=verifier)
