"""Rounds as CUDA graphs: one launch a round, and the next one under way before the host reads the last.

A captured graph does the same work at the same addresses, so a round's buffers must stay in place from one batch to the
next: `FusedTarget` and `FusedDrafter` keep theirs, the runner keeps its own state and copies each batch's values into
it. A graph serves every context up to a bound; bounds grow by powers of two, so few are captured.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor

from harness.decoding.round import NUM_EMITTED, Round
from harness.decoding.sampling import SamplingBatch

SMALLEST_BOUND = 256


class GraphRunner:
    """`harness.decoding.loop.Runner` on one CUDA device. capture_s: seconds spent on capturing so far."""

    ahead = 1  # the host reads a round while the next one runs

    def __init__(self) -> None:
        self.capture_s = 0.0
        self._round: Round | None = None
        self._held: list[Any] = []  # the caches whose addresses the graphs hold
        self._graphs: dict[int, Callable[[], None]] = {}  # by bound on the context
        self._launched = self._read = 0

    def start(self, round: Round) -> Round:
        """Take a batch; returns the round whose buffers are in use.

        What was captured stays if it fits: the same buffers, filters and modes.
        """
        kept, caches = self._round, _caches(round)
        in_place = len(caches) == len(self._held) and all(a is b for a, b in zip(caches, self._held, strict=True))
        if kept is not None and in_place and _serves(kept, round):
            for name in ("root_B", "index_B", "active_B", "cap_B", "stop_S"):
                getattr(kept.state, name).copy_(getattr(round.state, name))
            for name in _TENSORS:
                getattr(kept.sampling, name).copy_(getattr(round.sampling, name))
        else:
            self._round, self._held = round, caches
            self._graphs.clear()
            self._prepare(round.state.report_BX)
        self._launched = self._read = 0
        assert self._round is not None
        return self._round

    def launch(self, longest: int) -> None:
        round = self._round
        assert round is not None
        self._graph(next(bound for bound in self._bounds() if bound >= longest))()
        self._send(round.state.report_BX, self._launched % 2)
        self._launched += 1

    @torch.inference_mode()
    def capture_all(self) -> None:
        """Capture for every context there is room for, now, so that no timed round has to."""
        for bound in self._bounds():
            self._graph(bound)

    def _bounds(self) -> Iterator[int]:
        round = self._round
        assert round is not None
        width = round.state.report_BX.shape[1] + NUM_EMITTED  # of a path; the report's counts stand behind it
        room = min(cache.slots for cache in self._held) - max(round.num_nodes, width)
        bound = SMALLEST_BOUND
        while bound < room:
            yield bound
            bound *= 2
        yield room

    def _graph(self, bound: int) -> Callable[[], None]:
        assert self._round is not None
        if bound not in self._graphs:
            self._graphs[bound] = self._capture(self._round, bound)
        return self._graphs[bound]

    def read(self) -> list[list[int]]:
        side = self._read % 2
        self._read += 1
        return self._receive(side)

    def end(self) -> None:
        """Wait for the round that was under way when the last sample ended: it belongs to no clock."""
        self._drain()

    def _capture(self, round: Round, longest: int) -> Callable[[], None]:
        """Run the round once, so that kernels are compiled and tables made; undo it; record it."""
        started = time.perf_counter()
        state = round.state
        changed = [state.root_B, state.index_B, state.active_B, state.num_B, state.report_BX]
        changed += [cache.length_B for cache in self._held]
        before = [tensor.clone() for tensor in changed]
        self._rehearse(lambda: round(longest))
        for tensor, value in zip(changed, before, strict=True):
            tensor.copy_(value)  # rows behind the lengths are garbage that the next round overwrites
        replay = self._record_round(round, longest)
        self.capture_s += time.perf_counter() - started
        return replay

    def _record_round(self, round: Round, longest: int) -> Callable[[], None]:
        return self._record(lambda: round(longest))

    # What touches the device, and nothing else does.

    def _prepare(self, report_BX: Tensor) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._host = [torch.empty(report_BX.shape, dtype=report_BX.dtype, pin_memory=True) for _ in range(2)]
        self._ready = [torch.cuda.Event() for _ in range(2)]

    def _rehearse(self, work: Callable[[], None]) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)

    def _record(self, work: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        torch.cuda.synchronize()
        return graph.replay

    def _send(self, report_BX: Tensor, side: int) -> None:
        self._host[side].copy_(report_BX, non_blocking=True)
        self._ready[side].record()

    def _receive(self, side: int) -> list[list[int]]:
        self._ready[side].synchronize()
        return self._host[side].tolist()

    def _drain(self) -> None:
        torch.cuda.synchronize()


class StagedRunner(GraphRunner):
    """For the profile pass: a graph a stage, timed on the device. `seconds`, by stage, grow as rounds are read."""

    ahead = 0

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = {}
        self._marks: list[Any] = []

    def read(self) -> list[list[int]]:
        report = super().read()
        for name, begin, end in zip(Round.STAGES, self._marks[:-1], self._marks[1:], strict=True):
            self.seconds[name] = self.seconds.get(name, 0.0) + self._seconds_between(begin, end)
        return report

    def _record_round(self, round: Round, longest: int) -> Callable[[], None]:
        replays = [self._record(partial(getattr(round, name), longest)) for name in Round.STAGES]

        def replay() -> None:
            self._marks = [self._mark()]
            for stage in replays:
                stage()
                self._marks.append(self._mark())

        return replay

    def _mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds_between(self, begin: Any, end: Any) -> float:
        return begin.elapsed_time(end) / 1e3


_TENSORS = [field.name for field in fields(SamplingBatch) if field.name.endswith("_B")]
_FLAGS = [field.name for field in fields(SamplingBatch) if not field.name.endswith("_B")]


def _caches(round: Round) -> list[Any]:
    return [round.target.cache] + ([round.drafter_state.cache] if round.drafter else [])  # type: ignore[attr-defined]  # only targets that keep one are captured


def _serves(kept: Round, new: Round) -> bool:
    """Whether graphs captured for one round do the work of another one once its values are copied in."""

    def fixed(round: Round) -> tuple[Any, ...]:
        state, sampling = round.state, round.sampling
        shapes = state.root_B.shape, state.report_BX.shape, state.stop_S.shape
        return *round.behaviours, round.num_nodes, *shapes, *(getattr(sampling, flag) for flag in _FLAGS)

    return kept.target is new.target and kept.drafter is new.drafter and fixed(kept) == fixed(new)
