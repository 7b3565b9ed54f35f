"""The problems that `benchmarks.verifiers` times: cells of batch, nodes and vocabulary, and a tree with logits for each.

Shapes: B batch, N nodes with the root, D depths, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.decoding.sampling import SamplingBatch, SamplingParams, sampling_batch
from harness.decoding.tree import DraftTree, candidates, level_wise

DEPTH = 15
SAMPLINGS = {
    "T=0.6": SamplingParams(0.6),
    "T=0.6 top_k=20 top_p=0.95": SamplingParams(0.6, 20, 0.95),  # what Qwen3 recommends
}
VOCABULARIES = (49152, 151936)
MOST_ENTRIES = {"cpu": 4e7, "cuda": 2**33}  # B·N·V of a cell
MOST_FILTERED = 2**29  # ranking needs 8 bytes an entry, several times


@dataclass(frozen=True)
class Cell:
    batch: int
    draft_nodes: int
    vocab: int
    sampling: str

    @property
    def entries(self) -> int:
        return self.batch * (self.draft_nodes + 1) * self.vocab


@dataclass(frozen=True)
class Problem:
    tree: DraftTree
    logits_BNV: Tensor
    sampling: SamplingBatch
    host: tuple[DraftTree, SamplingBatch]  # copies on the CPU


def cells(device: str, tiny: bool) -> Iterator[Cell]:
    """Small ones first: where time runs out, the largest are missing, and listed as such."""
    if tiny:
        yield from (Cell(2, 8, 1000, name) for name in SAMPLINGS)
        return
    plain, filtered = SAMPLINGS
    batches, budgets = ((1, 4, 16, 64), (16, 64, 256, 512)) if device == "cuda" else ((1, 4), (16, 64, 256))
    found = [Cell(b, n, v, plain) for b in batches for n in budgets for v in VOCABULARIES]
    found += [Cell(b, n, VOCABULARIES[1], filtered) for b in batches[::2] for n in budgets]
    limit = MOST_ENTRIES[device]
    yield from sorted(
        (c for c in found if c.entries <= (limit if c.sampling == plain else min(limit, MOST_FILTERED))),
        key=lambda cell: cell.entries,
    )


def make_problem(cell: Cell, device: str) -> Problem:
    """Each depth favours 12 tokens, p falling by halves or so; the tree covers most of them near the root."""
    generator = torch.Generator(device).manual_seed(cell.entries)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    base_BDV = noise(cell.batch, DEPTH + 1, cell.vocab)
    shape = (cell.batch, DEPTH + 1, 12)
    favoured = torch.randint(cell.vocab, shape, generator=generator, device=device)
    base_BDV.scatter_(-1, favoured, torch.linspace(13, 7, 12, device=device).expand(shape) + noise(*shape))
    k = min(cell.draft_nodes, cell.vocab)
    logp, ids = candidates(base_BDV[:, :DEPTH], k)
    tree = level_wise(torch.zeros(cell.batch, dtype=torch.int64, device=device), logp, ids, cell.draft_nodes)
    logits_BNV = torch.empty(cell.batch, tree.num_nodes, cell.vocab, dtype=torch.bfloat16, device=device)
    for b in range(cell.batch):
        logits_BNV[b] = base_BDV[b, tree.depth_BN[b]] + 0.5 * noise(tree.num_nodes, cell.vocab)
    asked = SAMPLINGS[cell.sampling]
    params = [SamplingParams(asked.temperature, asked.top_k, asked.top_p, stream=i) for i in range(cell.batch)]
    arrays = (tree.token_BN, tree.parent_BN, tree.depth_BN, tree.score_BN, tree.count_B)
    host_tree = DraftTree(*(array.cpu() for array in arrays), depth_limit=tree.depth_limit)
    return Problem(tree, logits_BNV, sampling_batch(params, device), (host_tree, sampling_batch(params)))
