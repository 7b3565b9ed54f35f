"""Cases of `benchmarks.kernels` for what follows the target's logits: draws, walk, state, probabilities, coins.

Shapes: B batch, N nodes with the root, V vocabulary.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.kernel_case import Case
from harness.decoding import round as torch_round
from harness.decoding import verify
from harness.decoding.noise import gumbel
from harness.decoding.round import RoundState
from harness.decoding.sampling import (
    SamplingBatch,
    SamplingParams,
    filtered_scores,
    probabilities,
    sampling_batch,
    stream_key,
)
from harness.decoding.tree import DraftTree, candidates, level_wise, root_only
from harness.kernels.draws import draw_coupled, draw_partials, taken_tokens
from harness.kernels.finish import finish, sample_coupled, walk_and_finish
from harness.kernels.probabilities import kernel_coins, softmax_and_positive

DEPTH = 15
SIZES = [  # batch, budget, vocabulary
    (1, 0, 151_936),
    (1, 16, 151_936),
    (1, 63, 151_936),
    (1, 255, 151_936),
    (4, 63, 151_936),
    (1, 15, 49_152),
    (1, 63, 49_152),
    (16, 31, 49_152),
]
BLOCKS = [(1024, 1), (2048, 1), (4096, 1), (2048, 2), (4096, 2), (1024, 4)]  # ids and nodes of a program
NEAR_TIE = 2e-5  # in scores: what float32 leaves open between two logarithms
VERIFIED = ("path_BW", "num_accepted_B", "bonus_B")
STATE = ("root_B", "index_B", "active_B", "num_B")


def cases(device: str) -> Iterator[Case]:
    for batch, budget, vocab in SIZES:
        for name, temperatures in (("T=1", [1.0]), ("T=0", [0.0]), ("mixed", [0.6, 0.0, 1.0])):
            if name == "mixed" and batch == 1:
                continue
            yield from _cases(device, batch, budget, vocab, name, temperatures)


def _cases(device: str, batch: int, budget: int, vocab: int, name: str, temperatures: list[float]) -> Iterator[Case]:
    size = f"B={batch} budget={budget} V={vocab} {name}"
    tree = _tree(device, batch, budget, vocab)
    generator = torch.Generator(device).manual_seed(1)
    logits = torch.randn(batch, tree.num_nodes, vocab, generator=generator, device=device) * 3
    # A parent likes its children, so that paths are walked.
    row = torch.arange(batch, device=device)[:, None]
    logits.index_put_((row, tree.parent_BN.clamp(min=0), tree.token_BN), torch.tensor(12.0, device=device), True)
    logits = logits.to(torch.bfloat16)
    params = [
        SamplingParams(temperatures[b % len(temperatures)], stream=stream_key(0, "bench", str(b), 0))
        for b in range(batch)
    ]
    sampling = sampling_batch(params, device)
    drawn_from = sampling.temperature_B, sampling.stream_B, torch.arange(batch, device=device) * 7, tree.depth_BN

    def taken_in_torch() -> Tensor:
        """The part of `coupled_at_once` before the walk."""
        scores = filtered_scores(logits, sampling)
        if not sampling.all_greedy:
            index = drawn_from[2][:, None] + 1 + torch.arange(tree.max_depth + 1, device=device)
            noise = gumbel(sampling.stream_B[:, None], index, vocab, scores.dtype)
            scores += noise[row, tree.depth_BN]
        return scores.max(-1).indices

    def far_apart(ours: Tensor, reference: Tensor) -> str:
        return _far_apart(logits, sampling, drawn_from[2], tree, ours, reference)

    yield Case("draw", size, lambda: draw_coupled(logits, *drawn_from, tree.count_B), taken_in_torch, far_apart)
    for chunk, rows in BLOCKS:
        yield Case(
            "draw_partials",
            f"{size} chunk={chunk} rows={rows}",
            lambda chunk=chunk, rows=rows: draw_partials(logits, *drawn_from, tree.count_B, chunk=chunk, rows=rows),
            taken_in_torch,
            lambda ours, reference: far_apart(taken_tokens(ours), reference),
        )

    mine, theirs = _state(device, batch, tree), _state(device, batch, tree)
    sample = torch_round.sampler(verify.coupled_at_once)
    yield Case(
        "sample_coupled",
        size,
        lambda: (sample_coupled(tree, logits, sampling, mine), mine),
        lambda: (sample(tree, logits, sampling, theirs), theirs),
        _state_differs,
    )

    verified = verify.coupled_at_once(tree, logits, sampling, theirs.index_B)
    partials = draw_partials(logits, *drawn_from, tree.count_B)
    ended, ended_too = _state(device, batch, tree), _state(device, batch, tree)
    yield Case(
        "finish",
        size,
        lambda: (finish(tree, verified, ended), ended),
        lambda: (torch_round.finish(tree, verified, ended_too), ended_too),
        lambda ours, reference: _state_differs((verified, ours[1]), (verified, reference[1])),
    )
    walked = _state(device, batch, tree)
    yield Case(
        "walk_and_finish",
        size,
        lambda: walk_and_finish(tree, partials, walked),
        lambda: verify.coupled_at_once(tree, logits, sampling, drawn_from[2]),
        lambda ours, reference: _fields_differ(ours, reference, VERIFIED),
    )

    target, positive = softmax_and_positive(logits, sampling.temperature_B)
    yield Case(
        "softmax",
        size,
        lambda: softmax_and_positive(logits, sampling.temperature_B)[0],
        lambda: probabilities(logits, sampling),
        _probabilities_differ,
    )
    yield Case(
        "coins",
        size,
        lambda: kernel_coins(tree, target, positive, sampling.stream_B, drawn_from[2]),
        lambda: verify.kernel_coins(tree, target, sampling, drawn_from[2]),
        lambda ours, reference: "" if all(map(torch.equal, ours, reference)) else "coins differ",
    )


def _tree(device: str, batch: int, budget: int, vocab: int) -> DraftTree:
    root = torch.arange(batch, device=device) + 5
    if budget == 0:
        return root_only(root)
    generator = torch.Generator(device).manual_seed(0)
    draft = torch.randn(batch, DEPTH, vocab, generator=generator, device=device) * 4
    logp, ids = candidates(draft, budget)
    return level_wise(root, logp, ids, budget)


def _state(device: str, batch: int, tree: DraftTree) -> RoundState:
    """Far from its cap, so that a timed round ends nothing."""
    state = RoundState.new(batch, tree.max_depth + 1, [2, 7], 2**40, torch.device(device))
    state.active_B |= True
    state.index_B += torch.arange(batch, device=device) * 7
    return state


def _far_apart(
    logits: Tensor, sampling: SamplingBatch, index_B: Tensor, tree: DraftTree, ours: Tensor, reference: Tensor
) -> str:
    """Nodes that took another token although the two scores, in float64, are no near tie."""
    wrong = ((ours != reference) & tree.valid_BN).nonzero().tolist()
    bad = []
    for b, node in wrong:
        pair = torch.stack([ours[b, node], reference[b, node]])
        place = index_B[b] + 1 + tree.depth_BN[b, node]
        score = logits[b, node].double()
        if sampling.temperature_B[b] > 0:
            score = score / sampling.temperature_B[b].float()
            score = score + gumbel(sampling.stream_B[b], place, logits.shape[-1], torch.float64)
        gap = float((score[pair[0]] - score[pair[1]]).abs())
        if gap > NEAR_TIE:
            bad.append(f"row {b} node {node}: gap {gap:.2g}")
    return "; ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")


def _fields_differ(ours: object, reference: object, names: tuple[str, ...]) -> str:
    return " ".join(name for name in names if not torch.equal(getattr(ours, name), getattr(reference, name)))


def _state_differs(ours: tuple, reference: tuple) -> str:
    """(Verified, RoundState) each."""
    verified, state = reference
    words = [_fields_differ(ours[0], verified, VERIFIED), _fields_differ(ours[1], state, STATE)]
    place = torch.arange(state.report_BX.shape[1] - 4, device=state.report_BX.device)
    means = place <= verified.num_accepted_B[:, None]
    mine, theirs = ours[1].report_BX, state.report_BX
    if not torch.equal(mine[:, -4:], theirs[:, -4:]) or not torch.equal(mine[:, :-4][means], theirs[:, :-4][means]):
        words.append("report_BX")
    return " ".join(filter(None, words))


def _probabilities_differ(ours: Tensor, reference: Tensor) -> str:
    apart = (ours - reference).abs() > 3e-5 * reference + 1e-12
    return f"{int(apart.sum())} of {apart.numel()} probabilities" if bool(apart.any()) else ""
