"""Counter-based random numbers: every number is a function of (stream, output index, purpose), and of nothing else.

Shapes: B batch, V vocabulary; leading dimensions broadcast. A stream is a 63-bit key of (seed, task, sample, repeat).

Integer hashes on wrapping int64/int32 tensors give the same bits on every device; what passes through a logarithm may
differ in its last place. Counters stand in place of a generator's state, so the noise of an output token depends on
neither the mode, nor the batch, nor the tree (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

import hashlib
import json
from functools import lru_cache

import torch
from torch import Tensor

# Purposes: numbers drawn for one index under two purposes are independent. Coins of tree nodes use 0, 1, 2, ...
FINAL_COIN = -1
DRAW = -2
GUMBEL = -3

_HALF_STEP_BELOW_ONE = 1 - 2.0**-24  # the greatest float32 below 1


def stream_key(seed: int, task: str, sample: str, repeat: int) -> int:
    """63-bit stream of one generation, equal over modes, batches and machines; distinct prompts get unrelated ones."""
    text = json.dumps([seed, task, sample, repeat])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def uniform(stream: Tensor, index: Tensor, purpose: Tensor | int) -> Tensor:
    """float32 in (0, 1], 24 bits: never 0, the same bits on every device.

    stream, index, purpose: int64, broadcast together. A coin of 0 would accept a child of probability 0.
    """
    bits = _shift(_key(stream, index, purpose), 40)
    return (bits + 1).to(torch.float32) * 2.0**-24


def gumbel(stream: Tensor, index: Tensor, vocab: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard Gumbel noise of every token id, dtype float32 or float64, [..., V]; stream and index broadcast.

    -log(-log(u)) with u in the open (0, 1): u = 1 would be infinite and win whatever its logit. Stored is w = 1 - u, of
    31 bits, since the winners have u near 1, where float32 is coarse and w is not. Both dtypes take the same u, so a
    near tie in float32 can be decided in float64: they agree to rounding except where u < 0.01, among the losers.
    """
    key = _key(stream, index, GUMBEL)
    first, second = (part.to(torch.int32)[..., None] for part in (_low_word(key), _low_word(_shift(key, 32))))
    # int32 and in place: this runs over the whole vocabulary and is bound by memory.
    x = _vocabulary_hash(vocab, key.device) ^ first
    scratch = torch.empty_like(x)
    _mix_(x, scratch, -0x7A143595, 15)
    x ^= second
    _mix_(x, scratch, -0x3D4D51CB, 16)
    _mix_(x, scratch, 0x27D4EB2F, 15)
    x &= 0x7FFFFFFF
    w = x.to(dtype).add_(0.5).mul_(2.0**-31).clamp_(max=_HALF_STEP_BELOW_ONE)
    return w.neg_().log1p_().neg_().log_().neg_()


def _key(stream: Tensor, index: Tensor, purpose: Tensor | int) -> Tensor:
    """int64 hash of the three counters: the finaliser of splitmix64 after each of them."""
    return _mix64(_mix64(_mix64(stream) + index) ^ purpose)


def _mix64(x: Tensor) -> Tensor:
    x = x + -0x61C8864680B583EB  # 0x9E3779B97F4A7C15, wrapped; keeps 0 from being a fixed point
    x = (x ^ _shift(x, 30)) * -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
    x = (x ^ _shift(x, 27)) * -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
    return x ^ _shift(x, 31)


def _shift(x: Tensor, by: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _low_word(x: Tensor) -> Tensor:
    """The low 32 bits, as a signed number that int32 holds."""
    return ((x & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _mix_(x: Tensor, scratch: Tensor, multiplier: int, by: int) -> None:
    """In place on int32: multiply, then xor with the logical right shift."""
    x *= multiplier
    torch.bitwise_right_shift(x, by, out=scratch)
    scratch &= (1 << (32 - by)) - 1
    x ^= scratch


@lru_cache(maxsize=8)
def _vocabulary_hash(vocab: int, device: torch.device) -> Tensor:
    """int32 [V], distinct and well mixed, so that neighbouring ids start far apart."""
    return _low_word(_mix64(torch.arange(vocab, device=device))).to(torch.int32)
