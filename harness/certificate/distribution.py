"""Part b: the draws of the verifiers against the law of each token given its prefix, which is known exactly.

Shapes: B draws, N nodes with the root, W path width, V vocabulary.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.certificate.bench import Bench, Watched
from harness.certificate.context import Context
from harness.certificate.line import SEEN_FOR_SURE, Line, exact_line, z_line
from harness.certificate.reference import Filters
from harness.certificate.serving import Serving
from harness.certificate.settings import CertifySettings
from harness.certificate.tally import Tally
from harness.decoding.noise import stream_key, uniform
from harness.decoding.sampling import SamplingParams, sampling_batch
from harness.decoding.tree import DraftTree, chain
from harness.decoding.verify import Verified, accept_by_kernel
from harness.engines.base import Request

BYTES_AT_ONCE = 2**28  # of the kernel's scratch
MARGIN = 1.1  # more draws than the expected information asks for


def find_contexts(bench: Bench, requests: list[Request], filters: Filters, settings: CertifySettings) -> list[Context]:
    """Real contexts of the cell's mode, from runs at these filters. Fewer than asked for when every prompt ends early."""
    mode, found = bench.setup.mode, list[Context]()
    each = math.ceil(settings.contexts / len(requests))
    length = min(settings.run_tokens, 8 * (each + 1))  # enough for so many rounds, most of the time
    for attempt in range(4):  # another stream where answers were too short
        for request in requests:
            if len(found) >= settings.contexts:
                return found
            rows: list[Context] = []

            def see(
                tree: DraftTree, logits: Tensor, verified: Verified, index_B: Tensor, rows: list[Context] = rows
            ) -> None:
                if int(index_B[0]) >= 0 and len(rows) < each:
                    rows.append(Context.of_row(0, tree, logits, index_B, filters))

            stream = stream_key(settings.seed, f"certify {filters}", request.sample_id, attempt)
            watched = Watched(bench.serving.verify[mode.verifier], see)
            bench.decode([replace(request, stream=stream)], mode, watched, filters, length)
            found += rows[: settings.contexts - len(found)]
    return found


def redrawn(
    serving: Serving,
    verifier: str,
    contexts: list[Context],
    settings: CertifySettings,
    tell: Callable[[str], None],
    detect: float | None = None,
) -> list[Line]:
    """(ii) Verify each context many times with fresh coins, until a temperature error of `detect` would be seen.

    The number of draws is fixed beforehand, from the laws alone.
    """
    started = time.perf_counter()
    filters = contexts[0].filters
    name = f"{verifier}, {len(contexts)} real contexts redrawn, {filters}"
    needed = MARGIN * (SEEN_FOR_SURE / (detect or settings.detect)) ** 2
    information = sum(context.information for context in contexts)
    draws = min(math.ceil(needed / max(information, 1e-9)), settings.most_draws)
    tally = Tally(settings.seed)
    accepted = expected = variance = 0.0
    for place, context in enumerate(contexts):
        tell(f"{name}: {place} of {len(contexts)}, {draws} draws each")
        for batch in _coins(context, place, draws, filters, settings.seed):
            index_B = torch.full_like(batch.stream_B, context.index)
            with torch.inference_mode():
                verified = serving.redraw[verifier](context.tree, context.logits_1NV, batch, index_B)
            add_draws(tally, context, verified)
            accepted += float(verified.num_accepted_B.sum())
        mean, spread = context.accepts
        expected, variance = expected + draws * mean, variance + draws * spread
        context.forget()
    lines = tally.lines(name, time.perf_counter() - started, f"{draws} draws a context")
    total = draws * len(contexts)
    prediction = z_line(
        part="prediction",
        name=f"{name}: accepted drafts",
        total=accepted - expected,
        variance=variance,
        n=total,
        unit="rounds",
        detail=f"{accepted / total:.3f} accepted, {expected / total:.3f} expected",
    )
    return [*lines, prediction]


def add_draws(tally: Tally, context: Context, verified: Verified) -> None:
    """Every token that B verifications of one context drew, under the law of the node it was drawn at."""
    path_BW, num_B = verified.path_BW.cpu().numpy(), verified.num_accepted_B.cpu().numpy()
    bonus_B, token_N = verified.bonus_B.cpu().numpy(), np.array(context.token)
    next_BW = np.concatenate([path_BW[:, 1:], path_BW[:, :1]], axis=1)
    place_W = np.arange(path_BW.shape[1])
    token_BW = np.where(place_W == num_B[:, None], bonus_B[:, None], token_N[next_BW])
    drawn_BW = place_W <= num_B[:, None]
    nodes, tokens = path_BW[drawn_BW], token_BW[drawn_BW]
    for node in np.unique(nodes).tolist():
        tally.add(context.law(node), context.mass_before_V(node), tokens[nodes == node])


def edge_coins(serving: Serving, device: torch.device | str = "cpu", draws: int = 4096) -> Line:
    """Coins at both ends of their range must not make the kernel emit a token of probability 0."""
    row, token = torch.arange(3, device=device), torch.arange(4, 7, device=device)
    tree = chain(torch.zeros_like(token), token[:, None], torch.full((3, 1), -1.0, device=device))
    p_BNV = torch.softmax(torch.linspace(0, 2, 8, device=device), 0).expand(3, 2, 8).clone()
    p_BNV[row, 0, token] = 0.0  # the draft is a token that the target never takes
    impossible = 0
    for coin in (serving.lowest_coin, 1.0):
        coin_BN = torch.full((3, 2), coin, device=device)
        final_B = torch.full((3,), max(coin, 2.0**-24), device=device)
        verified = accept_by_kernel(tree, p_BNV, coin_BN, final_B, torch.zeros_like(p_BNV))
        first_B = torch.where(verified.num_accepted_B > 0, token, verified.bonus_B)
        impossible += int((p_BNV[row, 0, first_B] <= 0).sum())
    coins = uniform(torch.arange(draws, device=device)[:, None], torch.arange(64, device=device), 0)
    impossible += int(((coins <= 0) | (coins > 1)).sum())
    return exact_line(
        part="distribution",
        name="kernel, coins at the ends of their range",
        statistic="impossible tokens or coins",
        value=impossible,
        tolerance=0,
        n=coins.numel() + 6,
        unit="coins",
    )


def _coins(context: Context, place: int, draws: int, filters: Filters, seed: int) -> Any:
    """Batches of requests that differ in their stream alone."""
    logits = context.logits_1NV
    at_once = max(1, min(BYTES_AT_ONCE // (4 * logits.shape[1] * logits.shape[2]), 4096))
    given = filters.temperature, filters.top_k, filters.top_p, filters.min_p
    for start in range(0, draws, at_once):
        streams = [stream_key(seed, "certify", str(place), n) for n in range(start, min(start + at_once, draws))]
        yield sampling_batch([SamplingParams(*given, stream) for stream in streams], logits.device)
