"""The target's law from raw logits, in numpy float64: what a draw is held against.

Shapes: V vocabulary. It shares no code with `harness/decoding/sampling.py`: another library, another way to filter (one
sort, then marks on the ranks), always float64. An error there cannot hide here.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

CUT_SLACK = 1e-5  # float32 sums may put a token that far on the other side of a filter's cut


@dataclass(frozen=True)
class Filters:
    """Applied in this order: temperature (0 = greedy), top-k (0 = off), top-p (1 = off), min-p (0 = off)."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def of(cls, sampling: Any) -> "Filters":
        """From anything with these four attributes."""
        return cls(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)

    @property
    def cuts(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    def widened(self) -> "Filters":
        """Slightly weaker cuts: what is outside of these was not let in by rounding."""
        top_p = min(self.top_p + CUT_SLACK, 1.0) if self.top_p < 1 else 1.0
        return Filters(self.temperature, self.top_k, top_p, self.min_p * (1 - CUT_SLACK))

    def __str__(self) -> str:
        words = [f"T={self.temperature:g}"]
        words += [f"top_k={self.top_k}"] if self.top_k else []
        words += [f"top_p={self.top_p:g}"] if self.top_p < 1 else []
        return " ".join(words + ([f"min_p={self.min_p:g}"] if self.min_p else []))


class Law:
    """The distribution of one token given its prefix. logits_V: any float array."""

    def __init__(self, logits_V: np.ndarray, filters: Filters):
        self.logits_V, self.filters = np.asarray(logits_V, np.float64), filters

    @cached_property
    def order_V(self) -> np.ndarray:
        """Ids by falling logit, lower id first."""
        return np.argsort(-self.logits_V, kind="stable")

    @cached_property
    def p_V(self) -> np.ndarray:
        filters, p_V = self.filters, np.zeros_like(self.logits_V)
        if filters.temperature == 0:
            p_V[self.logits_V.argmax()] = 1.0
            return p_V
        weight_V = np.exp((self.logits_V - self.logits_V.max()) / filters.temperature)
        if not filters.cuts:
            return weight_V / weight_V.sum()
        ranked = weight_V[self.order_V]
        if filters.top_k:
            ranked[filters.top_k :] = 0
        if filters.top_p < 1:
            mass = np.cumsum(ranked)
            ranked[mass - ranked >= filters.top_p * mass[-1]] = 0  # the token that crosses stays
        ranked[ranked < filters.min_p * ranked[0]] = 0
        p_V[self.order_V] = ranked / ranked.sum()
        return p_V

    @cached_property
    def logp_V(self) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(self.p_V)

    @cached_property
    def mean(self) -> float:
        """Of log p under the law itself."""
        return float(self._seen[0] @ self._seen[1])

    @cached_property
    def variance(self) -> float:
        return max(float(self._seen[0] @ self._seen[1] ** 2) - self.mean**2, 0.0)

    @cached_property
    def repeats(self) -> float:
        """Probability that two draws are equal, sum of p squared."""
        return float(self.p_V @ self.p_V)

    @cached_property
    def _seen(self) -> tuple[np.ndarray, np.ndarray]:
        has = self.p_V > 0
        return self.p_V[has], self.logp_V[has]

    def mass_before_V(self, children: list[int]) -> np.ndarray:
        """The cumulative mass in front of each token, the tree's children first and the rest by falling p."""
        first = np.array(list(dict.fromkeys(children)), np.int64)
        rest = self.order_V[~np.isin(self.order_V, first)]
        order = np.concatenate([first, rest])
        mass = np.cumsum(self.p_V[order])
        before_V = np.empty_like(self.p_V)
        before_V[order] = mass - self.p_V[order]
        return before_V

    def may_be(self, token: int) -> bool:
        """Whether a token of probability 0 is one only through rounding at a filter's cut."""
        return self.filters.cuts and bool(Law(self.logits_V, self.filters.widened()).p_V[token] > 0)
