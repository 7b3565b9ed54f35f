"""A toy target whose law can be written down, and the smallest loop that decodes it with a verifier.

The target is a Markov chain of order two, so a node's distribution depends on its ancestors, as in a real tree.
Shapes: B generations, N nodes, V vocabulary.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from harness.decoding.sampling import SamplingParams, sampling_batch, stream_key
from harness.decoding.tree import DraftTree, candidates, chain, level_wise, root_only

VOCAB = 5
START = (1, 2)  # the two tokens before the output


class Toy:
    """logits_target[a, b] are the logits after tokens a, b. The drafter sees the root only, as a DFlash drafter."""

    def __init__(self, dtype: torch.dtype = torch.float32):
        generator = torch.Generator().manual_seed(20240611)
        self.logits = (torch.randn(VOCAB, VOCAB, VOCAB, generator=generator) * 1.5).to(dtype)
        self.draft_logits = (
            torch.randn(VOCAB, 2, VOCAB, generator=generator) + 0.5 * self.logits.mean(0)[:, None].float()
        )

    def build(self, kind: str) -> Callable[[torch.Tensor], DraftTree]:
        """From the root's token to a tree: `root`, `chain` (depth 2), `tree` (6 nodes), `spine` or `full` (all 30)."""

        def build(root_B: torch.Tensor) -> DraftTree:
            budget = {"full": 30, "spine": 3}.get(kind, 6)
            logp, ids = candidates(self.draft_logits[root_B], budget)
            if kind == "root":
                return root_only(root_B)
            if kind == "chain":
                return chain(root_B, ids[..., 0], logp[..., 0].cumsum(1))
            return level_wise(root_B, logp, ids, budget, spine=kind == "spine")

        return build

    def node_logits(self, tree: DraftTree, before_B: torch.Tensor) -> torch.Tensor:
        """before_B: the token before the root."""
        parent_token = tree.token_BN.gather(1, tree.parent_BN.clamp(min=0))
        previous = torch.where(tree.parent_BN < 0, before_B[:, None], parent_token)
        return self.logits[previous, tree.token_BN]

    def decode(self, verify, build, params: SamplingParams, *, batch: int, length: int, seed: int = 0):
        """Token ids [B, length] behind START, and the raw accepts of the first round."""
        sampling = sampling_batch(
            [
                SamplingParams(
                    params.temperature, params.top_k, params.top_p, params.min_p, stream_key(seed, "toy", str(i), 0)
                )
                for i in range(batch)
            ]
        )
        row = torch.arange(batch)
        tokens = torch.zeros(batch, length + 8, dtype=torch.int64)
        tokens[:, 0], tokens[:, 1] = START
        done = torch.zeros(batch, dtype=torch.int64)  # tokens emitted; the root stands at column 1 + done
        first_accepts = None
        while bool((done < length).any()):
            at = done.clamp(max=length)  # a finished row idles at the end of its output
            tree = build(tokens[row, 1 + at])
            got = verify(tree, self.node_logits(tree, tokens[row, at]), sampling, at)
            first_accepts = got.num_accepted_B if first_accepts is None else first_accepts
            emitted = torch.cat([tree.token_BN.gather(1, got.path_BW.clamp(min=0))[:, 1:], got.bonus_B[:, None]], 1)
            emitted[row, got.num_accepted_B] = got.bonus_B
            for step in range(emitted.shape[1]):
                place = 2 + at + step
                tokens[row, place] = torch.where(step <= got.num_accepted_B, emitted[:, step], tokens[row, place])
            done = at + 1 + got.num_accepted_B
        return tokens[:, 2 : 2 + length], first_accepts

    def law(self, length: int, distribution: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Ancestral sampling's law over VOCAB**length outputs, enumerated in float64."""
        law = {START: 1.0}
        for _ in range(length):
            law = {
                (*prefix, token): mass * p
                for prefix, mass in law.items()
                for token, p in enumerate(distribution(self.logits[prefix[-2], prefix[-1]].numpy()))
            }
        return np.array(list(law.values()))  # in lexicographic order: token codes count up


def chi_square_p(tokens: torch.Tensor, law: np.ndarray) -> float:
    """p-value of the outputs under the law. 0 when something impossible came out; cells expected below 5 are pooled."""
    code = (tokens * VOCAB ** torch.arange(tokens.shape[1] - 1, -1, -1)).sum(1)
    seen = np.bincount(code.numpy(), minlength=len(law)).astype(float)
    if seen[law == 0].any():
        return 0.0
    expected = law * len(tokens)
    small = expected < 5
    seen, expected = (np.append(x[~small], x[small].sum()) for x in (seen, expected))
    if expected[-1] < 5:
        seen, expected = (np.append(x[:-2], x[-2:].sum()) for x in (seen, expected))
    return float(stats.chisquare(seen, expected).pvalue) if len(seen) > 1 else 1.0


@pytest.fixture(scope="session")
def toy() -> Toy:
    return Toy()


@pytest.fixture(scope="session")
def toy64() -> Toy:
    return Toy(torch.float64)


@pytest.fixture(scope="session")
def output_p_value() -> Callable[[torch.Tensor, np.ndarray], float]:
    return chi_square_p


def numpy_filter(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Oracle of the filters for one row, float64, token by token: shares no code with harness/decoding/sampling.py."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if temperature == 0:
        return np.eye(len(logits))[order[0]]
    weight = np.exp((logits.astype(np.float64) - max(logits)) / temperature)
    kept = order[: top_k or None]
    if top_p < 1:
        total, mass, crossed = sum(weight[i] for i in kept), 0.0, []
        for i in kept:
            if mass >= top_p * total:
                break
            crossed.append(i)
            mass += weight[i]
        kept = crossed
    kept = [i for i in kept if weight[i] >= min_p * weight[order[0]]]
    p = np.zeros(len(logits))
    p[kept] = weight[kept]
    return p / p.sum()


@pytest.fixture(scope="session")
def filter_oracle() -> Callable[..., np.ndarray]:
    return numpy_filter
