"""Sampling parameters of a running batch as fixed device buffers, so that a captured graph finds them in place.

Shapes: B requests. The host is asked when the batch's composition changes, not in every round.

A request's stream is its `sampling_seed`, else a hash of the server's seed and the request id. Its noise then belongs to
(stream, place in the output) alone: the text depends neither on the batch nor on the mode (`harness.decoding.noise`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from harness.decoding.noise import stream_key
from harness.decoding.sampling import SamplingBatch, sampling_batch
from harness.sglang_plugin.refusals import params_of

FIELDS = ("temperature_B", "top_k_B", "top_p_B", "min_p_B", "stream_B")


@dataclass(frozen=True)
class Rows:
    """prompt_len_B: int64, so that a root at KV length L has output index L - prompt_len. plain: no filter is asked for."""

    sampling: SamplingBatch
    prompt_len_B: Tensor
    plain: bool


class SamplingRows:
    def __init__(self, capacity: int, device: torch.device | str, seed: int):
        self.device = torch.device(device)
        self.seed = seed
        self._buffers = {name: torch.zeros(capacity, dtype=torch.float64, device=device) for name in FIELDS}
        for name in ("top_k_B", "stream_B"):
            self._buffers[name] = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._buffers["top_p_B"].fill_(1)
        self._prompt_len = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._reqs: list[Any] = []
        self._rows: Rows | None = None

    def update(self, reqs: Sequence[Any]) -> Rows:
        """Rows of these requests, in order. Copies only when they are others than last time."""
        # The objects themselves, not their ids: a client may use a request id again, with other parameters.
        same = len(reqs) == len(self._reqs) and all(one is other for one, other in zip(reqs, self._reqs, strict=True))
        if self._rows is None or not same:
            host = sampling_batch([params_of(req, self.stream_of(req)) for req in reqs])
            count = len(reqs)
            for name in FIELDS:
                self._put(self._buffers[name][:count], getattr(host, name))
            self._put(self._prompt_len[:count], torch.tensor([len(req.origin_input_ids) for req in reqs]))
            views = {name: self._buffers[name][:count] for name in FIELDS}
            plain = not (host.any_top_k or host.any_top_p or host.any_min_p)
            self._rows = Rows(replace(host, **views), self._prompt_len[:count], plain)  # type: ignore[arg-type]  # tensors by name
            self._reqs = list(reqs)
        return self._rows

    def captured(self, count: int) -> Rows:
        """The first `count` rows for a graph: temperatures mixed with greedy, no filter."""
        views = {name: self._buffers[name][:count] for name in FIELDS}
        flags = dict(any_top_k=False, any_top_p=False, any_min_p=False, any_greedy=True, all_greedy=False)
        return Rows(SamplingBatch(**views, **flags, top_k_bound=0), self._prompt_len[:count], True)  # type: ignore[arg-type]  # tensors by name

    def stream_of(self, req: Any) -> int:
        given = req.sampling_params.sampling_seed
        return stream_key(self.seed, "sglang", req.rid, 0) if given is None else int(given) & (2**63 - 1)

    def _put(self, target: Tensor, source: Tensor) -> None:
        """Pinned and not waited for: the copy stands in the stream's order."""
        if self.device.type == "cuda":
            source = source.pin_memory()
        target.copy_(source, non_blocking=True)
