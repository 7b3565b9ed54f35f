"""Part a: with coupled noise, drafted decoding gives the very tokens of autoregressive decoding.

Shapes: B batch, V vocabulary.

In float64 without exception. In a narrower dtype a forward over a tree and one over a token round differently, so the two
may part where two tokens are nearly tied: each parting is looked at, and their number is held against the number that
the tolerance allows. After a parting the texts differ, so a sample is compared up to its first.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from harness.certificate.bench import Bench, Watched
from harness.certificate.foresight import Foreseeing
from harness.certificate.line import Line, exact_line, random_line
from harness.certificate.reference import Filters, Law
from harness.certificate.settings import CertifySettings
from harness.decoding.noise import gumbel
from harness.engines.base import Request
from harness.speculative.autoregressive import Autoregressive
from harness.speculative.ddtree import DDTree
from harness.speculative.dflash import DFlash

# Of a perturbed score, logit / T + noise, at T >= 1; below, a logit's error grows by 1/T (float32 keeps its own).
TOLERANCE = {"float64": 0.0, "float32": 1e-3, "float16": 0.06, "bfloat16": 0.5}


@dataclass
class Compared:
    tokens: int = 0
    accepted: int = 0
    ties: int = 0
    expected_ties: float = 0.0
    unexplained: list[str] = field(default_factory=list)


def cells(settings: CertifySettings) -> list[Filters]:
    plain = [Filters(temperature) for temperature in settings.equality_temperatures]
    return [*plain, Filters(0.6, top_p=0.9), Filters(1.0, min_p=0.05), Filters(1.3, top_k=50, top_p=0.95, min_p=0.01)]


def equality(
    bench: Bench, requests: list[Request], max_new_tokens: int, settings: CertifySettings, tell: Callable[[str], None]
) -> Iterator[Line]:
    """A line a mode, and one for the number of near ties where the dtype has any."""
    exact = bench.dtype == "float64"
    own = bench.setup.mode
    modes: list[Any] = [DFlash(), own if isinstance(own, DDTree) else DDTree()]
    if bench.session.runner and not exact:
        modes.append(Autoregressive())  # captured graphs against one step after the other
    found, seconds = [Compared() for _ in modes], [0.0 for _ in modes]
    for filters in cells(settings):
        for batch in bench.batches(requests):
            tell(f"{bench.dtype}, autoregressive at {filters}")
            coupled = bench.serving.verify["coupled"]
            watched = Watched(coupled, lambda tree, logits, verified, index: logits[:, 0].clone())
            plain = bench.decode(batch, Autoregressive(), watched, filters, max_new_tokens)
            texts = [result.output_ids for result in plain]
            for place, mode in enumerate(modes):
                started = time.perf_counter()
                tell(f"{bench.dtype}, {type(mode).__name__} at {filters}")
                # Exact: any tree must do, so take deep ones. Else: the trees of the real drafter.
                prompts = [request.prompt_ids for request in batch]
                drafter = Foreseeing(bench.drafter, prompts, texts, settings.seed) if exact else None
                results = bench.decode(batch, mode, coupled, filters, max_new_tokens, drafter, served=not exact)
                for b, result in enumerate(results):
                    found[place].accepted += sum(r.num_accepted for r in result.rounds)
                    compare(found[place], batch[b], b, texts[b], result.output_ids, watched.seen, filters, bench.dtype)
                seconds[place] += time.perf_counter() - started
    way = " in graphs" if bench.session.runner else ""
    for mode, compared, took in zip(modes, found, seconds, strict=True):
        yield from lines_of(type(mode).__name__.lower() + way, bench.dtype, compared, took)


def lines_of(mode: str, dtype: str, found: Compared, seconds: float, what: str = "") -> Iterator[Line]:
    common: dict[str, Any] = dict(part="equality", n=found.tokens, unit="tokens")
    detail = what or f"{found.accepted} drafts accepted"
    if found.unexplained:
        detail += "; " + "; ".join(found.unexplained[:3])
    yield exact_line(
        name=f"{mode} against autoregressive, {dtype}",
        statistic="partings that no near tie explains" if dtype != "float64" else "partings",
        value=len(found.unexplained),
        tolerance=0,
        seconds=seconds,
        detail=detail,
        **common,
    )
    if dtype != "float64":
        yield random_line(
            name=f"{mode} against autoregressive, {dtype}: number of near ties",
            statistic="ties",
            value=found.ties,
            p_value=float(stats.poisson.sf(found.ties - 1, found.expected_ties)),
            detail=f"at most {found.expected_ties:.2g} expected",
            **common,
        )


def compare(
    found: Compared,
    request: Request,
    b: int,
    plain: list[int],
    other: list[int],
    logits: list[Tensor],
    filters: Filters,
    dtype: str,
) -> None:
    """Compare up to the first parting; logits[t][b] are those that token t of the autoregressive text came from."""
    length = min(len(plain), len(other))
    parted = next((t for t in range(length) if plain[t] != other[t]), None)
    if parted is None and len(plain) != len(other):
        found.unexplained.append(f"{request.sample_id} at {filters}: lengths {len(plain)} and {len(other)}")
    upto = length if parted is None else parted + 1
    found.tokens += upto
    tolerance = score_tolerance(dtype, filters)
    if tolerance and filters.temperature > 0:
        # The density of the gap between the two best perturbed scores is 1 - sum of p squared at 0.
        laws = (Law(logits[t][b].double().numpy(force=True), filters) for t in range(upto))
        found.expected_ties += sum(tolerance * (1 - law.repeats) for law in laws)
    elif tolerance:
        gaps = (logits[t][b].double().topk(2).values for t in range(upto))
        found.expected_ties += sum(float(gap[0] - gap[1]) <= tolerance for gap in gaps)
    if parted is None:
        return
    if tolerance and is_near_tie(logits[parted][b], plain[parted], other[parted], request, parted, filters, tolerance):
        found.ties += 1
    else:
        found.unexplained.append(f"{request.sample_id} at {filters}: token {parted}")


def score_tolerance(dtype: str, filters: Filters) -> float:
    temperature = filters.temperature or 1.0
    return TOLERANCE[dtype] * (max(1.0, 1 / temperature) if dtype in ("float16", "bfloat16") else 1.0)


def is_near_tie(
    logits_V: Tensor, one: int, two: int, request: Request, index: int, filters: Filters, tolerance: float
) -> bool:
    """Whether rounding may decide: perturbed scores within tolerance, or a token within tolerance of a filter's cut."""
    score_V = logits_V.double().cpu() / (filters.temperature or 1.0)
    noise_V = torch.zeros_like(score_V)
    if filters.temperature > 0:
        noise_V = gumbel(torch.tensor(request.stream), torch.tensor(index), len(score_V), torch.float64)
    perturbed_V = score_V + noise_V
    if abs(float(perturbed_V[one] - perturbed_V[two])) <= tolerance:
        return True
    return filters.temperature > 0 and any(near_cut(score_V.numpy(), t, filters, tolerance) for t in (one, two))


def near_cut(score_V: np.ndarray, token: int, filters: Filters, tolerance: float) -> bool:
    """Whether scores moved by at most `tolerance` can put the token on the other side of a cut."""
    above = score_V > score_V[token] + tolerance
    beside = (score_V >= score_V[token] - tolerance) & ~above
    beside[token] = False
    if filters.top_k and above.sum() < filters.top_k <= above.sum() + beside.sum():
        return True
    weight_V = np.exp(score_V - score_V.max())
    if filters.top_k:
        weight_V[np.argsort(-score_V, kind="stable")[filters.top_k :]] = 0
    if filters.top_p < 1:
        total = weight_V.sum()
        low, high = weight_V[above].sum() / total, (weight_V[above].sum() + weight_V[beside].sum()) / total
        if low - tolerance <= filters.top_p <= high + tolerance:
            return True
    return filters.min_p > 0 and abs(score_V[token] - score_V.max() - np.log(filters.min_p)) <= 2 * tolerance
