"""Keep the accepted path: move its key and value rows, of all layers at once, to where committed rows stand.

Shapes: B batch, W path width, L layers, K key/value heads, S slots, D head size.
"""

import triton
import triton.language as tl
from torch import Tensor


def commit_rows(cache_L2BKSD: Tensor, length_B: Tensor, path_BW: Tensor, num_B: Tensor) -> None:
    """Row path_BW[b, w] behind length_B goes to place w behind it, for w < num_B. Lengths stay as they are.

    A path rises and path[w] >= w, so a row is only ever overwritten by itself or after it was read.
    """
    num_layers, _, batch, num_kv, _, size = cache_L2BKSD.shape
    width = path_BW.shape[1]
    if width == 1:
        return  # the root stands in its place
    _commit_rows[(num_layers * 2, num_kv, batch)](
        *(cache_L2BKSD, length_B, path_BW, num_B, width, size),
        *(cache_L2BKSD.stride(axis) for axis in range(4)),
        BLOCK_W=triton.next_power_of_2(width),
        BLOCK_D=triton.next_power_of_2(size),
        num_warps=4,
    )


@triton.jit
def _commit_rows(
    cache_ptr, length_ptr, path_ptr, num_ptr, width, size, stride_l, stride_2, stride_b, stride_k,
    BLOCK_W: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    head = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    base = cache_ptr + (part // 2).to(tl.int64) * stride_l + (part % 2) * stride_2 + b * stride_b + head * stride_k
    length = tl.load(length_ptr + b)
    w = tl.arange(0, BLOCK_W)
    d = tl.arange(0, BLOCK_D)
    kept = w < tl.load(num_ptr + b)
    source = tl.load(path_ptr + b * width + w, mask=kept, other=0)
    moved = (kept & (source != w))[:, None] & (d < size)[None, :]
    row = tl.load(base + (length + source)[:, None] * size + d[None, :], mask=moved, other=0.0)
    tl.debug_barrier()  # every row is read before any is written
    tl.store(base + (length + w)[:, None] * size + d[None, :], row, mask=moved)
