"""The likeliest tokens of each draft position, in three launches, without a float32 copy of the logits.

Shapes: B batch, D draft positions, V vocabulary, K kept, R = B·D rows, C chunks of a row, G groups of a chunk, X room.

1. Of each chunk: the log-sum-exp's parts, and the greatest logit of each group (every G-th entry of the chunk).
2. The K-th greatest of all group maxima bounds the K-th greatest entry from below: K entries reach it. What reaches the
   bound is little more than K entries, wherever they lie. They are put into one list a row.
3. The place of each in the answer is the number of keys below its own.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.kernels.counting import count_below

WARPS = 4
TILE = 32 * WARPS
PLACE_PROGRAMS = 16  # a row
SURVIVOR_PROGRAMS = 264  # in all: two an SM of a large GPU. Each finds the row's bound once, for several chunks.


def candidates(logits_BDV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As `harness.decoding.tree.candidates`: (log p float32, ids int64), [B, D, K], falling, ties by lower id.

    logits_BDV: bfloat16, float16 or float32 with the vocabulary contiguous, k is cut to V. log p is the logit less the
    row's maximum less the log of the sum, as torch rounds it; the sum's last bit may differ from torch's. Equal log p
    are ties, whatever the logits. A row that holds nan may answer with any ids below V.
    """
    batch, depth, vocab = logits_BDV.shape
    k = min(k, vocab)
    if logits_BDV.stride(2) != 1:
        logits_BDV = logits_BDV.contiguous()
    rows = batch * depth
    size = min(2048, triton.next_power_of_2(vocab))  # of a chunk
    chunks = triton.cdiv(vocab, size)
    groups = min(size, max(16, triton.next_power_of_2(triton.cdiv(4 * k, chunks))))
    room = chunks * min(k, size)
    device = logits_BDV.device
    parts_RC2 = torch.empty(rows, chunks, 2, dtype=torch.float32, device=device)
    maxima_RCG = torch.empty(rows, chunks, groups, dtype=torch.float32, device=device)
    count_R = torch.empty(rows, dtype=torch.int32, device=device)
    keys_RX = torch.empty(rows, room, dtype=torch.int64, device=device)
    logp_BDK = torch.empty(batch, depth, k, dtype=torch.float32, device=device)
    ids_BDK = torch.empty(batch, depth, k, dtype=torch.int64, device=device)
    source = (logits_BDV, logits_BDV.stride(0), logits_BDV.stride(1), depth, vocab)
    _chunk_parts[(rows, chunks)](
        *source, parts_RC2, maxima_RCG, count_R, chunks, SIZE=size, GROUPS=groups, num_warps=WARPS
    )
    programs = min(chunks, max(1, SURVIVOR_PROGRAMS // rows))
    _survivors[(rows, programs)](
        *(*source, parts_RC2, maxima_RCG, count_R, keys_RX, chunks, programs, room, k),
        SIZE=size,
        CHUNKS=triton.next_power_of_2(chunks),
        GROUPS=groups,
        BLOCK=triton.next_power_of_2(chunks * groups),
        num_warps=2 * WARPS,
        enable_fp_fusion=False,  # see _survivors
    )
    programs = min(PLACE_PROGRAMS, triton.cdiv(room, TILE))
    _place[(rows, programs)](keys_RX, count_R, logp_BDK, ids_BDK, programs, room, k, TILE=TILE, num_warps=WARPS)
    return logp_BDK, ids_BDK


@triton.jit
def _kth_least(bits, k, LOWEST: tl.constexpr):
    """The k-th least of non-negative int32 `bits`, with all bits below LOWEST set; k beyond their number: the greatest
    int32."""
    found = tl.full((), 0, tl.int32)
    for step in range(31 - LOWEST):
        trial = found | (1 << (30 - step))
        few = tl.sum((bits < trial).to(tl.int32), axis=0) < k
        found = tl.where(few, trial, found)
    return found | ((1 << LOWEST) - 1)


@triton.jit
def _cost_bits(x, top, log_sum):
    """Bits of -log p, which is >= 0, so that they order as it does; nan above infinity."""
    return (0.0 - ((x - top) - log_sum)).to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit(do_not_specialize=["depth", "chunks"])
def _chunk_parts(
    logits_ptr, stride_b, stride_d, depth, vocab, parts_ptr, maxima_ptr, count_ptr, chunks,
    SIZE: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    logits_ptr += (row // depth) * stride_b + (row % depth) * stride_d
    turn = tl.arange(0, SIZE // GROUPS)
    group = tl.arange(0, GROUPS)
    place = chunk * SIZE + turn[:, None] * GROUPS + group[None, :]
    x = tl.load(logits_ptr + place, mask=place < vocab, other=float("-inf")).to(tl.float32)
    maximum = tl.max(x, axis=0)
    tl.store(maxima_ptr + (row * chunks + chunk) * GROUPS + group, maximum)
    top = tl.max(maximum, axis=0)
    total = tl.sum(tl.sum(tl.exp(x - tl.where(top == float("-inf"), 0.0, top)), axis=0), axis=0)
    tl.store(parts_ptr + (row * chunks + chunk) * 2, top)
    tl.store(parts_ptr + (row * chunks + chunk) * 2 + 1, total)
    if chunk == 0:
        tl.store(count_ptr + row, 0)


@triton.jit(do_not_specialize=["depth", "chunks", "programs", "room", "k"])
def _survivors(
    logits_ptr, stride_b, stride_d, depth, vocab, parts_ptr, maxima_ptr, count_ptr, keys_ptr, chunks, programs,
    room, k, SIZE: tl.constexpr, CHUNKS: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Keys (bits of -log p, id) of the entries of a chunk that reach the bound, at most k of them: its first k.

    Equal logits must get equal keys, so every lane needs the same log_sum. With fused multiply-adds a lane keeps its own
    product exact and gets its neighbour's rounded: odd lanes came out one bit above even ones (seen on an H200).
    """
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += (row // depth) * stride_b + (row % depth) * stride_d
    part = tl.arange(0, CHUNKS)
    parts_ptr += row * chunks * 2
    tops = tl.load(parts_ptr + part * 2, mask=part < chunks, other=float("-inf"))
    totals = tl.load(parts_ptr + part * 2 + 1, mask=part < chunks, other=0.0)
    top = tl.max(tops, axis=0)
    log_sum = tl.log(tl.sum(totals * tl.exp(tops - top), axis=0))

    group = tl.arange(0, BLOCK)
    known = group < chunks * GROUPS
    maximum = tl.load(maxima_ptr + row * chunks * GROUPS + group, mask=known, other=float("-inf"))
    # 18 of 31 bits: the bound is loose by a thousandth of the cost, and the work a little more than half.
    bound = _kth_least(_cost_bits(maximum, top, log_sum), k, 13)

    for chunk in range(tl.program_id(1), chunks, programs):
        place = chunk * SIZE + tl.arange(0, SIZE)
        x = tl.load(logits_ptr + place, mask=place < vocab, other=float("-inf")).to(tl.float32)
        cost = _cost_bits(x, top, log_sum)
        live = (place < vocab) & (cost <= bound)
        count = tl.sum(live.to(tl.int32), axis=0)
        if count > k:  # many ties, or all of the best entries in one chunk
            last = _kth_least(tl.where(live, cost, 0x7FFFFFFF), k, 0)
            missing = k - tl.sum((live & (cost < last)).to(tl.int32), axis=0)
            tied = live & (cost == last)
            nearer = tl.cumsum(tied.to(tl.int32), axis=0) <= missing
            live = live & ((cost < last) | (tied & nearer))
            count = k
        if count > 0:
            base = tl.atomic_add(count_ptr + row, count)
            slot = base + tl.cumsum(live.to(tl.int32), axis=0) - 1
            tl.store(keys_ptr + row * room + slot, (cost.to(tl.int64) << 32) | place, mask=live)


@triton.jit(do_not_specialize=["programs", "room", "k"])
def _place(keys_ptr, count_ptr, logp_ptr, ids_ptr, programs, room, k, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * TILE
    keys_ptr += row * room
    logp_ptr += row * k
    ids_ptr += row * k
    count = tl.load(count_ptr + row)
    for start in range(first, count, programs * TILE):
        i = start + tl.arange(0, TILE)
        key = tl.load(keys_ptr + i, mask=i < count, other=0x7FFFFFFFFFFFFFFF)
        place = count_below(keys_ptr, count, key)
        kept = (i < count) & (place < k)
        cost = (key >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        tl.store(logp_ptr + place, 0.0 - cost, mask=kept)
        tl.store(ids_ptr + place, key & 0xFFFFFFFF, mask=kept)
    # Fewer than k only where nan hid entries: no slot keeps what memory held.
    for start in range(count + first, k, programs * TILE):
        i = start + tl.arange(0, TILE)
        tl.store(logp_ptr + i, tl.full((TILE,), float("-inf"), tl.float32), mask=i < k)
        tl.store(ids_ptr + i, i.to(tl.int64), mask=i < k)
