"""Attention of a draft tree (or block) over its context, reading no slot behind the live ones.

Shapes: B batch, Q rows a sample (tree nodes), A query heads, K key/value heads, G = A / K, D head size, S cache slots,
R = Q · G rows of one key/value head.

The context length stands on the device, so one launch serves every length up to the bound that fixes its grid: a
program whose share of the slots lies behind the live ones ends at once. The slots are split among programs and the
parts joined by their log-sum-exp (flash-decoding; Dao et al., 2023), because a single sample has too few heads to fill
a GPU. The query heads of a group are rows of one tile, so keys and values are read once a group.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOG2_E = 1.4426950408889634


def tree_attention(
    query_BQAD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    length_B: Tensor,
    ancestors_BQQ: Tensor | None,
    *,
    max_length: int,
    scale: float,
    num_programs: int = 264,
) -> Tensor:
    """[B, Q, A · D]: row i sees the length_B committed slots and, of the Q slots behind them, its ancestors and itself.

    ancestors_BQQ: bool, None = all rows see each other (a DFlash block, a single row). max_length: bound on length_B that
    the host knows; it fixes the launch, so a captured graph serves every length up to it. num_programs: how many the
    device runs at once, more or less. Softmax in float32.
    """
    batch, num_rows, num_heads, size = query_BQAD.shape
    num_kv = key_BKSD.shape[1]
    group = num_heads // num_kv
    out = query_BQAD.new_empty(batch, num_rows, num_heads * size)
    masked = ancestors_BQQ is not None
    block_r = min(128 if num_rows * group >= 512 else 64, max(16, triton.next_power_of_2(num_rows * group)))
    block_c = 64 if size <= 128 else 32
    tiles = triton.cdiv(num_rows * group, block_r)
    # A tree is a part of its own, so that the context, which every row sees, needs no mask.
    shared = max_length if masked else max_length + num_rows
    # Enough parts to fill the device, but none shorter than two blocks: every part costs a reduction.
    num_parts = max(1, min(triton.cdiv(shared, 2 * block_c), num_programs // (batch * num_kv * tiles), 64))
    part_size = triton.cdiv(triton.cdiv(shared, num_parts), block_c) * block_c
    num_parts = triton.cdiv(shared, part_size) + masked
    split = num_parts > 1
    shape = (batch, num_rows * num_heads, num_parts)
    partial = torch.empty(*shape, size, dtype=torch.float32, device=out.device) if split else out
    weight = torch.empty(shape, dtype=torch.float32, device=out.device) if split else out
    mask = ancestors_BQQ.view(torch.uint8) if ancestors_BQQ is not None else length_B
    block_d = max(16, triton.next_power_of_2(size))
    _attend[(num_parts, num_kv * tiles, batch)](
        *(query_BQAD, key_BKSD, value_BKSD, length_B, mask, out, partial, weight),
        *(num_rows, num_heads, group, size, part_size, num_parts, tiles, scale * _LOG2_E),
        *(key_BKSD.stride(0), key_BKSD.stride(1)),
        MASKED=masked,
        SPLIT=split,
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        BLOCK_D=block_d,
        num_warps=8 if block_r == 128 else 4,
        num_stages=3 if query_BQAD.element_size() == 2 else 2,
    )
    if split:
        _join[(num_rows * num_heads, batch)](
            *(partial, weight, out, length_B, num_rows, num_heads, size, part_size, num_parts),
            MASKED=masked,
            PARTS=triton.next_power_of_2(num_parts),
            BLOCK_D=block_d,
            num_warps=1,
        )
    return out


@triton.jit
def _see(query, key_ptr, value_ptr, offset, inside, visible, top, total, out, scale):
    """One block of slots into the running softmax: (maximum, sum, weighted values), base 2."""
    key = tl.load(key_ptr + offset, mask=inside, other=0.0)
    score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    score = tl.where(visible, score, float("-inf"))
    new_top = tl.maximum(top, tl.max(score, axis=1))
    safe = tl.where(new_top == float("-inf"), 0.0, new_top)
    decay = tl.exp2(top - safe)
    p = tl.exp2(score - safe[:, None])
    value = tl.load(value_ptr + offset, mask=inside, other=0.0)
    out = out * decay[:, None] + tl.dot(p.to(value.dtype), value, input_precision="ieee")
    return new_top, total * decay + tl.sum(p, axis=1), out


@triton.jit
def _attend(
    query_ptr, key_ptr, value_ptr, length_ptr, mask_ptr, out_ptr, partial_ptr, weight_ptr,
    num_rows, num_heads, group, size, part_size, num_parts, tiles, scale, stride_b, stride_k,
    MASKED: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    kv = tl.program_id(1) // tiles
    tile = tl.program_id(1) % tiles
    b = tl.program_id(2).to(tl.int64)
    length = tl.load(length_ptr + b).to(tl.int32)
    is_tree = part == num_parts - 1 if MASKED else part < 0
    shared = length if MASKED else length + num_rows
    begin = part * part_size
    end = tl.minimum(begin + part_size, shared)
    if (begin >= shared) & (not is_tree):
        return
    r = tile * BLOCK_R + tl.arange(0, BLOCK_R)
    row = r // group
    real = row < num_rows
    head = kv * group + r % group
    d = tl.arange(0, BLOCK_D)
    in_head = (d < size)[None, :]
    place = (b * num_rows + row) * num_heads + head
    query = tl.load(query_ptr + place[:, None] * size + d[None, :], mask=real[:, None] & in_head, other=0.0)
    key_ptr += b * stride_b + kv * stride_k
    value_ptr += b * stride_b + kv * stride_k
    c = tl.arange(0, BLOCK_C)
    top = tl.full([BLOCK_R], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_R], tl.float32)
    out = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    if is_tree:
        # Ancestors stand before a node: a tile sees no node behind its own last one.
        last = tl.minimum((tile * BLOCK_R + BLOCK_R - 1) // group + 1, num_rows)
        for start in range(0, last, BLOCK_C):
            node = start + c
            inside = node < last
            at = (b * num_rows + row)[:, None] * num_rows + node[None, :]
            visible = tl.load(mask_ptr + at, mask=real[:, None] & inside[None, :], other=0) != 0
            offset = (length + node).to(tl.int64)[:, None] * size + d[None, :]
            top, total, out = _see(
                query, key_ptr, value_ptr, offset, inside[:, None] & in_head, visible, top, total, out, scale
            )
    else:
        for start in range(begin, end, BLOCK_C):
            inside = start + c < end
            offset = (start + c).to(tl.int64)[:, None] * size + d[None, :]
            top, total, out = _see(
                query, key_ptr, value_ptr, offset, inside[:, None] & in_head, inside[None, :], top, total, out, scale
            )
    keep = real[:, None] & in_head
    normed = out / total[:, None]
    if SPLIT:
        part_place = place * num_parts + part
        tl.store(weight_ptr + part_place, tl.log2(total) + top, mask=real)
        tl.store(partial_ptr + part_place[:, None] * size + d[None, :], normed, mask=keep)
    else:
        tl.store(out_ptr + place[:, None] * size + d[None, :], normed.to(query.dtype), mask=keep)


@triton.jit
def _join(
    partial_ptr, weight_ptr, out_ptr, length_ptr, num_rows, num_heads, size, part_size, num_parts,
    MASKED: tl.constexpr, PARTS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    place = b * num_rows * num_heads + tl.program_id(0)
    length = tl.load(length_ptr + b).to(tl.int32)
    shared = length if MASKED else length + num_rows
    part = tl.arange(0, PARTS)
    live = part < (shared + part_size - 1) // part_size
    if MASKED:
        live = live | (part == num_parts - 1)
    d = tl.arange(0, BLOCK_D)
    weight = tl.load(weight_ptr + place * num_parts + part, mask=live, other=float("-inf"))
    weight = tl.exp2(weight - tl.max(weight, axis=0))
    offset = (place * num_parts + part)[:, None] * size + d[None, :]
    value = tl.load(partial_ptr + offset, mask=live[:, None] & (d < size)[None, :], other=0.0)
    out = tl.sum(value * weight[:, None], axis=0) / tl.sum(weight, axis=0)
    tl.store(out_ptr + place * size + d, out.to(out_ptr.dtype.element_ty), mask=d < size)
