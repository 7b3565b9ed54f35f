"""The parts of the certificate that can be seen from outside of a server: the ids that it sends.

Shapes: T output tokens, V vocabulary.

Part a at temperature 0, float32: whole outputs of the mode equal those of the server without speculation. With
`verifier=coupled` every token at every temperature is the one that the shared noise chooses. Part b (iii): every token of a
run of the cell against its law. The law of each token given its prefix comes from one float32 prefill of what was emitted.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from harness.certificate.equality import (
    TOLERANCE,
    Compared,
    cells,
    compare,
    is_near_tie,
    lines_of,
    near_cut,
    score_tolerance,
)
from harness.certificate.line import Line, exact_line, random_line
from harness.certificate.prefill import Prefill
from harness.certificate.reference import Filters, Law
from harness.certificate.settings import CertifySettings
from harness.certificate.tally import Tally
from harness.decoding.noise import gumbel
from harness.engines.base import Request, Sampling, Setup
from harness.speculative.autoregressive import Autoregressive

Outputs = dict[tuple[str, int], list[int]]
GREEDY = Filters(0.0)
ABSENT = [
    {"part": "equality", "name": "float64", "reason": "the server has no float64"},
    {"part": "distribution", "name": "toy joint", "reason": "the server verifies its own trees alone"},
    {"part": "distribution", "name": "contexts redrawn", "reason": "the server draws each context once"},
    {"part": "distribution", "name": "coins at the ends of their range", "reason": "the server draws its own coins"},
    {"part": "prediction", "name": "accepted drafts", "reason": "the server does not show its trees"},
    {"part": "state", "name": "key/value rows, drafter features", "reason": "the server does not show its memory"},
]


@dataclass
class Seen:
    """What the servers sent, before anything is held against it."""

    run: Outputs
    plain: Outputs  # without speculation, greedy, float32
    greedy: Outputs  # the cell's mode, greedy, float32
    coupled: dict[Filters, Outputs]  # the cell's mode, float32, where its noise is known
    seconds: dict[str, float]


class ServedBench:
    """engine: one whose session decodes with `setup.sampling`. Every server is closed when its part is done."""

    def __init__(self, engine: Any, setup: Setup):
        self.engine, self.setup = engine, setup
        self.session = engine.open(setup)
        self.dtype = str(self.session.resolved["dtype"])

    def close(self) -> None:
        self.session.close()

    def generate(self, requests: list[Request], filters: Filters, max_new_tokens: int) -> Outputs:
        """Output ids by sample and repeat. Raises ValueError when the server fails one."""
        values = {name: getattr(filters, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        sampling = Sampling(**values, max_new_tokens=max_new_tokens)
        self.session.setup = replace(self.session.setup, sampling=sampling)
        outputs = {}
        for generation in self.session.generate(requests):
            if generation.error is not None:
                raise ValueError(f"certify: sample {generation.request.sample_id} failed: {generation.error}")
            outputs[generation.request.sample_id, generation.request.repeat] = generation.output_ids
        return outputs

    def float32(self, **setup: Any) -> "ServedBench":
        """The same cell in float32, or another mode of it; the server of this one must be closed before."""
        return ServedBench(replace(self.engine, dtype="float32"), replace(self.setup, **setup))


def observe(
    bench: ServedBench, requests: list[Request], many: list[Request], settings: CertifySettings, tell: Callable
) -> Seen:
    """Ask the servers: the cell's own, then the same in float32 unless it is that, then one without speculation."""
    mode, length = bench.setup.mode, settings.equality_tokens
    started, seconds = time.perf_counter(), {}
    coupled: dict[Filters, Outputs] = {}
    try:
        tell(f"{len(many)} samples of the real run")
        run = bench.generate(many, Filters.of(bench.setup.sampling), settings.run_tokens)
        seconds["run"] = time.perf_counter() - started
        if not length:
            return Seen(run, {}, {}, {}, seconds)
        started = time.perf_counter()
        if bench.dtype != "float32":
            bench.close()
            tell("starting the cell's server in float32")
            bench = bench.float32()
        tell("float32, greedy")
        greedy = bench.generate(requests, GREEDY, length)
        if mode.verifier == "coupled":
            for filters in cells(settings):
                tell(f"float32, coupled at {filters}")
                coupled[filters] = bench.generate(requests, filters, length)
    finally:
        bench.close()
    tell("starting a server without speculation in float32")
    baseline = bench.float32(mode=Autoregressive(), drafter=None)
    try:
        tell("float32, greedy without speculation")
        plain = baseline.generate(requests, GREEDY, length)
    finally:
        baseline.close()
    seconds["equality"] = time.perf_counter() - started
    return Seen(run, plain, greedy, coupled, seconds)


def served_lines(
    bench: ServedBench, requests: list[Request], many: list[Request], settings: CertifySettings, tell: Callable
) -> Iterator[Line]:
    """All lines that a server's tokens allow. requests: of the equality; many: of the real run."""
    seen = observe(bench, requests, many, settings, tell)
    prefill = Prefill(bench.setup.target, bench.setup.hardware.device)
    name = type(bench.setup.mode).__name__.lower()
    if seen.greedy:
        found = Compared()
        for request in requests:
            plain, other = (outputs[request.sample_id, request.repeat] for outputs in (seen.plain, seen.greedy))
            logits = [row_V[None] for row_V in prefill.logits_TV(request.prompt_ids, plain)]
            compare(found, request, 0, plain, other, logits, GREEDY, "float32")
        yield from lines_of(name, "float32", found, seen.seconds["equality"], "tokens of the server")
    if seen.coupled:
        yield from coupled_lines(seen.coupled, requests, prefill, tell)
    yield from run_lines(bench, seen, many, prefill, settings, tell)


def coupled_lines(
    coupled: dict[Filters, Outputs], requests: list[Request], prefill: Prefill, tell: Callable
) -> Iterator[Line]:
    """Each token against the argmax of filtered logits / T + the noise of its request and place."""
    started, tokens, ties, expected, unexplained = time.perf_counter(), 0, 0, 0.0, list[str]()
    for filters, outputs in coupled.items():
        tell(f"prefill at {filters}")
        tolerance = score_tolerance("float32", filters)
        for request in requests:
            output = outputs[request.sample_id, request.repeat]
            for index, logits_V in enumerate(prefill.logits_TV(request.prompt_ids, output)):
                law = Law(logits_V.double().numpy(), filters)
                best = chosen(law, request, index)
                tokens, expected = tokens + 1, expected + tolerance * (1 - law.repeats)
                if best == output[index]:
                    continue
                if is_near_tie(logits_V, best, output[index], request, index, filters, tolerance):
                    ties += 1
                else:
                    unexplained.append(f"{request.sample_id} at {filters}: token {index}")
    common: dict[str, Any] = dict(part="equality", n=tokens, unit="tokens")
    yield exact_line(
        name="coupled tokens of the server against the noise, float32",
        statistic="tokens that no near tie explains",
        value=len(unexplained),
        tolerance=0,
        seconds=time.perf_counter() - started,
        detail="; ".join(unexplained[:3]),
        **common,
    )
    yield random_line(
        name="coupled tokens of the server against the noise, float32: number of near ties",
        statistic="ties",
        value=ties,
        p_value=float(stats.poisson.sf(ties - 1, expected)),
        detail=f"at most {expected:.2g} expected",
        **common,
    )


def chosen(law: Law, request: Request, index: int) -> int:
    """What coupled noise makes of a law: its argmax at temperature 0."""
    if law.filters.temperature == 0:
        return int(law.p_V.argmax())
    noise_V = gumbel(torch.tensor(request.stream), torch.tensor(index), len(law.p_V), torch.float64).numpy()
    return int(np.argmax(law.logp_V + noise_V))


def run_lines(
    bench: ServedBench,
    seen: Seen,
    many: list[Request],
    prefill: Prefill,
    settings: CertifySettings,
    tell: Callable,
) -> Iterator[Line]:
    """Part b (iii). In a narrower dtype than that of the prefill, a token within rounding of a cut is left out."""
    started, tally, at_a_cut = time.perf_counter(), Tally(settings.seed), 0
    filters = Filters.of(bench.setup.sampling)
    tolerance = score_tolerance(bench.dtype, filters) if bench.dtype in TOLERANCE else 0.0
    for place, request in enumerate(many):
        tell(f"law of the run: {place} of {len(many)}")
        output = seen.run[request.sample_id, request.repeat]
        for logits_V, token in zip(prefill.logits_TV(request.prompt_ids, output), output, strict=True):
            law = Law(logits_V.double().numpy(), filters)
            if law.p_V[token] == 0 and _at_cut(logits_V, token, filters, tolerance):
                at_a_cut += 1
                continue
            tally.add(law, law.mass_before_V([]), np.array([token]))
    seconds = seen.seconds["run"] + time.perf_counter() - started
    detail = f"drawn in {bench.dtype}, law in float32"
    detail += f", {at_a_cut} tokens within rounding of a cut" if at_a_cut else ""
    yield from tally.lines(f"{len(many)} samples of the real run, {filters}", seconds, detail)


def _at_cut(logits_V: Tensor, token: int, filters: Filters, tolerance: float) -> bool:
    score_V = logits_V.double().numpy() / (filters.temperature or 1.0)
    if filters.temperature == 0:
        return bool(score_V.max() - score_V[token] <= tolerance)
    return near_cut(score_V, token, filters, tolerance)


def run_size(settings: CertifySettings) -> int:
    """Samples of the real run: enough for `served_tokens`, never fewer than `samples`."""
    return max(settings.samples, math.ceil(settings.served_tokens / settings.run_tokens))
