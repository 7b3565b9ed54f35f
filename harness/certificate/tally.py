"""The two statistics of the draws, fixed beforehand: z of log p, and the probability integral transform.

A draw x from a law p gives log p(x), whose mean and variance under p are known exactly, and u = P(before x) + U·p(x) with
U uniform, which is uniform on (0, 1) exactly. Before: the tree's children in node order, then the rest by falling p, so
that a verifier that favours or shuns its drafts moves u. Both need nothing but the law of each token given its prefix.
"""

from typing import Any

import numpy as np
from scipy import stats

from harness.certificate.line import Line, exact_line, random_line, z_line
from harness.certificate.reference import Law


class Tally:
    def __init__(self, seed: int | np.random.Generator):
        self.random = np.random.default_rng(seed)
        self.n = self.impossible = 0
        self.total = self.variance = 0.0
        self.u: list[np.ndarray] = []

    def add(self, law: Law, before_V: np.ndarray, tokens: np.ndarray) -> None:
        """Draws from one law. before_V: `law.mass_before_V(children)`."""
        p = law.p_V[tokens]
        zero = p == 0
        if zero.any():
            self.impossible += sum(not law.may_be(int(token)) for token in tokens[zero])
            tokens, p = tokens[~zero], p[~zero]
        self.n += len(tokens)
        self.total += float((np.log(p) - law.mean).sum())
        self.variance += law.variance * len(tokens)
        self.u.append(before_V[tokens] + self.random.random(len(tokens)) * p)

    def merge(self, other: "Tally") -> None:
        self.n += other.n
        self.impossible += other.impossible
        self.total += other.total
        self.variance += other.variance
        self.u += other.u

    def lines(self, name: str, seconds: float, detail: str = "") -> list[Line]:
        """What a greedy law leaves is whether anything impossible came out; else z and uniformity too."""
        common: dict[str, Any] = dict(part="distribution", unit="tokens")
        possible = exact_line(
            name=f"{name}: every token has p > 0",
            statistic="impossible tokens",
            value=self.impossible,
            tolerance=0,
            n=self.n + self.impossible,
            **common,
        )
        if self.variance == 0:
            return [possible]
        u = np.concatenate(self.u)
        uniform = stats.kstest(u, "uniform")
        return [
            possible,
            z_line(
                name=f"{name}: log p",
                total=self.total,
                variance=self.variance,
                temperature=True,
                n=self.n,
                seconds=seconds,
                detail=detail,
                **common,
            ),
            random_line(
                name=f"{name}: integral transform uniform",
                statistic="Kolmogorov-Smirnov",
                value=float(uniform.statistic),
                p_value=float(uniform.pvalue),
                n=self.n,
                **common,
            ),
        ]
