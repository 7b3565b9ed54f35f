"""What turns logits into the target's distribution: temperature, top-k, top-p, min-p, in this order, everywhere.

Shapes: B batch, V vocabulary, K ranks looked at; `...` any dimensions between B and V (none, or tree nodes).

Every verifier reads the target through `filtered_scores` or `probabilities`, so all of them, and autoregressive
decoding, sample from one law.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.decoding.noise import stream_key
from harness.decoding.ranking import top_sorted

__all__ = ["SamplingBatch", "SamplingParams", "filtered_scores", "probabilities", "sampling_batch", "stream_key"]

NEG_INF = float("-inf")
HEAD = 1024  # ranks tried before a whole vocabulary is sorted on the host


@dataclass(frozen=True)
class SamplingParams:
    """One request. top_k 0, top_p 1 and min_p 0 switch a filter off; temperature 0 is greedy. stream: `stream_key`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    stream: int = 0


@dataclass(frozen=True)
class SamplingBatch:
    """The requests of a batch. temperature_B, top_p_B, min_p_B float64; top_k_B, stream_B int64.

    The flags are plain values, fixed when the batch is made: a filter nobody asked for costs nothing, and no step has
    to ask the device. top_k_bound: the greatest top-k when every request has one, else 0.
    """

    temperature_B: Tensor
    top_k_B: Tensor
    top_p_B: Tensor
    min_p_B: Tensor
    stream_B: Tensor
    any_top_k: bool
    any_top_p: bool
    any_min_p: bool
    any_greedy: bool
    all_greedy: bool
    top_k_bound: int


def sampling_batch(params: Sequence[SamplingParams], device: torch.device | str = "cpu") -> SamplingBatch:
    """Raises ValueError for a value out of range, by its configuration key."""
    for p in params:
        # Below 1e-5, logits over temperature leave float32, and a draw would be a greedy one anyway.
        is_temperature = p.temperature == 0 or 1e-5 <= p.temperature < float("inf")
        _check("temperature", p.temperature, is_temperature, "0 (greedy), or finite and at least 1e-5")
        _check("top_k", p.top_k, p.top_k >= 0, ">= 0 (0 = off)")
        _check("top_p", p.top_p, 0 < p.top_p <= 1, "in (0, 1] (1 = off)")
        _check("min_p", p.min_p, 0 <= p.min_p <= 1, "in [0, 1] (0 = off)")

    def column(name: str, dtype: torch.dtype) -> Tensor:
        return torch.tensor([getattr(p, name) for p in params], dtype=dtype, device=device)

    # A greedy request needs no filter: the argmax passes all of them.
    drawn = [p for p in params if p.temperature > 0]
    return SamplingBatch(
        temperature_B=column("temperature", torch.float64),
        top_k_B=column("top_k", torch.int64),
        top_p_B=column("top_p", torch.float64),
        min_p_B=column("min_p", torch.float64),
        stream_B=column("stream", torch.int64),
        any_top_k=any(p.top_k > 0 for p in drawn),
        any_top_p=any(p.top_p < 1 for p in drawn),
        any_min_p=any(p.min_p > 0 for p in drawn),
        any_greedy=len(drawn) < len(params),
        all_greedy=not drawn,
        top_k_bound=max((p.top_k for p in drawn), default=0) if all(p.top_k > 0 for p in drawn) else 0,
    )


def filtered_scores(logits: Tensor, sampling: SamplingBatch) -> Tensor:
    """Logits over temperature, -inf outside the filters: their softmax is the target's distribution.

    logits: any float dtype [B, ..., V]. Returns float32 (float64 for float64) of the same shape. Each filter sees the
    renormalised result of the one before. Top-k and top-p keep lower ids where a tie crosses the cut; top-p keeps the
    token that crosses p; min-p keeps p >= min_p · max p. At temperature 0 the argmax (lowest id) gets 0, all else -inf.
    """
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    logits = logits.to(dtype)
    greedy = _greedy_scores(logits) if sampling.any_greedy else None
    if greedy is not None and sampling.all_greedy:
        return greedy
    temperature = _per_row(sampling.temperature_B, logits)
    scores = logits / torch.where(temperature == 0, 1, temperature).to(dtype)
    if sampling.any_top_k or sampling.any_top_p:
        scores = _cut_by_rank(scores, sampling)
    if sampling.any_min_p:
        ratio = (scores - scores.amax(-1, keepdim=True)).to(torch.float64).exp()  # p / max p
        scores = scores.masked_fill(ratio < _per_row(sampling.min_p_B, logits), NEG_INF)
    return scores if greedy is None else torch.where(temperature == 0, greedy, scores)


def probabilities(logits: Tensor, sampling: SamplingBatch) -> Tensor:
    """float32 [B, ..., V], softmax of `filtered_scores`."""
    return torch.softmax(filtered_scores(logits, sampling), dim=-1).to(torch.float32)


def _greedy_scores(logits: Tensor) -> Tensor:
    best = logits.max(-1, keepdim=True).indices  # the first of equal maxima; faster than argmax on the host
    return torch.full_like(logits, NEG_INF).scatter_(-1, best, 0.0)


def _cut_by_rank(scores: Tensor, sampling: SamplingBatch) -> Tensor:
    """Scores that survive top-k, then top-p, else -inf. Both cut the order of falling score, lower id first."""
    vocab = scores.shape[-1]
    num_ranks = min(sampling.top_k_bound, vocab) or vocab
    if num_ranks > HEAD and scores.device.type == "cpu":
        # A nucleus rarely needs more than its head, and to sort a whole vocabulary is slow there.
        cut, is_complete = _cut_among(scores, HEAD, sampling)
        if bool(is_complete.all()):
            return cut
    return _cut_among(scores, num_ranks, sampling)[0]


def _cut_among(scores: Tensor, num_ranks: int, sampling: SamplingBatch) -> tuple[Tensor, Tensor]:
    """The cut when only the first `num_ranks` ranks can survive, and whether that was enough, bool [B, ..., 1]."""
    vocab = scores.shape[-1]
    top_K, ids_K = top_sorted(scores, num_ranks)
    top_k = _per_row(sampling.top_k_B, scores)
    is_limited = (top_k > 0) & (top_k < vocab)
    kept_K = (torch.arange(num_ranks, device=scores.device) < top_k) | ~is_limited
    is_complete = (
        (top_k <= num_ranks) & is_limited | (num_ranks == vocab) | (_per_row(sampling.temperature_B, scores) == 0)
    )
    if sampling.any_top_p:
        top_p = _per_row(sampling.top_p_B, scores)
        # Weights relative to the first. Sums run rank by rank: they do not depend on how many ranks are looked at.
        weight_K = (top_K - top_K[..., :1]).exp().to(torch.float64).masked_fill(~kept_K, 0)
        sum_K = weight_K.cumsum(-1)
        all_weight = (scores - top_K[..., :1]).exp().sum(-1, keepdim=True, dtype=torch.float64)
        goal = top_p * torch.where(is_limited, sum_K[..., -1:], all_weight)
        kept_K = kept_K & ((sum_K - weight_K < goal) | (top_p >= 1))
        is_complete = is_complete | (~is_limited & (top_p < 1) & (sum_K[..., -1:] >= goal))
    kept = top_K.masked_fill(~kept_K, NEG_INF)
    return torch.full_like(scores, NEG_INF).scatter_(-1, ids_K, kept), is_complete


def _per_row(value_B: Tensor, like: Tensor) -> Tensor:
    return value_B.view(-1, *[1] * (like.dim() - 1))


def _check(key: str, value: float, ok: bool, allowed: str) -> None:
    if not ok:
        raise ValueError(f"sampling.{key} must be {allowed}, got {value}")
