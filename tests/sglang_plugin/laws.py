"""What the target must say, computed by transformers and numpy alone: the oracle shares no code with the plugin."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from scipy.stats import chi2


class Law:
    """The target in float32, one forward a context."""

    def __init__(self, target: Path):
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        self.logits = cache(self._logits)

    @torch.inference_mode()
    def _logits(self, context: tuple[int, ...]) -> np.ndarray:
        return self.model(torch.tensor([context])).logits[0, -1].double().numpy()

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(self.logits(tuple(ids)).argmax()))
        return ids[len(prompt) :]

    def probabilities(
        self, context: Sequence[int], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
    ) -> np.ndarray:
        """float64 [V]: temperature, top-k, top-p (the crossing token stays), min-p, in this order."""
        scaled = self.logits(tuple(context)) / temperature
        p = np.exp(scaled - scaled.max())
        p /= p.sum()
        order = np.argsort(-p, kind="stable")
        if top_k:
            p[order[top_k:]] = 0
            p /= p.sum()
        if top_p < 1:
            before = np.cumsum(p[order]) - p[order]
            p[order[before >= top_p]] = 0
            p /= p.sum()
        p[p < min_p * p.max()] = 0
        return p / p.sum()

    def joint(self, prompt: Sequence[int], length: int, **params: float) -> dict[tuple[int, ...], float]:
        """Probability of every continuation of `length` tokens that has any."""
        paths = {(): 1.0}
        for _ in range(length):
            paths = {
                (*path, token): mass * float(p)
                for path, mass in paths.items()
                for token, p in enumerate(self.probabilities([*prompt, *path], **params))
                if p > 0
            }
        return paths


def p_value(law: dict[tuple[int, ...], float], seen: Sequence[tuple[int, ...]], pool: float = 8.0) -> float:
    """Chi-square against the law, cells of less than `pool` expected joined. 0 when what cannot happen was seen."""
    counts = Counter(seen)
    if any(path not in law for path in counts):
        return 0.0
    cells = sorted((mass * len(seen), counts[path]) for path, mass in law.items())
    groups, expected, observed = [], 0.0, 0
    for mass, count in cells:
        expected, observed = expected + mass, observed + count
        if expected >= pool:
            groups.append((expected, observed))
            expected, observed = 0.0, 0
    if groups and expected:
        last = groups.pop()
        groups.append((last[0] + expected, last[1] + observed))
    statistic = sum((count - mass) ** 2 / mass for mass, count in groups)
    return float(chi2.sf(statistic, len(groups) - 1))
