"""Order by counting: the place of a key among few distinct keys is the number of keys below it.

For up to some hundred keys this is faster than a sorting network: one pass, no exchange between threads.
"""

import triton
import triton.language as tl


@triton.jit
def count_below(keys_ptr, count, mine):
    """int32, how many of the int64 keys at keys_ptr[:count] are below each entry of `mine` [T].

    A thread owns entries of `mine` where T is at least 32 · warps, so that nothing is exchanged.
    """
    CHUNK: tl.constexpr = 32
    below = tl.zeros_like(mine).to(tl.int32)
    for start in range(0, count, CHUNK):
        place = start + tl.arange(0, CHUNK)
        other = tl.load(keys_ptr + place, mask=place < count, other=0x7FFFFFFFFFFFFFFF)
        below += tl.sum((other[:, None] < mine[None, :]).to(tl.int32), axis=0)
    return below


@triton.jit
def search_below(sorted_ptr, count, mine, steps):
    """The same where the keys rise. steps: number of bits of the largest possible `count`."""
    low = tl.zeros_like(mine).to(tl.int32)
    high = low + count
    for _ in range(steps):
        open_ = low < high
        middle = (low + high) // 2
        before = open_ & (tl.load(sorted_ptr + middle, mask=open_, other=0) < mine)
        low = tl.where(before, middle + 1, low)
        high = tl.where(open_ & ~before, middle, high)
    return low
