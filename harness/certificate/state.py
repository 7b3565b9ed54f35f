"""Part d: after many rounds, the committed key/value rows and drafter features are those of a fresh prefill.

Shapes: B batch, H key/value heads, R committed rows, D head size, F feature size.

Run with the drafter that foresees, so that rounds accept several drafts, through branches that are not the first child.
"""

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from harness.certificate.bench import Bench, Watched
from harness.certificate.foresight import Foreseeing
from harness.certificate.line import Line, exact_line
from harness.certificate.reference import Filters
from harness.certificate.settings import CertifySettings
from harness.decoding.cache import PositionCache
from harness.decoding.tree import DraftTree
from harness.decoding.verify import Verified
from harness.engines.base import Request
from harness.speculative.autoregressive import Autoregressive
from harness.speculative.ddtree import DDTree

# Norm of the difference over the norm of the row, the worst row of any layer. Another token's row gives about 1.
TOLERANCE = {"float64": 1e-9, "float32": 2e-3, "float16": 5e-2, "bfloat16": 0.2}
AT = Filters(0.8)


def state(
    bench: Bench, requests: list[Request], max_new_tokens: int, settings: CertifySettings, tell: Callable[[str], None]
) -> Iterator[Line]:
    """One line for the target's rows, one for the drafter's features and rows, one for the branches taken."""
    started = time.perf_counter()
    own = bench.setup.mode
    mode = own if isinstance(own, DDTree) else DDTree()
    coupled = bench.serving.verify["coupled"]
    rows = branches = 0
    worst_target = worst_drafter = 0.0
    for batch in bench.batches(requests):
        tell(f"{bench.dtype}, rounds and prefills")
        prompts = [request.prompt_ids for request in batch]
        plain = bench.decode(batch, Autoregressive(), coupled, AT, max_new_tokens)
        drafter = Foreseeing(bench.drafter, prompts, [result.output_ids for result in plain], settings.seed)
        watched = Watched(coupled, _other_branches)
        results = bench.decode(batch, mode, watched, AT, max_new_tokens, drafter)
        branches += sum(
            watched.seen[call][b] for b, result in enumerate(results) for call in range(1, 1 + len(result.rounds))
        )
        cache = bench.target.cache
        for b, result in enumerate(results):
            text = prompts[b] + result.output_ids[:-1]  # the last token is a root: its row is not written yet
            with torch.inference_mode():
                _, feature_1RF, length_1 = bench.target.prefill([text], len(text))
                fresh = bench.drafter.new_state(1, len(text))
                bench.drafter.extend(fresh, feature_1RF, length_1)
            worst_target = max(worst_target, cache_error(cache, b, bench.target.cache, len(text)))
            drafter_error = cache_error(drafter.state.cache, b, fresh.cache, len(text))
            features_RF = torch.cat(drafter.features[b])
            worst_drafter = max(worst_drafter, drafter_error, relative(features_RF, feature_1RF[0]))
            rows += len(text) - len(prompts[b])
    common: dict[str, Any] = dict(part="state", n=rows, unit="rows")
    error: dict[str, Any] = dict(statistic="relative error", tolerance=TOLERANCE[bench.dtype], **common)
    seconds = time.perf_counter() - started
    yield exact_line(name=f"key/value rows, {bench.dtype}", value=worst_target, seconds=seconds, **error)
    yield exact_line(name=f"drafter features and rows, {bench.dtype}", value=worst_drafter, **error)
    yield exact_line(
        name=f"branches other than the first child, {bench.dtype}",
        statistic="none was taken",
        value=float(branches == 0),
        tolerance=0,
        detail=f"{branches} taken",
        **common,
    )


def cache_error(cache: PositionCache, b: int, fresh: PositionCache, length: int) -> float:
    """The worst row of any layer; infinite when the number of committed rows is another."""
    if int(cache.length_B[b]) != length:
        return float("inf")
    pairs = [(mine[layer], theirs[layer]) for mine, theirs in _buffers(cache, fresh) for layer in theirs]
    return max(relative(_rows(a[b], length), _rows(c[0], length)) for a, c in pairs)


def relative(got_RF: Tensor, expected_RF: Tensor) -> float:
    """The greatest norm of a row's difference over the norm of the row; infinite when the shapes differ."""
    if got_RF.shape != expected_RF.shape:
        return float("inf")
    got_RF, expected_RF = got_RF.double(), expected_RF.double()
    error_R = (got_RF - expected_RF).norm(dim=1) / expected_RF.norm(dim=1).clamp(min=1e-12)
    return float(error_R.nan_to_num(nan=float("inf")).max())


def _buffers(cache: PositionCache, fresh: PositionCache) -> list[tuple[dict[int, Tensor], dict[int, Tensor]]]:
    return [(cache.keys, fresh.keys), (cache.values, fresh.values)]


def _rows(buffer_HSD: Tensor, length: int) -> Tensor:
    return buffer_HSD[:, :length].transpose(0, 1).flatten(1)


def _other_branches(tree: DraftTree, logits: Tensor, verified: Verified, index_B: Tensor) -> list[int]:
    """For each row, how many accepted nodes are not the first child of their parent."""
    counts = []
    for b, num in enumerate(verified.num_accepted_B.tolist()):
        path = verified.path_BW[b, : num + 1].tolist()
        parents = tree.parent_BN[b].tolist()
        counts.append(sum(parents.index(above) != node for above, node in pairwise(path)))
    return counts
