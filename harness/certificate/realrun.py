"""Part b (iii) and part c: every token and every raw accept of a real run of the cell, in order."""

import time
from typing import Any

import numpy as np
from torch import Tensor

from harness.certificate.bench import Bench, Watched
from harness.certificate.context import Context
from harness.certificate.line import Line, z_line
from harness.certificate.reference import Filters
from harness.certificate.settings import CertifySettings
from harness.certificate.tally import Tally
from harness.decoding.tree import DraftTree
from harness.decoding.verify import Verified
from harness.engines.base import Request


def real_run(bench: Bench, requests: list[Request], settings: CertifySettings) -> list[Line]:
    """Decode with the cell's own mode, verifier, batch size and sampling.

    Counted are all tokens that a round drew, also those behind a stop id or the cap in the last round: they are draws
    from a known law like the others.
    """
    started = time.perf_counter()
    mode, filters = bench.setup.mode, Filters.of(bench.setup.sampling)
    random, everything = np.random.default_rng(settings.seed), Tally(settings.seed)
    accepted = expected = variance = 0.0
    num_rounds = 0
    for batch in bench.batches(requests):

        def see(tree: DraftTree, logits_BNV: Tensor, verified: Verified, index_B: Tensor) -> list[Any]:
            return [_row(b, tree, logits_BNV, verified, index_B, filters, random) for b in range(len(index_B))]

        watched = Watched(bench.serving.verify[mode.verifier], see)
        decoded = bench.decode(batch, mode, watched, filters, settings.run_tokens)
        for b, result in enumerate(decoded):
            # A finished sample idles beside the others: its rows draw the same coins again and again.
            for call in range(1 + len(result.rounds)):
                tally, num_accepted, (mean, spread) = watched.seen[call][b]
                everything.merge(tally)
                if call > 0:
                    accepted, expected, variance = accepted + num_accepted, expected + mean, variance + spread
                    num_rounds += 1
    name = f"{mode.verifier}, {len(requests)} samples of the real run, {filters}"
    prediction = z_line(
        part="prediction",
        name=f"{name}: accepted drafts",
        total=accepted - expected,
        variance=variance,
        n=num_rounds,
        unit="rounds",
        detail=f"{accepted / max(num_rounds, 1):.3f} accepted, {expected / max(num_rounds, 1):.3f} expected",
    )
    return [*everything.lines(name, time.perf_counter() - started), prediction]


def _row(
    b: int,
    tree: DraftTree,
    logits_BNV: Tensor,
    verified: Verified,
    index_B: Tensor,
    filters: Filters,
    random: np.random.Generator,
) -> tuple[Tally, int, tuple[float, float]]:
    context = Context.of_row(b, tree, logits_BNV, index_B, filters)
    tally = Tally(random)
    num = int(verified.num_accepted_B[b])
    nodes = verified.path_BW[b, : num + 1].tolist()
    tokens = [context.token[node] for node in nodes[1:]] + [int(verified.bonus_B[b])]
    for node, token in zip(nodes, tokens, strict=True):
        tally.add(context.law(node), context.mass_before_V(node), np.array([token]))
    return tally, num, context.accepts
