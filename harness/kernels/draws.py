"""The coupled draw of every tree node in one kernel: argmax of logits / T plus Gumbel noise, without a copy of logits.

Shapes: B batch, N nodes with the root, V vocabulary, C chunks of the vocabulary.

Reference: `harness.decoding.verify.coupled_at_once` without filters. The random integers are those of
`harness.decoding.noise.gumbel`, bit for bit. The logarithms may differ in their last places from one device to the
next, so a draw can differ where two scores are that close; on one device every draw is a function of its row alone.
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.decoding.noise import _vocabulary_hash, gumbel

# Ids that a program looks at: few where there are few nodes, so that the device is full; else many, since the end of a
# program costs as much as a thousand ids.
SMALL_CHUNK, CHUNK = 1024, 4096
FEW_NODES = 8
PART = 1024  # ids at a time where a near tie calls for exact scores of them all


@dataclass(frozen=True)
class Partials:
    """The best of each chunk of the vocabulary. score_BNC: float32; id_BNC: int32. Rows of padding hold anything."""

    score_BNC: Tensor
    id_BNC: Tensor


def draw_partials(
    logits_BNV: Tensor,
    temperature_B: Tensor,
    stream_B: Tensor,
    index_B: Tensor,
    depth_BN: Tensor,
    count_B: Tensor,
    *,
    chunk: int | None = None,
    rows: int = 1,
) -> Partials:
    """One launch. The walk reads the partials of the nodes that it visits, so no second pass over nodes is needed.

    logits_BNV: bfloat16, float16 or float32, contiguous, V < 2**31. temperature_B: float64 or float32, 0 for greedy
    (argmax, lowest id). stream_B, index_B int64 [B]; depth_BN int64; count_B int64, nodes that are not padding. The
    noise is that of output index index_B + 1 + depth. chunk: ids a program looks at, rows: nodes that share
    its load of the vocabulary's hashes; powers of two. Raises ValueError for float64, and for a chunk above 16384.
    """
    batch, num_nodes, vocab = logits_BNV.shape
    if logits_BNV.dtype == torch.float64:
        raise ValueError("the kernel draws in float32: take harness.decoding.verify.coupled_at_once for float64 logits")
    if chunk is None:
        chunk = SMALL_CHUNK if batch * num_nodes <= FEW_NODES else CHUNK
    if chunk > 16384:
        raise ValueError(f"chunk must be at most 16384, got {chunk}")
    num_chunks = triton.cdiv(vocab, chunk)
    rows = min(rows, triton.next_power_of_2(num_nodes))
    score_BNC = torch.empty(batch, num_nodes, num_chunks, dtype=torch.float32, device=logits_BNV.device)
    id_BNC = torch.empty(batch, num_nodes, num_chunks, dtype=torch.int32, device=logits_BNV.device)
    _draw_partials[(num_chunks, triton.cdiv(num_nodes, rows), batch)](
        *(logits_BNV.contiguous(), temperature_B, stream_B, index_B, depth_BN.contiguous(), count_B),
        *(_hashes(vocab, logits_BNV.device), score_BNC, id_BNC, num_nodes, vocab, num_chunks),
        ROWS=rows,
        CHUNK=chunk,
        PART=min(chunk, PART),
        IS_CUDA=logits_BNV.is_cuda,
        num_warps=4 if rows * chunk <= 2048 else 8,
    )
    return Partials(score_BNC, id_BNC)


def taken_tokens(partials: Partials) -> Tensor:
    """int64 [B, N]: the best over chunks, in torch. The first of equal chunks has the lower ids."""
    chunk_BN1 = partials.score_BNC.max(-1, keepdim=True).indices
    return partials.id_BNC.gather(-1, chunk_BN1)[..., 0].to(torch.int64)


def draw_coupled(
    logits_BNV: Tensor,
    temperature_B: Tensor,
    stream_B: Tensor,
    index_B: Tensor,
    depth_BN: Tensor,
    count_B: Tensor | None = None,
) -> Tensor:
    """int64 [B, N]: the token that each node takes; 0 for padding (without `count_B` there is none). float64: torch."""
    batch, num_nodes, _ = logits_BNV.shape
    if count_B is None:
        count_B = index_B.new_full((batch,), num_nodes)
    if logits_BNV.dtype == torch.float64:
        taken_BN = _draw_in_torch(logits_BNV, temperature_B, stream_B, index_B, depth_BN)
    else:
        taken_BN = taken_tokens(draw_partials(logits_BNV, temperature_B, stream_B, index_B, depth_BN, count_B))
    is_node_BN = torch.arange(num_nodes, device=index_B.device) < count_B[:, None]
    return torch.where(is_node_BN, taken_BN, 0)


def _draw_in_torch(
    logits_BNV: Tensor, temperature_B: Tensor, stream_B: Tensor, index_B: Tensor, depth_BN: Tensor
) -> Tensor:
    """The same draw in the logits' dtype, with noise of every node."""
    noise_BNV = gumbel(stream_B[:, None], index_B[:, None] + 1 + depth_BN, logits_BNV.shape[-1], logits_BNV.dtype)
    temperature_B11 = temperature_B[:, None, None].to(logits_BNV.dtype)
    is_greedy_B11 = temperature_B11 == 0
    drawn_BNV = logits_BNV / torch.where(is_greedy_B11, 1, temperature_B11) + noise_BNV
    return torch.where(is_greedy_B11, logits_BNV, drawn_BNV).max(-1).indices


@cache
def _hashes(vocab: int, device: torch.device) -> Tensor:
    """int32 [V]. Never given back: a captured graph reads it for as long as it lives."""
    return _vocabulary_hash(vocab, device).clone()


@triton.jit
def shift_right(x, BY: tl.constexpr):
    """Logical shift of int64."""
    return (x >> BY) & ((1 << (64 - BY)) - 1)


@triton.jit
def mix64(x):
    """`harness.decoding.noise._mix64`: the finaliser of splitmix64, on wrapping int64."""
    x = x + (-0x61C8864680B583EB)
    x = (x ^ shift_right(x, 30)) * (-0x40A7B892E31B1A47)
    x = (x ^ shift_right(x, 27)) * (-0x6B2FB644ECCEEE15)
    return x ^ shift_right(x, 31)


@triton.jit
def noise_key(stream, index, purpose):
    """`harness.decoding.noise._key`, int64."""
    return mix64(mix64(mix64(stream) + index) ^ purpose)


@triton.jit
def _mix32(x, MULTIPLIER: tl.constexpr, BY: tl.constexpr):
    x = tl.mul(x, MULTIPLIER, sanitize_overflow=False)
    return x ^ ((x >> BY) & ((1 << (32 - BY)) - 1))


@triton.jit
def _uniform_left(first, second, hash):
    """w = 1 - u of `harness.decoding.noise.gumbel`, from the two words of the key and the ids' hashes, float32."""
    x = _mix32(hash ^ first, -0x7A143595, 15)
    x = _mix32(x ^ second, -0x3D4D51CB, 16)
    x = _mix32(x, 0x27D4EB2F, 15) & 0x7FFFFFFF
    return tl.minimum((x.to(tl.float32) + 0.5) * 4.656612873077393e-10, 0.999999940395355224609375)


@triton.jit
def _gumbel(first, second, hash):
    """Noise of `harness.decoding.noise.gumbel`, float32."""
    w = _uniform_left(first, second, hash)
    # log1p(-w) by Kahan's quotient: u = fl(1 - w) is what the logarithm sees, w / (1 - u) repairs the rounding.
    u = 1.0 - w
    exponential = tl.where(u == 1.0, w, -tl.log(u) * (w / tl.where(u == 1.0, 1.0, 1.0 - u)))
    return -tl.log(exponential)


@triton.jit
def _log2(x, IS_CUDA: tl.constexpr):
    """One instruction, wrong by less than 2**-22 (or that part of the result); the interpreter has no such thing."""
    if IS_CUDA:
        return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return tl.log2(x)


@triton.jit
def _nearly_gumbel(first, second, hash, IS_CUDA: tl.constexpr):
    """`_gumbel` to within 1e-4, at a quarter of its cost: w + w²/2 for -log1p(-w) below 1/64, else the logarithm."""
    w = _uniform_left(first, second, hash)
    exponential = tl.where(w < 0.015625, w * (w * 0.5 + 1.0), _log2(1.0 - w, IS_CUDA) * -0.6931471805599453)
    return _log2(exponential, IS_CUDA) * -0.6931471805599453


@triton.jit
def _draw_partials(
    logits_ptr, temperature_ptr, stream_ptr, index_ptr, depth_ptr, count_ptr, hash_ptr, score_ptr, id_ptr,
    num_nodes, vocab, num_chunks, ROWS: tl.constexpr, CHUNK: tl.constexpr, PART: tl.constexpr, IS_CUDA: tl.constexpr,
):  # fmt: skip
    """The exact score of the whole tile is dear. A cheap one with a bound on its error leaves one candidate a row, but
    for near ties; the candidate alone, or the tile where a row has more than one, is then scored exactly."""
    chunk = tl.program_id(0)
    start = tl.program_id(1) * ROWS
    b = tl.program_id(2).to(tl.int64)
    count = tl.minimum(tl.load(count_ptr + b).to(tl.int32), num_nodes)
    if start < count:
        node = start + tl.arange(0, ROWS)
        is_node = node < count
        local = tl.arange(0, CHUNK)
        id = chunk * CHUNK + local
        inside = id < vocab
        row = b * num_nodes + node
        offset = row[:, None] * vocab + id[None, :]
        is_read = is_node[:, None] & inside[None, :]
        x = tl.load(logits_ptr + offset, mask=is_read, other=float("-inf")).to(tl.float32)
        temperature = tl.load(temperature_ptr + b).to(tl.float32)
        if temperature > 0:
            hash = tl.load(hash_ptr + id, mask=inside, other=0)
            depth = tl.load(depth_ptr + row, mask=is_node, other=0)
            key = noise_key(tl.load(stream_ptr + b), tl.load(index_ptr + b) + 1 + depth, -3)  # noise.GUMBEL
            first, second = key.to(tl.int32), (key >> 32).to(tl.int32)
            inverse = tl.div_rn(1.0, temperature)
            # Rounding of x / T and of the sum, here and in the exact score, stays within 2**-21 of |x / T|.
            slack = tl.abs(x) * (inverse * 4.76837158203125e-07)
            near = x * inverse + _nearly_gumbel(first[:, None], second[:, None], hash[None, :], IS_CUDA)
            bar = tl.max(near - slack, axis=1) - 0.00048828125  # twice 2**-12, which is above the error of the noise
            # Count and place of the candidates in one sum. A logit that is infinite is none, or comes out not alone.
            found = tl.sum(tl.where(near + slack >= bar[:, None], local[None, :] + 32768, 0), axis=1)
            is_alone = (found >> 15 == 1) | (node >= count)
            if tl.min(is_alone.to(tl.int32), axis=0) == 1:
                taken = chunk * CHUNK + (found & 32767)
                one = tl.load(logits_ptr + row * vocab + taken, mask=is_node, other=0.0).to(tl.float32)
                hash_of_one = tl.load(hash_ptr + taken, mask=is_node, other=0)
                best = tl.div_rn(one, temperature) + _gumbel(first, second, hash_of_one)
            else:
                best = tl.full([ROWS], float("-inf"), tl.float32)
                taken = tl.zeros([ROWS], tl.int32) + chunk * CHUNK
                for part in range(CHUNK // PART):  # in parts: it is rare, and must not cost the others registers
                    some = chunk * CHUNK + part * PART + tl.arange(0, PART)
                    is_some = is_node[:, None] & (some < vocab)[None, :]
                    at = row[:, None] * vocab + some[None, :]
                    again = tl.load(logits_ptr + at, mask=is_some, other=float("-inf")).to(tl.float32)
                    hash_of_some = tl.load(hash_ptr + some, mask=some < vocab, other=0)
                    noise = _gumbel(first[:, None], second[:, None], hash_of_some[None, :])
                    score = tl.div_rn(again, temperature) + noise
                    best_of_part = tl.max(score, axis=1)
                    is_better = best_of_part > best
                    taken = tl.where(is_better, _lowest(score, best_of_part, some, vocab), taken)
                    best = tl.where(is_better, best_of_part, best)
        else:
            best = tl.max(x, axis=1)
            taken = _lowest(x, best, id, vocab)
        place = row * num_chunks + chunk
        tl.store(score_ptr + place, best, mask=is_node)
        tl.store(id_ptr + place, taken, mask=is_node)


@triton.jit
def _lowest(score, best, id, vocab):
    """Of equal scores the lowest id. Were every score NaN, the id must still be one of the vocabulary."""
    return tl.min(tl.where(score == best[:, None], id[None, :], vocab - 1), axis=1)
