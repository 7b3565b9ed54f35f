"""Random verification problems, and a scalar walk of the kernel's specification. numpy and Python only.

Shares no code with `harness.decoding`: trees, layout, probabilities, coins and the walk are made here.
Shapes: B batch, N nodes with the root, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np

STEP = np.float32(2.0**-24)  # between coins; they lie in (0, 1]
GRAIN = 4096  # dyadic probabilities are multiples of 1/4096: sums are exact in any order
SHAPES = ("softmax", "peaked", "one_hot", "flat", "zeros", "children", "dyadic", "dyadic_children")
EXACT = ("one_hot", "dyadic", "dyadic_children")


@dataclass(frozen=True)
class Case:
    """One call. token_BN, first_child_BN, next_sibling_BN int64; coins float32 [B, N] and [B]; target_BNV float32.

    shape_B: which of SHAPES a request has. width: nodes a path may hold, the root included.
    """

    token_BN: np.ndarray
    first_child_BN: np.ndarray
    next_sibling_BN: np.ndarray
    coin_BN: np.ndarray
    final_B: np.ndarray
    target_BNV: np.ndarray
    shape_B: list[str]
    width: int


@dataclass(frozen=True)
class Answer:
    """path: local nodes, root first. tokens: accepted drafts. scratch: (node, token) -> mass of rejected children.

    left_V: float32, what the final draw takes its token from. num_ties: visited coins equal to the running sum.
    """

    path: list[int]
    tokens: list[int]
    scratch: dict[tuple[int, int], np.float32]
    left_V: np.ndarray
    num_ties: int


def random_case(rng: np.random.Generator, batch: int, nodes: int, vocab: int) -> Case:
    """Trees of any form, a probability shape for each request, and coins of which a third sit on or beside a sum."""
    token_BN = np.zeros((batch, nodes), np.int64)
    first_BN, sibling_BN = np.full((batch, nodes), -1), np.full((batch, nodes), -1)
    coin_BN = ((rng.integers(2**24, size=(batch, nodes)) + 1) * STEP).astype(np.float32)
    final_B = ((rng.integers(2**24, size=batch) + 1) * STEP).astype(np.float32)
    target_BNV = np.zeros((batch, nodes, vocab), np.float32)
    shape_B, depth = [], 0
    for b in range(batch):
        children, depth_N = _random_tree(rng, int(rng.integers(1, nodes + 1)), vocab)
        depth = max(depth, *depth_N)
        heads = [rng.choice(vocab, min(vocab, 48), replace=False) for _ in range(nodes)]
        for node, ids in enumerate(children):
            if not ids:
                continue
            pool = heads[node] if len(ids) <= len(heads[node]) else vocab
            token_BN[b, ids] = rng.permutation(pool)[: len(ids)]
            first_BN[b, node] = ids[0]
            sibling_BN[b, ids[:-1]] = ids[1:]
        shape = SHAPES[int(rng.integers(len(SHAPES)))]
        shape_B.append(shape)
        child_tokens = [token_BN[b, ids] for ids in children] + [token_BN[b, :0]] * (nodes - len(children))
        target_BNV[b] = _probabilities(rng, shape, vocab, heads, child_tokens)
        if shape in EXACT:  # a coarse coin keeps coin · total exact in float32
            final_B[b] = (rng.integers(GRAIN) + 1) / GRAIN
        for node, ids in enumerate(children):
            coin_BN[b, node] = _coin(rng, coin_BN[b, node], target_BNV[b, node, token_BN[b, ids]])
    width = int(rng.integers(1, depth + 2)) if rng.random() < 0.25 else depth + 1
    return Case(token_BN, first_BN, sibling_BN, coin_BN, final_B, target_BNV, shape_B, width)


def walk(case: Case, b: int) -> Answer:
    """One coin a node against the float32 sum of its children, in order; the final draw's residual."""
    p_NV, token_N = case.target_BNV[b], case.token_BN[b]
    path, tokens, scratch, num_ties = [0], [], {}, 0
    while len(path) < case.width:
        row, mass, accepted = path[-1], np.float32(0), -1
        node = int(case.first_child_BN[b, row])
        while node >= 0 and accepted < 0:
            p = p_NV[row, token_N[node]]
            mass = np.float32(mass + p)
            num_ties += bool(case.coin_BN[b, row] == mass)
            if case.coin_BN[b, row] <= mass or p >= 1:
                accepted = node
            else:
                scratch[row, int(token_N[node])] = p
                node = int(case.next_sibling_BN[b, node])
        if accepted < 0:
            break
        path.append(accepted)
        tokens.append(int(token_N[accepted]))
    left_V = p_NV[path[-1]].copy()
    for (row, token), p in scratch.items():
        if row == path[-1]:
            left_V[token] = max(np.float32(left_V[token] - p), np.float32(0))
    return Answer(path, tokens, scratch, left_V, num_ties)


def exact_token(left_V: np.ndarray, coin: np.float32) -> int:
    """First id whose sum exceeds coin · total, else the last with mass, else V - 1. For sums that do not round."""
    cdf_V = left_V.astype(np.float64).cumsum()
    above = np.flatnonzero(cdf_V > np.float64(coin) * cdf_V[-1])
    positive = np.flatnonzero(left_V > 0)
    if len(positive) == 0:
        return len(left_V) - 1
    return int(above[0]) if len(above) else int(positive[-1])


def distance_from_interval(left_V: np.ndarray, coin: np.float32, token: int) -> float:
    """How far the coin lies outside the share of [0, 1] that float64 sums give the token. 0: inside."""
    cdf_V = left_V.astype(np.float64).cumsum() / left_V.sum(dtype=np.float64)
    low = cdf_V[token - 1] if token else 0.0
    return max(0.0, low - float(coin), float(coin) - cdf_V[token])


def _random_tree(rng: np.random.Generator, nodes: int, vocab: int) -> tuple[list[list[int]], list[int]]:
    """Children of each node, and depths. `reach` runs from chains to stars."""
    children: list[list[int]] = [[]]
    depth_N, reach = [0], rng.choice([1, 2, 4, 16, 1000])
    for node in range(1, nodes):
        open_nodes = [i for i in range(max(0, node - reach), node) if len(children[i]) < vocab]
        parent = int(rng.choice(open_nodes))
        children[parent].append(node)
        children.append([])
        depth_N.append(depth_N[parent] + 1)
    return children, depth_N


def _probabilities(
    rng: np.random.Generator, shape: str, vocab: int, heads: list[np.ndarray], child_tokens: list[np.ndarray]
) -> np.ndarray:
    """float32 [N, V]."""
    nodes = len(heads)
    if shape == "flat":
        return np.full((nodes, vocab), 1 / vocab, np.float32)
    p_NV = np.zeros((nodes, vocab), np.float32)
    if shape in ("softmax", "peaked"):
        logits_NV = rng.standard_normal((nodes, vocab), np.float32) * np.float32(rng.choice([0.5, 1, 2]))
        for node, head in enumerate(heads):
            logits_NV[node, head] += rng.standard_normal(len(head)) * (30 if shape == "peaked" else 3) + np.log(vocab)
        weight_NV = np.exp(logits_NV - logits_NV.max(1, keepdims=True))
        return (weight_NV / weight_NV.sum(1, keepdims=True, dtype=np.float64)).astype(np.float32)
    for node in range(nodes):
        head = heads[node]
        carriers = child_tokens[node] if "children" in shape and len(child_tokens[node]) else head
        if shape == "one_hot":
            p_NV[node, rng.choice(head)] = 1
        elif shape.startswith("dyadic"):
            p_NV[node, carriers] = rng.multinomial(GRAIN, rng.dirichlet(np.ones(len(carriers)))) / GRAIN
        else:  # zeros, children: a few carry all; or less than all, which rounding also does, so that none may be left
            whole = 0.75 if shape == "children" and rng.random() < 0.3 else 1.0
            p_NV[node, carriers] = whole * rng.dirichlet(np.full(len(carriers), rng.choice([0.2, 1.0, 5.0])))
    return p_NV


def _coin(rng: np.random.Generator, coin: np.float32, child_p: np.ndarray) -> np.float32:
    """Mostly the coin as drawn; else on a running sum, a float beside it, or at an end of (0, 1]."""
    kind = rng.random()
    if kind > 0.45:
        return coin
    if kind > 0.35 or len(child_p) == 0:
        return np.float32(1) if rng.random() < 0.5 else STEP
    mass, sums = np.float32(0), []
    for p in child_p:
        mass = np.float32(mass + p)
        sums.append(mass)
    chosen = sums[int(rng.integers(len(sums)))]
    beside = (chosen, np.nextafter(chosen, np.float32(2)), np.nextafter(chosen, np.float32(0)))
    return np.clip(beside[int(rng.integers(3))], STEP, np.float32(1))
