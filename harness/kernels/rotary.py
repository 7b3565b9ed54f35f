"""From the fused projection to what attention reads: head norms, rotation, and the key and value rows in their slots.

Shapes: B batch, Q rows a sample, A query heads, K key/value heads, D head size, S cache slots, L layers, P positions of
the rotation table.
"""

import triton
import triton.language as tl
from torch import Tensor

HEADS = 16  # heads that one program turns


def rotate_and_store(
    qkv_BQX: Tensor,
    depth_BQ: Tensor,
    length_B: Tensor,
    table: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    num_heads: int,
) -> Tensor:
    """Rotated queries [B, Q, A, D]; the rotated keys and plain values go to slots length_B .. length_B + Q - 1.

    qkv_BQX: the projections side by side, X = (A + 2K) · D. A row's position is
    length_B + depth_BQ (int64). table: cos and sin, [P, D] each, of the
    dtype they are multiplied in. norms: weights [D] of the head norms (Qwen3), applied before the rotation.
    """
    batch, num_rows, _ = qkv_BQX.shape
    num_kv, size = key_BKSD.shape[1], key_BKSD.shape[3]
    query_BQAD = qkv_BQX.new_empty(batch, num_rows, num_heads, size)
    q_norm, k_norm = norms or (qkv_BQX, qkv_BQX)
    _rotate_and_store[(batch * num_rows, triton.cdiv(num_heads + 2 * num_kv, HEADS))](
        *(qkv_BQX, query_BQAD, key_BKSD, value_BKSD, depth_BQ, length_B, table[0], table[1], q_norm, k_norm),
        *(num_rows, num_heads, num_kv, size, eps, key_BKSD.stride(0), key_BKSD.stride(1)),
        HAS_NORM=norms is not None,
        HEADS=HEADS,
        BLOCK=triton.next_power_of_2(size),
        num_warps=4,
    )
    return query_BQAD


def store_context(
    kv_MX: Tensor,
    length_B: Tensor,
    table: tuple[Tensor, Tensor],
    k_norm_LD: Tensor,
    eps: float,
    cache_L2BKSD: Tensor,
    num_rows: int,
) -> None:
    """Keys and values of committed tokens for every layer of a drafter, from one projection of their features.

    kv_MX: [B·Q, L · 2 · K · D], keys before values in each layer. Row i of sample b goes to slot length_B[b] + i and has
    that position. k_norm_LD: the layers' key norms.
    """
    num_layers, _, batch, num_kv, _, size = cache_L2BKSD.shape
    strides = [cache_L2BKSD.stride(axis) for axis in range(4)]
    _store_context[(batch * num_rows, num_layers * 2 * num_kv)](
        *(kv_MX, cache_L2BKSD, length_B, table[0], table[1], k_norm_LD, num_rows, num_kv, size, eps, *strides),
        num_layers * 2 * num_kv,
        BLOCK=triton.next_power_of_2(size),
        num_warps=1,
    )


@triton.jit
def _normed(x, weight, scale):
    """weight · x · scale, rounded before the weight as the reference does."""
    return (weight * (x.to(tl.float32) * scale).to(x.dtype).to(tl.float32)).to(x.dtype)


@triton.jit
def _rotate_and_store(
    qkv_ptr, query_ptr, key_ptr, value_ptr, depth_ptr, length_ptr, cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr,
    num_rows, num_heads, num_kv, size, eps, stride_b, stride_k,
    HAS_NORM: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    b = row // num_rows
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_query = head < num_heads
    is_key = (head >= num_heads) & (head < num_heads + num_kv)
    is_value = (head >= num_heads + num_kv) & (head < num_heads + 2 * num_kv)
    column = tl.arange(0, BLOCK)
    half = size // 2
    partner = tl.where(column < half, column + half, column - half)
    tile = (head < num_heads + 2 * num_kv)[:, None] & (column < size)[None, :]
    source = qkv_ptr + (row * (num_heads + 2 * num_kv) + head)[:, None] * size
    x = tl.load(source + column[None, :], mask=tile, other=0.0)
    other = tl.load(source + partner[None, :], mask=tile, other=0.0)
    length = tl.load(length_ptr + b)
    slot = length + row % num_rows
    position = length + tl.load(depth_ptr + row)
    plain = x
    if HAS_NORM:
        wide = x.to(tl.float32)
        scale = (1.0 / tl.sqrt(tl.sum(wide * wide, axis=1) / size + eps))[:, None]
        inside = column < size
        q = tl.load(q_norm_ptr + column, mask=inside, other=0.0)
        k = tl.load(k_norm_ptr + column, mask=inside, other=0.0)
        q_far = tl.load(q_norm_ptr + partner, mask=inside, other=0.0)
        k_far = tl.load(k_norm_ptr + partner, mask=inside, other=0.0)
        weight = tl.where(is_query[:, None], q[None, :], k[None, :]).to(tl.float32)
        far = tl.where(is_query[:, None], q_far[None, :], k_far[None, :]).to(tl.float32)
        x, other = _normed(x, weight, scale), _normed(other, far, scale)
    other = tl.where((column < half)[None, :], -other, other)
    cos = tl.load(cos_ptr + position * size + column, mask=column < size, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + position * size + column, mask=column < size, other=0.0).to(tl.float32)
    turned = (x.to(tl.float32) * cos[None, :] + other.to(tl.float32) * sin[None, :]).to(x.dtype)
    goal = (row * num_heads + head)[:, None] * size + column[None, :]
    tl.store(query_ptr + goal, turned, mask=tile & is_query[:, None])
    goal = b * stride_b + (head - num_heads)[:, None] * stride_k + slot * size + column[None, :]
    tl.store(key_ptr + goal, turned, mask=tile & is_key[:, None])
    goal = b * stride_b + (head - num_heads - num_kv)[:, None] * stride_k + slot * size + column[None, :]
    tl.store(value_ptr + goal, plain, mask=tile & is_value[:, None])


@triton.jit
def _store_context(
    kv_ptr, cache_ptr, length_ptr, cos_ptr, sin_ptr, k_norm_ptr, num_rows, num_kv, size, eps,
    stride_l, stride_2, stride_b, stride_k, num_parts, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    layer = part // (2 * num_kv)
    is_value = (part // num_kv) % 2
    head = part % num_kv
    b = row // num_rows
    column = tl.arange(0, BLOCK)
    inside = column < size
    source = kv_ptr + (row * num_parts + part) * size
    x = tl.load(source + column, mask=inside, other=0.0)
    slot = tl.load(length_ptr + b) + row % num_rows
    if is_value == 0:
        half = size // 2
        partner = tl.where(column < half, column + half, column - half)
        other = tl.load(source + partner, mask=inside, other=0.0)
        wide = x.to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / size + eps)
        norm_ptr = k_norm_ptr + layer * size
        x = _normed(x, tl.load(norm_ptr + column, mask=inside, other=0.0).to(tl.float32), scale)
        other = _normed(other, tl.load(norm_ptr + partner, mask=inside, other=0.0).to(tl.float32), scale)
        other = tl.where(column < half, -other, other)
        cos = tl.load(cos_ptr + slot * size + column, mask=inside, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + slot * size + column, mask=inside, other=0.0).to(tl.float32)
        x = (x.to(tl.float32) * cos + other.to(tl.float32) * sin).to(x.dtype)
    goal = (
        cache_ptr + layer.to(tl.int64) * stride_l + is_value * stride_2 + b * stride_b + head * stride_k + slot * size
    )
    tl.store(goal + column, x, mask=inside)
