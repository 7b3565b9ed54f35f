"""A loaded target and drafter, decoded through the loop that serves, with any mode, verifier and temperature.

Shapes: B batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from harness.certificate.reference import Filters
from harness.certificate.serving import Serving
from harness.decoding.loop import Decoded, decode
from harness.decoding.sampling import SamplingParams, sampling_batch
from harness.decoding.tree import DraftTree
from harness.decoding.verify import Verified, Verifier
from harness.engines.base import Request, Setup


class Bench:
    """engine: one whose session has `target` and `drafter` in this process, as engine=hf."""

    def __init__(self, engine: Any, setup: Setup, serving: Serving):
        self.engine, self.setup, self.serving = engine, setup, serving
        self.session = engine.open(setup)
        self.target, self.drafter = self.session.target, self.session.drafter
        self.target.commit = serving.commit(self.target.commit)
        self.dtype = str(self.session.resolved["dtype"])

    def batches(self, requests: list[Request]) -> Iterator[list[Request]]:
        size = self.engine.batch_size
        return (requests[start : start + size] for start in range(0, len(requests), size))

    def decode(
        self,
        batch: list[Request],
        mode: Any,
        verify: Verifier,
        filters: Filters,
        max_new_tokens: int,
        drafter: Any = None,
        served: bool = False,
    ) -> list[Decoded]:
        """One batch to its ends. drafter: another one than the loaded; a mode that drafts nothing gets none.

        served: as the engine decodes it, with verifier `coupled`: by captured graphs where the session has them.
        """
        drafter = (drafter or self.drafter) if mode.needs_drafter else None
        params = [
            SamplingParams(filters.temperature, filters.top_k, filters.top_p, filters.min_p, request.stream)
            for request in batch
        ]
        fast: dict[str, Any] = {}
        if served and self.session.runner:
            from harness.engines.hf_models import samplers

            fast = {"runner": self.session.runner, "sample": samplers("coupled", fused=True)[1]}
        return decode(
            self.target,
            drafter,
            self.serving.build(mode.build),
            verify,
            [request.prompt_ids for request in batch],
            sampling_batch(params, self.target.device),
            max_new_tokens=max_new_tokens,
            num_nodes=mode.num_nodes(drafter.block_size if drafter else 1),
            stop_ids=self.setup.stop_ids,
            **fast,
        )

    def close(self) -> None:
        self.session.close()
        self.target = self.drafter = None


class Watched:
    """A verifier that shows each call to `see(tree, logits_BNV, verified, index_B)`; `seen` keeps what that returns.

    The first call of a batch is the draw from prefill: a tree of the root alone, index -1.
    """

    def __init__(self, verify: Verifier, see: Callable[[DraftTree, Tensor, Verified, Tensor], Any]):
        self.verify, self.see = verify, see
        self.seen: list[Any] = []

    def __call__(self, tree: DraftTree, logits_BNV: Tensor, sampling: Any, index_B: Tensor) -> Verified:
        verified = self.verify(tree, logits_BNV, sampling, index_B)
        self.seen.append(self.see(tree, logits_BNV, verified, index_B))
        return verified


def open_bench(engine: Any, setup: Setup, serving: Serving, dtype: str | None = None) -> Bench:
    """The cell as it serves; or, for the exact comparison, in another dtype: float64 on the CPU."""
    if dtype is None:
        return Bench(engine, setup, serving)
    if dtype == "float64":
        setup = replace(setup, hardware=replace(setup.hardware, device="cpu", count=1))
        engine = replace(engine, graphs="off")
    return Bench(replace(engine, dtype=dtype), setup, serving)
