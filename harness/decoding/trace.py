"""What a round's tree looked like, for the profile pass: its nodes, their probabilities, the accepted path.

Shapes: B batch, N tree nodes (root included). A trace is bounded, so that one profiled sample stays a readable line.
"""

from dataclasses import dataclass

from torch import Tensor

from harness.decoding.tree import DraftTree
from harness.decoding.verify import Verified

MAX_TRACED_NODES = 64  # draft nodes of a round, root not counted
MAX_TRACED_ROUNDS = 64  # rounds of a sample, the first ones


@dataclass(frozen=True)
class TracedTree:
    """One tree. Node 0 is the root; parents stand before children, siblings by falling drafter score.

    Of a larger tree the accepted path and the first others of the tree's order are kept, renumbered, so every kept
    node's parent is kept too. `path` is uncut: a stop or the cap may have kept fewer of its tokens.
    """

    tokens: list[int]  # token ids, the root's first
    parents: list[int]  # places in `tokens`; -1 for the root
    scores: list[float]  # the drafter's natural log-probability of the path; 0 for the root
    probabilities: list[float]  # the target's, of the token given its parent, after every filter; 1 for the root
    path: list[int]  # accepted nodes, root first
    bonus: int  # the token drawn after the path


def trace_trees(tree: DraftTree, verified: Verified, step_BN: Tensor) -> list[TracedTree]:
    """The trees of a batch. step_BN: float64, each node's target probability given its parent (`step_probabilities`).

    Reads the device: for the profile pass only.
    """
    tokens, parents, scores = tree.token_BN.tolist(), tree.parent_BN.tolist(), tree.score_BN.tolist()
    steps, counts, bonuses = step_BN.tolist(), tree.count_B.tolist(), verified.bonus_B.tolist()
    traced = []
    for b, row in enumerate(verified.path_BW.tolist()):
        path = [node for node in row if node >= 0]
        kept = _kept(counts[b], path)
        place = {node: i for i, node in enumerate(kept)}
        traced.append(
            TracedTree(
                tokens=[tokens[b][node] for node in kept],
                parents=[place.get(parents[b][node], -1) for node in kept],
                scores=[_short(scores[b][node]) for node in kept],
                probabilities=[_short(steps[b][node]) for node in kept],
                path=[place[node] for node in path],
                bonus=bonuses[b],
            )
        )
    return traced


def _kept(count: int, path: list[int]) -> list[int]:
    """The path, then nodes in order while there is room. A parent stands before its child, so it is kept as well."""
    room = MAX_TRACED_NODES + 1 - len(path)
    on_path = set(path)
    others = [node for node in range(count) if node not in on_path][: max(room, 0)]
    return sorted(on_path.union(others))


def _short(value: float) -> float:
    """Six digits say enough about a probability and keep a line short."""
    return float(f"{value:.6g}")
