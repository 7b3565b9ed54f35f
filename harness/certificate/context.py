"""One (root, tree, logits) of a request with the law of every node: all that a verification depends on but its coins.

Shapes: N nodes with the root, V vocabulary.
"""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from harness.certificate.reference import Filters, Law
from harness.decoding.tree import DraftTree


class Context:
    """tree: batch of one. logits_1NV: as the target gave them. index: place of the root in the output."""

    def __init__(self, tree: DraftTree, logits_1NV: Tensor, index: int, filters: Filters):
        self.tree, self.logits_1NV, self.index, self.filters = tree, logits_1NV, index, filters
        self.token = tree.token_BN[0].tolist()
        self.parent = tree.parent_BN[0].tolist()
        self.nodes = range(int(tree.count_B[0]))
        self._laws: dict[int, Law] = {}
        self._before: dict[int, np.ndarray] = {}

    @classmethod
    def of_row(cls, b: int, tree: DraftTree, logits_BNV: Tensor, index_B: Tensor, filters: Filters) -> "Context":
        mine = slice(b, b + 1)
        row = DraftTree(
            token_BN=tree.token_BN[mine],
            parent_BN=tree.parent_BN[mine],
            depth_BN=tree.depth_BN[mine],
            score_BN=tree.score_BN[mine],
            count_B=tree.count_B[mine],
            depth_limit=tree.max_depth,
        )
        return cls(row, logits_BNV[mine], int(index_B[b]), filters)

    def law(self, node: int) -> Law:
        if node not in self._laws:
            logits_V = self.logits_1NV[0, node]
            self._laws[node] = Law(logits_V.to("cpu", torch.float64).numpy(), self.filters)
        return self._laws[node]

    def children(self, node: int) -> list[int]:
        return [child for child in self.nodes if self.parent[child] == node]

    def mass_before_V(self, node: int) -> np.ndarray:
        """For the integral transform: the tree's children of `node` first."""
        if node not in self._before:
            self._before[node] = self.law(node).mass_before_V([self.token[child] for child in self.children(node)])
        return self._before[node]

    @cached_property
    def reached(self) -> list[float]:
        """The target's probability of the path to each node."""
        mass = [1.0]
        for node in self.nodes[1:]:
            parent = self.parent[node]
            mass.append(mass[parent] * float(self.law(parent).p_V[self.token[node]]))
        return mass

    @cached_property
    def accepts(self) -> tuple[float, float]:
        """Mean and variance of the number of accepted drafts. A draft is accepted when the target draws its path.

        With A accepted drafts, A squared is the sum of 2d - 1 over the accepted depths d.
        """
        depth = self.tree.depth_BN[0].tolist()
        mean = sum(self.reached[1:])
        square = sum((2 * depth[node] - 1) * self.reached[node] for node in self.nodes[1:])
        return mean, max(square - mean**2, 0.0)

    @cached_property
    def information(self) -> float:
        """Expected variance of log p that one verification adds: over the nodes where a token is drawn."""
        return sum(mass * self.law(node).variance for node, mass in enumerate(self.reached) if mass > 1e-4)

    def forget(self) -> None:
        """Drop the laws: a context of a large vocabulary holds megabytes of them."""
        self._laws.clear()
        self._before.clear()
