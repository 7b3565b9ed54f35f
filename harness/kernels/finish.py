"""From what the nodes drew to the next round's state in one launch: the walk, the cut at stop ids or the cap, the report.

Shapes: B batch, N nodes with the root, W path width, C chunks of the vocabulary, S stop ids, X entries of a report.

References: `harness.decoding.verify.coupled_at_once` for the walk, `harness.decoding.round.finish` for the rest. Integers
throughout, so results are equal. Entries of a report behind the bonus token are -1 here; they mean nothing anywhere.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.decoding.round import RoundState
from harness.decoding.sampling import SamplingBatch
from harness.decoding.tree import DraftTree
from harness.decoding.verify import Verified, coupled_at_once
from harness.kernels.draws import Partials, draw_partials

NUM_COUNTS = 4  # columns of a report behind its tokens


def sample_coupled(tree: DraftTree, logits_BNV: Tensor, sampling: SamplingBatch, state: RoundState) -> Verified:
    """The `Sampler` of verifier `coupled`: two launches. With a filter on, or float64 logits, torch draws."""
    if sampling.any_top_k or sampling.any_top_p or sampling.any_min_p or logits_BNV.dtype == torch.float64:
        verified = coupled_at_once(tree, logits_BNV, sampling, state.index_B)
        finish(tree, verified, state)
        return verified
    partials = draw_partials(
        logits_BNV, sampling.temperature_B, sampling.stream_B, state.index_B, tree.depth_BN, tree.count_B
    )
    return walk_and_finish(tree, partials, state)


def walk_and_finish(tree: DraftTree, partials: Partials, state: RoundState) -> Verified:
    """Follow from the root the child that carries the taken token; then `finish`. One launch, one program a row.

    Partials are those of `draw_partials` on the same tree. Only the nodes on the path are looked at.
    """
    batch, num_nodes, num_chunks = partials.score_BNC.shape
    width = tree.max_depth + 1
    path_BW = torch.empty(batch, width, dtype=torch.int64, device=partials.score_BNC.device)
    num_accepted_B, bonus_B = torch.empty_like(state.num_B), torch.empty_like(state.num_B)
    block_n = max(16, triton.next_power_of_2(num_nodes))
    _walk_and_finish[(batch,)](
        *(partials.score_BNC, partials.id_BNC, tree.token_BN.contiguous(), tree.parent_BN.contiguous()),
        *(path_BW, num_accepted_B, bonus_B, tree.count_B),
        *_state_arguments(state, width),
        *(num_nodes, num_chunks),
        BLOCK_N=block_n,
        BLOCK_C=max(16, triton.next_power_of_2(num_chunks)),
        **_blocks(state),
        num_warps=1 if block_n <= 256 else 4,
    )
    return Verified(path_BW, num_accepted_B, bonus_B)


def finish(tree: DraftTree, verified: Verified, state: RoundState) -> None:
    """`harness.decoding.round.finish` in one launch, for a path that any verifier found."""
    batch, width = verified.path_BW.shape
    _finish[(batch,)](
        *(tree.token_BN.contiguous(), verified.path_BW.contiguous(), verified.num_accepted_B, verified.bonus_B),
        tree.count_B,
        *_state_arguments(state, width),
        tree.num_nodes,
        **_blocks(state),
        num_warps=1,
    )


def _state_arguments(state: RoundState, width: int) -> tuple:
    """What both kernels take of the state. Raises ValueError where the report has no room for a path of full width."""
    report_width = state.report_BX.shape[1] - NUM_COUNTS
    if report_width < width:
        raise ValueError(f"a report with room for {report_width} tokens cannot hold paths of {width}")
    active_B = state.active_B.view(torch.uint8)  # the same memory
    tensors = (state.root_B, state.index_B, active_B, state.cap_B, state.stop_S, state.num_B, state.report_BX)
    return (*tensors, width, report_width, len(state.stop_S))


def _blocks(state: RoundState) -> dict[str, int]:
    return {
        "BLOCK_W": max(16, triton.next_power_of_2(state.report_BX.shape[1] - NUM_COUNTS)),
        "BLOCK_S": triton.next_power_of_2(max(len(state.stop_S), 2)),
    }


@triton.jit
def _take(score_ptr, id_ptr, row, num_chunks, BLOCK_C: tl.constexpr):
    """int32, the best over chunks; of equal ones the lowest id. Were every score NaN: 0, which is in any vocabulary."""
    chunk = tl.arange(0, BLOCK_C)
    inside = chunk < num_chunks
    score = tl.load(score_ptr + row * num_chunks + chunk, mask=inside, other=float("-inf"))
    id = tl.load(id_ptr + row * num_chunks + chunk, mask=inside, other=2147483647)
    taken = tl.min(tl.where(score == tl.max(score, axis=0), id, 2147483647), axis=0)
    return tl.where(taken == 2147483647, 0, taken)


@triton.jit
def _close(
    b, token_W, num_accepted, count, root_ptr, index_ptr, active_ptr, cap_ptr, stop_ptr, num_ptr, report_ptr,
    report_width, num_stops, BLOCK_W: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """The cut, the report and the next state of one row. token_W: int64, accepted drafts and bonus, -1 behind them."""
    w = tl.arange(0, BLOCK_W)
    s = tl.arange(0, BLOCK_S)
    stop = tl.load(stop_ptr + s, mask=s < num_stops, other=0)
    is_stop = (token_W[:, None] == stop[None, :]) & (w <= num_accepted)[:, None] & (s < num_stops)[None, :]
    first = tl.min(tl.min(tl.where(is_stop, w[:, None] + 1, BLOCK_W + 1), axis=1), axis=0)
    index = tl.load(index_ptr + b)
    cap = tl.load(cap_ptr + b)
    is_active = tl.load(active_ptr + b) != 0
    old_root = tl.load(root_ptr + b)
    kept = tl.minimum(tl.minimum(num_accepted + 1, first).to(tl.int64), cap - 1 - index)
    is_stopped = first <= kept
    num = tl.where(is_active, kept, 0)
    # Of the tokens alone, so that no thread stores before every thread has loaded.
    last = tl.sum(tl.where(w == tl.maximum(num - 1, 0), token_W, 0), axis=0)
    tl.debug_barrier()
    tl.store(root_ptr + b, tl.where(is_active, last, old_root))
    tl.store(index_ptr + b, index + num)
    stays = is_active & (first > kept) & (index + num < cap - 1)
    tl.store(active_ptr + b, stays.to(tl.uint8))
    tl.store(num_ptr + b, num)
    report = report_ptr + b * (report_width + 4)
    tl.store(report + w, token_W, mask=w < report_width)
    tl.store(report + report_width, num)
    tl.store(report + report_width + 1, is_stopped.to(tl.int64))
    tl.store(report + report_width + 2, num_accepted.to(tl.int64))
    tl.store(report + report_width + 3, count - 1)


# A size of 1 would become a constant, and with a constant width of 1 the compiler (Triton 3.6) fails on the loop.
@triton.jit(do_not_specialize=["width", "report_width", "num_stops", "num_nodes", "num_chunks"])
def _walk_and_finish(
    score_ptr, id_ptr, token_ptr, parent_ptr, path_ptr, accepted_ptr, bonus_ptr, count_ptr,
    root_ptr, index_ptr, active_ptr, cap_ptr, stop_ptr, num_ptr, report_ptr, width, report_width, num_stops,
    num_nodes, num_chunks,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK_N)
    w = tl.arange(0, BLOCK_W)
    # Padding and the root have parent -1: nobody's child.
    token_N = tl.load(token_ptr + b * num_nodes + n, mask=n < num_nodes, other=0).to(tl.int32)
    parent_N = tl.load(parent_ptr + b * num_nodes + n, mask=n < num_nodes, other=-1).to(tl.int32)
    token_W = tl.full([BLOCK_W], -1, tl.int64)
    path_W = tl.where(w == 0, 0, -1)
    depth = tl.full([], 0, tl.int32)
    taken = _take(score_ptr, id_ptr, b * num_nodes, num_chunks, BLOCK_C)
    child = tl.min(tl.where((parent_N == 0) & (token_N == taken), n, BLOCK_N), axis=0)
    while (child < BLOCK_N) & (depth < width - 1):
        token_W = tl.where(w == depth, taken.to(tl.int64), token_W)
        depth += 1
        path_W = tl.where(w == depth, child, path_W)
        taken = _take(score_ptr, id_ptr, b * num_nodes + child, num_chunks, BLOCK_C)
        child = tl.min(tl.where((parent_N == child) & (token_N == taken), n, BLOCK_N), axis=0)
    token_W = tl.where(w == depth, taken.to(tl.int64), token_W)
    tl.store(path_ptr + b * width + w, path_W.to(tl.int64), mask=w < width)
    tl.store(accepted_ptr + b, depth.to(tl.int64))
    tl.store(bonus_ptr + b, taken.to(tl.int64))
    _close(
        b, token_W, depth, tl.load(count_ptr + b), root_ptr, index_ptr, active_ptr, cap_ptr, stop_ptr, num_ptr,
        report_ptr, report_width, num_stops, BLOCK_W, BLOCK_S,
    )  # fmt: skip


@triton.jit(do_not_specialize=["width", "report_width", "num_stops", "num_nodes"])
def _finish(
    token_ptr, path_ptr, accepted_ptr, bonus_ptr, count_ptr,
    root_ptr, index_ptr, active_ptr, cap_ptr, stop_ptr, num_ptr, report_ptr, width, report_width, num_stops,
    num_nodes, BLOCK_W: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    w = tl.arange(0, BLOCK_W)
    num_accepted = tl.load(accepted_ptr + b).to(tl.int32)
    is_draft = w < num_accepted
    node_W = tl.load(path_ptr + b * width + w + 1, mask=is_draft & (w + 1 < width), other=0)
    token_W = tl.load(token_ptr + b * num_nodes + node_W, mask=is_draft, other=-1)
    token_W = tl.where(w == num_accepted, tl.load(bonus_ptr + b), token_W)
    _close(
        b, token_W, num_accepted, tl.load(count_ptr + b), root_ptr, index_ptr, active_ptr, cap_ptr, stop_ptr, num_ptr,
        report_ptr, report_width, num_stops, BLOCK_W, BLOCK_S,
    )  # fmt: skip
