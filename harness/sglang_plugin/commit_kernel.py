"""The CUDA side of `commit.RowMover`: one program a (buffer, request, slice of the row), rising through the path."""

import triton
import triton.language as tl
from torch import Tensor

TILE = 1024  # 32-bit words


@triton.jit
def _move(pointers, row_words, slots, path, counts, N: tl.constexpr, K: tl.constexpr, TILE: tl.constexpr):
    buffer, request = tl.program_id(0), tl.program_id(1)
    words = tl.load(row_words + buffer)
    base = tl.load(pointers + buffer).to(tl.pointer_type(tl.int32))
    word = tl.program_id(2) * TILE + tl.arange(0, TILE)
    count = tl.load(counts + request)
    for place in range(1, K):
        node = tl.load(path + request * K + place)
        travels = (word < words) & (place < count) & (node != place)
        source = tl.load(slots + request * N + node)
        front = tl.load(slots + request * N + place)
        # A thread reads and writes the same words of every row, in order: no row is lost.
        tl.store(base + front * words + word, tl.load(base + source * words + word, mask=travels), mask=travels)


def move_rows(
    pointer_L: Tensor, words_L: Tensor, words: int, slots_BN: Tensor, path_BK: Tensor, count_B: Tensor
) -> None:
    """pointer_L int64 addresses of L buffers, words_L int64 their row lengths (at most `words`), count_B integers."""
    batch, num_nodes = slots_BN.shape
    grid = (len(pointer_L), batch, triton.cdiv(words, TILE))
    _move[grid](
        pointer_L,
        words_L,
        slots_BN.contiguous(),
        path_BK.contiguous(),
        count_B.contiguous(),
        N=num_nodes,
        K=path_BK.shape[1],
        TILE=TILE,
    )
