"""Cases of `benchmarks.kernels` for the tree build and the candidates of a draft.

Shapes: B batch, D draft positions, V vocabulary, K candidates.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.kernel_case import Case
from harness.decoding import tree as reference
from harness.decoding.layout import to_sibling_layout
from harness.decoding.tree import DraftTree
from harness.kernels.candidates import candidates
from harness.kernels.tree_build import build_tree

VOCABULARIES = ((1, 15, 151936, 63), (1, 15, 151936, 256), (1, 7, 49152, 16), (1, 7, 49152, 64), (8, 15, 151936, 64))
TREES = (  # batch, depth, budget, how fast log p falls with the rank at the first and last depth, spine
    (1, 7, 15, (3.0, 1.2), False),
    (1, 7, 63, (3.0, 1.2), False),
    (1, 15, 63, (1.5, 1.05), False),
    (1, 15, 63, (3.0, 1.2), False),
    (1, 15, 63, (6.0, 5.0), False),
    (1, 15, 63, (3.0, 1.2), True),
    (8, 15, 63, (3.0, 1.2), False),
    (1, 15, 255, (3.0, 1.2), False),
    (1, 15, 255, (6.0, 5.0), False),
    (1, 31, 1024, (3.0, 1.2), False),
)


def cases(device: str) -> Iterator[Case]:
    yield from tree_cases(device)
    yield from candidate_cases(device)


def tree_cases(device: str) -> Iterator[Case]:
    """Zipf marginals with noise: exponents of 3 and below are a temperature of 1, of 5 and above a sure drafter."""
    for batch, depth, budget, (first, last), spine in TREES:
        generator = torch.Generator().manual_seed(budget)
        exponent_D1 = torch.linspace(first, last, depth)[:, None]
        logits = -exponent_D1 * torch.arange(1, 50001).log() + 0.3 * torch.randn(
            batch, depth, 50000, generator=generator
        )
        logp_BDK, ids_BDK = (x.to(device).contiguous() for x in reference.candidates(logits, budget))
        root_B = torch.arange(batch, device=device)
        arguments = (root_B, logp_BDK, ids_BDK, budget, spine)
        yield Case(
            "tree_build",
            f"B={batch} D={depth} budget={budget} fall={first}-{last}{' spine' if spine else ''}",
            partial(build_tree, *arguments),
            partial(reference_tree, *arguments),
            tree_differs,
        )


def reference_tree(root_B: Tensor, logp_BDK: Tensor, ids_BDK: Tensor, budget: int, spine: bool) -> DraftTree:
    """The reference does in many launches what the kernel does in one: mask and layout are in its time too."""
    tree = reference.level_wise(root_B, logp_BDK, ids_BDK, budget, spine)
    return replace(tree, ancestors_BNN=tree.ancestor_mask_BNN(), layout=to_sibling_layout(tree))


def tree_differs(ours: DraftTree, theirs: DraftTree) -> str:
    """Names of arrays that are not the same, bit for bit."""
    names = [
        name
        for name in ("token_BN", "parent_BN", "depth_BN", "score_BN", "count_B", "ancestors_BNN")
        if not torch.equal(getattr(ours, name), getattr(theirs, name))
    ]
    layouts = (to_sibling_layout(ours), to_sibling_layout(theirs))
    names += [name for name in vars(layouts[0]) if not torch.equal(*(getattr(layout, name) for layout in layouts))]
    return ", ".join(names)


def candidate_cases(device: str) -> Iterator[Case]:
    for batch, depth, vocab, k in VOCABULARIES:
        generator = torch.Generator().manual_seed(k)
        logits_BDV = (4 * torch.randn(batch, depth, vocab, generator=generator)).to(device, torch.bfloat16)
        yield Case(
            "candidates",
            f"B={batch} D={depth} V={vocab} K={k} bfloat16",
            partial(candidates, logits_BDV, k),
            partial(reference.candidates, logits_BDV, k),
            partial(candidates_differ, logits_BDV),
        )


def candidates_differ(logits_BDV: Tensor, ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> str:
    """Ids must be the reference's; log p is compared with float64, which no order of summation moves."""
    wrong = int((ours[1] != theirs[1]).sum())
    true_BDK = (logits_BDV.double() - logits_BDV.double().logsumexp(-1, keepdim=True)).gather(-1, ours[1])
    apart = float(((ours[0] - true_BDK).abs() - 2e-7 * true_BDK.abs()).max())
    return ", ".join([f"{wrong} ids"] * (wrong > 0) + [f"log p by {apart:.1e}"] * (apart > 1e-6))
