"""What verifier `kernel` reads: softmax of logits / T in two passes over the logits, and the coins in one launch.

Shapes: B batch, N nodes with the root, V vocabulary, C chunks of the vocabulary.

References: `harness.decoding.sampling.probabilities` without filters, and `harness.decoding.verify.kernel_coins`. Coins
are equal bit for bit, given the same probabilities. Probabilities are equal to rounding: sums run in another order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.decoding.tree import DraftTree
from harness.kernels.draws import noise_key, shift_right

CHUNK = 2048  # ids a program looks at


def softmax_scaled(logits_BNV: Tensor, temperature_B: Tensor) -> Tensor:
    """float32 [B, N, V], contiguous; one-hot at the argmax (lowest id) at temperature 0. See `softmax_and_positive`."""
    return softmax_and_positive(logits_BNV, temperature_B)[0]


def softmax_and_positive(logits_BNV: Tensor, temperature_B: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities, float32 [B, N, V], and how many of each chunk are above 0, int32 [B, N, C]. Two launches.

    logits_BNV: bfloat16, float16 or float32, V < 2**31; the arithmetic is float32. temperature_B: float64 or float32,
    0 for greedy. Raises ValueError for float64.
    """
    if logits_BNV.dtype == torch.float64:
        raise ValueError("the kernel works in float32: take harness.decoding.sampling.probabilities for float64 logits")
    batch, num_nodes, vocab = logits_BNV.shape
    device = logits_BNV.device
    num_chunks = triton.cdiv(vocab, CHUNK)
    logits_BNV = logits_BNV.contiguous()
    max_BNC = torch.empty(batch, num_nodes, num_chunks, dtype=torch.float32, device=device)
    sum_BNC = torch.empty_like(max_BNC)
    id_BNC = torch.empty(batch, num_nodes, num_chunks, dtype=torch.int32, device=device)
    positive_BNC = torch.empty_like(id_BNC)
    out_BNV = torch.empty(batch, num_nodes, vocab, dtype=torch.float32, device=device)
    grid = (num_chunks, batch * num_nodes)
    sizes = num_nodes, vocab, num_chunks
    _softmax_partials[grid](logits_BNV, temperature_B, max_BNC, sum_BNC, id_BNC, *sizes, CHUNK=CHUNK, num_warps=4)
    _softmax_write[grid](
        *(logits_BNV, temperature_B, max_BNC, sum_BNC, id_BNC, out_BNV, positive_BNC),
        *sizes,
        CHUNK=CHUNK,
        BLOCK_C=max(16, triton.next_power_of_2(num_chunks)),
        num_warps=4,
        enable_fp_fusion=False,  # one `total` in every lane, so that equal logits have equal probabilities
    )
    return out_BNV, positive_BNC


def kernel_coins(
    tree: DraftTree, target_BNV: Tensor, positive_BNC: Tensor, stream_B: Tensor, index_B: Tensor
) -> tuple[Tensor, Tensor]:
    """`harness.decoding.verify.kernel_coins`, float32 [B, N] and [B], drawn and clamped in one launch.

    positive_BNC: int32 counts of `softmax_and_positive`, or any that add up to the entries above 0 of a node.
    """
    batch, num_nodes, _ = target_BNV.shape
    coin_BN = torch.empty(batch, num_nodes, dtype=torch.float32, device=target_BNV.device)
    final_B = torch.empty(batch, dtype=torch.float32, device=target_BNV.device)
    _launch_coins(tree, target_BNV, positive_BNC, stream_B, index_B, coin_BN, coin_BN, final_B, True)
    return coin_BN, final_B


def clamp_coins(coin_BN: Tensor, tree: DraftTree, target_BNV: Tensor, positive_BNC: Tensor) -> Tensor:
    """`harness.decoding.verify._clamp_coins` of given coins, float32 [B, N], in one launch."""
    out_BN = torch.empty_like(coin_BN, memory_format=torch.contiguous_format)
    # No stream, no index, no final coin: the pointers are not looked at.
    _launch_coins(
        tree, target_BNV, positive_BNC, tree.count_B, tree.count_B, coin_BN.contiguous(), out_BN, out_BN, False
    )
    return out_BN


def _launch_coins(
    tree: DraftTree,
    target_BNV: Tensor,
    positive_BNC: Tensor,
    stream_B: Tensor,
    index_B: Tensor,
    coin_BN: Tensor,
    out_BN: Tensor,
    final_B: Tensor,
    is_drawn: bool,
) -> None:
    batch, num_nodes, vocab = target_BNV.shape
    num_chunks = positive_BNC.shape[-1]
    _coins[(num_nodes, batch)](
        *(tree.token_BN.contiguous(), tree.parent_BN.contiguous(), target_BNV.contiguous(), positive_BNC.contiguous()),
        *(stream_B, index_B, coin_BN, out_BN, final_B, num_nodes, vocab, num_chunks),
        IS_DRAWN=is_drawn,
        BLOCK_N=max(16, triton.next_power_of_2(num_nodes)),
        BLOCK_C=max(16, triton.next_power_of_2(num_chunks)),
        num_warps=1,
    )


@triton.jit
def _scaled(logits_ptr, row, id, vocab, temperature):
    """float32 logits / T as the reference divides them; as they are at T = 0. -inf beyond the vocabulary."""
    x = tl.load(logits_ptr + row * vocab + id, mask=id < vocab, other=float("-inf")).to(tl.float32)
    return tl.div_rn(x, tl.where(temperature > 0, temperature, 1.0))


@triton.jit
def _softmax_partials(
    logits_ptr, temperature_ptr, max_ptr, sum_ptr, id_ptr, num_nodes, vocab, num_chunks, CHUNK: tl.constexpr
):
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    temperature = tl.load(temperature_ptr + row // num_nodes).to(tl.float32)
    id = chunk * CHUNK + tl.arange(0, CHUNK)
    x = _scaled(logits_ptr, row, id, vocab, temperature)
    best = tl.max(x, axis=0)
    place = row * num_chunks + chunk
    tl.store(max_ptr + place, best)
    # A chunk of -inf alone has no mass, and -inf less itself is no number.
    tl.store(sum_ptr + place, tl.sum(tl.exp(x - tl.where(best == float("-inf"), 0.0, best)), axis=0))
    tl.store(id_ptr + place, tl.min(tl.where(x == best, id, vocab - 1), axis=0))


@triton.jit
def _softmax_write(
    logits_ptr, temperature_ptr, max_ptr, sum_ptr, id_ptr, out_ptr, positive_ptr, num_nodes, vocab, num_chunks,
    CHUNK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    temperature = tl.load(temperature_ptr + row // num_nodes).to(tl.float32)
    c = tl.arange(0, BLOCK_C)
    some = row * num_chunks + c
    max_C = tl.load(max_ptr + some, mask=c < num_chunks, other=float("-inf"))
    best = tl.max(max_C, axis=0)
    id = chunk * CHUNK + tl.arange(0, CHUNK)
    if temperature > 0:
        sum_C = tl.load(sum_ptr + some, mask=c < num_chunks, other=0.0)
        total = tl.sum(sum_C * tl.exp(max_C - best), axis=0)
        p = tl.div_rn(tl.exp(_scaled(logits_ptr, row, id, vocab, temperature) - best), total)
    else:
        id_C = tl.load(id_ptr + some, mask=c < num_chunks, other=2147483647)
        first = tl.min(tl.where(max_C == best, id_C, 2147483647), axis=0)
        p = (id == first).to(tl.float32)
    tl.store(out_ptr + row * vocab + id, p, mask=id < vocab)
    tl.store(positive_ptr + row * num_chunks + chunk, tl.sum(((p > 0) & (id < vocab)).to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["num_nodes", "num_chunks"])
def _coins(
    token_ptr, parent_ptr, target_ptr, positive_ptr, stream_ptr, index_ptr, coin_ptr, out_ptr, final_ptr,
    num_nodes, vocab, num_chunks, IS_DRAWN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One program a node: its coin, kept within the sum of its children's probabilities where they carry all its mass.

    The sum adds one child after the other in node order, as the kernel that verifies does: bit for bit its own.
    """
    node = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    row = b * num_nodes + node
    if IS_DRAWN:
        stream = tl.load(stream_ptr + b)
        index = tl.load(index_ptr + b)
        coin = (shift_right(noise_key(stream, index, node.to(tl.int64)), 40) + 1).to(tl.float32) * 5.960464477539063e-08
        if node == 0:
            final_key = noise_key(stream, index, -1)  # noise.FINAL_COIN
            tl.store(final_ptr + b, (shift_right(final_key, 40) + 1).to(tl.float32) * 5.960464477539063e-08)
    else:
        coin = tl.load(coin_ptr + row)
    c = tl.arange(0, BLOCK_C)
    num_positive = tl.sum(tl.load(positive_ptr + row * num_chunks + c, mask=c < num_chunks, other=0), axis=0)
    if num_positive < num_nodes:  # else the children cannot carry all the mass: nearly always
        n = tl.arange(0, BLOCK_N)
        is_child = tl.load(parent_ptr + b * num_nodes + n, mask=n < num_nodes, other=-1) == node
        token = tl.load(token_ptr + b * num_nodes + n, mask=is_child, other=0)
        p = tl.load(target_ptr + row * vocab + token, mask=is_child, other=0.0)
        left = p > 0
        if tl.sum(left.to(tl.int32), axis=0) == num_positive:
            mass = 0.0
            next = tl.min(tl.where(left, n, BLOCK_N), axis=0)
            while next < BLOCK_N:
                mass += tl.sum(tl.where(n == next, p, 0.0), axis=0)
                next = tl.min(tl.where(left & (n > next), n, BLOCK_N), axis=0)
            coin = tl.minimum(coin, mass)
    tl.store(out_ptr + row, coin)
