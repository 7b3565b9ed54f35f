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

    ancestors_BQQ: bool or uint8, None = all rows see each other (a DFlash block). max_length: bound on length_B that
    the host knows; it fixes the launch, so a captured graph serves every length up to it. num_programs: how many the
    device runs at once, more or less. Softmax in float32.
    """
    batch, num_rows, num_heads, size = query_BQAD.shape
    num_kv = key_BKSD.shape[1]
    group = num_heads // num_kv
    out = query_BQAD.new_empty(batch, num_rows, num_heads * size)
    block_r = min(64, max(16, triton.next_power_of_2(num_rows * group)))
    block_c = 64 if size <= 128 else 32
    tiles = triton.cdiv(num_rows * group, block_r)
    live = max_length + num_rows
    # Enough parts to fill the device, but none shorter than two blocks: every part costs a reduction.
    num_parts = max(1, min(triton.cdiv(live, 2 * block_c), num_programs // (batch * num_kv * tiles), 64))
    part_size = triton.cdiv(triton.cdiv(live, num_parts), block_c) * block_c
    num_parts = triton.cdiv(live, part_size)
    split = num_parts > 1
    shape = (batch, num_rows * num_heads, num_parts)
    partial = torch.empty(*shape, size, dtype=torch.float32, device=out.device) if split else out
    weight = torch.empty(shape, dtype=torch.float32, device=out.device) if split else out
    mask = length_B if ancestors_BQQ is None else ancestors_BQQ.view(torch.uint8)
    block_d = max(16, triton.next_power_of_2(size))
    _attend[(num_parts, num_kv * tiles, batch)](
        *(query_BQAD, key_BKSD, value_BKSD, length_B, mask, out, partial, weight),
        *(num_rows, num_heads, group, size, part_size, num_parts, tiles, scale * _LOG2_E),
        *(key_BKSD.stride(0), key_BKSD.stride(1)),
        HAS_MASK=ancestors_BQQ is not None,
        SPLIT=split,
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        BLOCK_D=block_d,
        num_warps=4,
        num_stages=2,
    )
    if split:
        _join[(num_rows * num_heads, batch)](
            *(partial, weight, out, length_B, num_rows, num_heads, size, part_size, num_parts),
            PARTS=triton.next_power_of_2(num_parts),
            BLOCK_D=block_d,
            num_warps=2,
        )
    return out


@triton.jit
def _attend(
    query_ptr, key_ptr, value_ptr, length_ptr, mask_ptr, out_ptr, partial_ptr, weight_ptr,
    num_rows, num_heads, group, size, part_size, num_parts, tiles, scale, stride_b, stride_k,
    HAS_MASK: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    kv = tl.program_id(1) // tiles
    tile = tl.program_id(1) % tiles
    b = tl.program_id(2).to(tl.int64)
    length = tl.load(length_ptr + b).to(tl.int32)
    live = length + num_rows
    begin = part * part_size
    end = tl.minimum(begin + part_size, live)
    if begin >= live:
        return
    r = tile * BLOCK_R + tl.arange(0, BLOCK_R)
    row = r // group
    real = row < num_rows
    head = kv * group + r % group
    d = tl.arange(0, BLOCK_D)
    in_head = d < size
    place = (b * num_rows + row) * num_heads + head
    query = tl.load(query_ptr + place[:, None] * size + d[None, :], mask=real[:, None] & in_head[None, :], other=0.0)
    base = b * stride_b + kv * stride_k
    top = tl.full([BLOCK_R], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_R], tl.float32)
    out = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for start in range(begin, end, BLOCK_C):
        c = start + tl.arange(0, BLOCK_C)
        seen = c < end
        offset = base + c[:, None].to(tl.int64) * size + d[None, :]
        key = tl.load(key_ptr + offset, mask=seen[:, None] & in_head[None, :], other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        visible = seen[None, :] & real[:, None]
        if HAS_MASK:
            node = c - length
            in_tree = (node >= 0) & seen
            at = (b * num_rows + row)[:, None] * num_rows + node[None, :]
            ancestor = tl.load(mask_ptr + at, mask=in_tree[None, :] & real[:, None], other=1)
            visible = visible & (ancestor != 0)
        score = tl.where(visible, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, axis=1))
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)
        decay = tl.exp2(top - safe)
        p = tl.exp2(score - safe[:, None])
        total = total * decay + tl.sum(p, axis=1)
        value = tl.load(value_ptr + offset, mask=seen[:, None] & in_head[None, :], other=0.0)
        out = out * decay[:, None] + tl.dot(p.to(value.dtype), value, input_precision="ieee")
        top = new_top
    keep = real[:, None] & in_head[None, :]
    if SPLIT:
        # A part in which a row sees nothing has weight exp(-inf) = 0.
        part_place = place * num_parts + part
        tl.store(weight_ptr + part_place, tl.where(total > 0, tl.log2(total) + top, float("-inf")), mask=real)
        scale_down = tl.where(total > 0, 1.0 / total, 0.0)
        tl.store(partial_ptr + part_place[:, None] * size + d[None, :], out * scale_down[:, None], mask=keep)
    else:
        tl.store(out_ptr + place[:, None] * size + d[None, :], (out / total[:, None]).to(query.dtype), mask=keep)


@triton.jit
def _join(
    partial_ptr, weight_ptr, out_ptr, length_ptr, num_rows, num_heads, size, part_size, num_parts,
    PARTS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    place = b * num_rows * num_heads + tl.program_id(0)
    live = tl.load(length_ptr + b).to(tl.int32) + num_rows
    num_live = (live + part_size - 1) // part_size
    part = tl.arange(0, PARTS)
    d = tl.arange(0, BLOCK_D)
    weight = tl.load(weight_ptr + place * num_parts + part, mask=part < num_live, other=float("-inf"))
    weight = tl.exp2(weight - tl.max(weight, axis=0))
    offset = (place * num_parts + part)[:, None] * size + d[None, :]
    value = tl.load(partial_ptr + offset, mask=(part < num_live)[:, None] & (d < size)[None, :], other=0.0)
    out = tl.sum(value * weight[:, None], axis=0) / tl.sum(weight, axis=0)
    tl.store(out_ptr + place * size + d, out.to(out_ptr.dtype.element_ty), mask=d < size)
