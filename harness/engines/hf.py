"""engine=hf: transformers models in this process, on the CPU or on one CUDA device."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from harness.engines.base import WARM_UP_TOKENS, Generation, Request, Setup
from harness.records import Round, TreeTrace


@dataclass(frozen=True, kw_only=True)
class HFEngine:
    owns_device: ClassVar[bool] = True
    dtype: Literal["auto", "bfloat16", "float16", "float32", "float64"] = "auto"
    attention: Literal["auto", "sdpa", "eager"] = "auto"
    graphs: Literal["auto", "on", "off"] = "auto"
    batch_size: Annotated[int, Ge(1)] = 1
    threads: Annotated[int, Ge(1)] | None = None

    def open(self, setup: Setup) -> "HFSession":
        """Load target and drafter. Raises ValueError when the drafter does not fit or the target is not supported."""
        if setup.hardware.count != 1:
            raise ValueError(f"hardware.count={setup.hardware.count}: engine=hf runs on one device. Allowed: 1")
        return HFSession(self, setup)


class HFSession:
    def __init__(self, engine: HFEngine, setup: Setup):
        import torch

        from harness.decoding.verify_kernel import kernel_origin
        from harness.engines.hf_models import load_models, samplers, why_no_graphs

        if engine.threads:
            torch.set_num_threads(engine.threads)
        self.engine, self.setup = engine, setup
        mode, device = setup.mode, setup.hardware.device
        dtype = getattr(torch, _resolve_dtype(engine.dtype, device))
        no_graphs = why_no_graphs(engine.graphs, engine.attention, mode.verifier, setup.target, dtype, device)
        self.target, self.drafter = load_models(setup, dtype, engine.attention, fused=no_graphs is None)
        block_size = self.drafter.block_size if self.drafter else 1
        self.num_nodes = mode.num_nodes(block_size)
        self.verify, self.sample = samplers(mode.verifier, fused=no_graphs is None)
        self.runner: Any = None
        if no_graphs is None:
            from harness.engines.hf_graphs import GraphRunner, StagedRunner

            self.runner, self.staged = GraphRunner(), StagedRunner()
        self.resolved: dict[str, Any] = {
            "dtype": str(dtype).removeprefix("torch."),
            "attention": self.target.attention if no_graphs else "tree_attention",
            "graph_mode": "rounds" if no_graphs is None else "none",
            "graphs": "on" if no_graphs is None else f"off: {no_graphs}",
            "threads": torch.get_num_threads(),
            "block_size": block_size,
            "nodes_per_round": self.num_nodes,
            "warm_up_tokens": WARM_UP_TOKENS,
            "target_weight_bytes": self.target.streamed_bytes(),
        }
        if mode.verifier == "kernel":
            self.resolved["kernel"] = kernel_origin(device)  # refuses a CUDA device without one, now
        self.measured: dict[str, float] = {}
        self._warm = False
        self._slots = 0

    def generate(
        self, requests: list[Request], *, profile: bool = False, observe: Callable[[int, int], None] | None = None
    ) -> Iterator[Generation]:
        """Decode in batches of `engine.batch_size`, in order. A batch that fails yields error generations."""
        size = self.engine.batch_size
        if requests and not (self._provide(requests) and self._warm):
            self._decode(requests[:size], WARM_UP_TOKENS, None, None)
            if self.runner:
                self.runner.capture_all()
                self.measured["graph_capture_s"] = self.runner.capture_s
            self._warm = True
        for start in range(0, len(requests), size):
            batch = requests[start : start + size]
            stopwatch = _Stopwatch(self.setup.hardware.device) if profile else None
            try:
                decoded = self._decode(batch, self.setup.sampling.max_new_tokens, stopwatch, observe)
            except Exception as error:  # one sample's failure is a record, never the end of the run
                for request in batch:
                    yield Generation(request=request, error=f"{type(error).__name__}: {error}")
                continue
            batch_s = max(result.decode_s for result in decoded)  # a batch decodes, and ends, together
            for request, result in zip(batch, decoded, strict=True):
                yield Generation(
                    request=request,
                    output_ids=result.output_ids,
                    finish_reason=result.finish_reason,
                    rounds=[Round(**vars(stats)) for stats in result.rounds],
                    ttft_s=result.ttft_s,
                    decode_s=batch_s if result.rounds else None,
                    batch_size=len(batch),
                    stage_s=dict(stopwatch.seconds) if stopwatch else None,
                    trees=[TreeTrace(texts=[], **vars(tree)) for tree in result.trees] if profile else None,
                )

    def target_logprob(self, request: Request, output_ids: list[int]) -> float:
        """Mean natural log-probability of an output token under the target, at temperature 1 and without filters."""
        from harness.engines.target_logprob import mean_target_logprob

        return mean_target_logprob(self.target.model, request.prompt_ids, output_ids)

    def peak_memory_bytes(self) -> int:
        """Peak of the CUDA allocator, or of the process's resident memory on the CPU."""
        import torch

        if self.setup.hardware.device == "cuda":
            return torch.cuda.max_memory_allocated()
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def close(self) -> None:
        self.target = self.drafter = self.runner = self.staged = None  # type: ignore[assignment]  # free weights and graphs now

    def _provide(self, requests: list[Request]) -> bool:
        """Key/value rows for the longest request known: with one size, captured graphs serve every batch.

        Returns whether there were as many before.
        """
        from harness.decoding.loop import slots_needed

        block_size = self.drafter.block_size if self.drafter else 1
        longest = max((len(request.prompt_ids) for request in requests), default=0)
        needed = slots_needed(longest, self.setup.sampling.max_new_tokens, self.num_nodes, block_size)
        before, self._slots = self._slots, max(self._slots, needed)
        return before == self._slots

    def _decode(self, batch: list[Request], max_new_tokens: int, stopwatch: "_Stopwatch | None", observe: Any):
        from harness.decoding.loop import decode
        from harness.decoding.sampling import SamplingParams, sampling_batch

        runner, num_asked = self.runner, len(batch)
        if runner and stopwatch:
            runner = self.staged
            runner.seconds = stopwatch.seconds
        if runner:  # graphs have one batch size: a last batch that is smaller decodes its last sample more than once
            batch = batch + batch[-1:] * (self.engine.batch_size - num_asked)
        asked = self.setup.sampling
        params = [
            SamplingParams(asked.temperature, asked.top_k, asked.top_p, asked.min_p, request.stream)
            for request in batch
        ]
        decoded = decode(
            self.target,
            self.drafter,
            self.setup.mode.build,
            self.verify,
            [request.prompt_ids for request in batch],
            sampling_batch(params, self.target.device),
            max_new_tokens=max_new_tokens,
            num_nodes=self.num_nodes,
            stop_ids=self.setup.stop_ids,
            slots=self._slots if self.runner else None,
            sample=self.sample,
            runner=runner,
            profile=stopwatch.stage if stopwatch else None,
            **({"observe": observe} if observe else {}),
        )
        return decoded[:num_asked]


class _Stopwatch:
    """Seconds by stage, the device synchronised at both ends: for the profile pass alone."""

    def __init__(self, device: str):
        self.device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._synchronize()
        started = time.perf_counter()
        yield
        self._synchronize()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def _synchronize(self) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()


def _resolve_dtype(asked: str, device: str) -> str:
    """`auto`: bfloat16 on CUDA and on CPUs with AMX tiles, float32 on other CPUs, where bfloat16 is emulated."""
    if asked != "auto":
        return asked
    if device == "cuda":
        return "bfloat16"
    import torch

    return "bfloat16" if torch.cpu._is_amx_tile_supported() else "float32"
