"""The one-kernel tree build gives the arrays of `level_wise`, its ancestor mask and its sibling layout, bit for bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decoding import tree as reference
from harness.decoding.layout import to_sibling_layout
from harness.decoding.tree import DraftTree, level_wise
from harness.kernels.tree_build import build_tree

FIELDS = ("token_BN", "parent_BN", "depth_BN", "score_BN", "count_B")
LAYOUT = ("retrieve_index_BN", "retrieve_next_token_BN", "retrieve_next_sibling_BN")


def differs(got: DraftTree, want: DraftTree) -> list[str]:
    """Names of arrays that are not the same, bit for bit; dtype and shape count."""
    pairs = [(name, getattr(got, name), getattr(want, name)) for name in FIELDS]
    pairs += [(name, getattr(got.layout, name), getattr(to_sibling_layout(want), name)) for name in LAYOUT]
    pairs.append(("ancestors_BNN", got.ancestors_BNN, want.ancestor_mask_BNN()))
    return [
        name
        for name, ours, theirs in pairs
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape or not torch.equal(bits(ours), bits(theirs))
    ]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32) if x.dtype == torch.float32 else x


def marginals(seed: int, batch: int, depth: int, ranks: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """log p falling along K and distinct ids. Kinds: flat, peaked (a rank of log p 0.0, so that children tie with
    parents), grid (few distinct values, many ties), holes (a tail of -inf, whole depths too), rising (log p > 0)."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, depth, ranks + 3, generator=generator) * (1.0 if kind == "flat" else 3.0)
    logp = logits.log_softmax(-1).sort(-1, descending=True).values[..., :ranks].contiguous()
    if kind == "peaked":
        sure = torch.rand(batch, depth, generator=generator) < 0.7
        logp[..., 0] = torch.where(sure, 0.0, logp[..., 0])
    if kind == "grid":
        logp = (logp * 2).round() / 2
    if kind == "holes":
        gone = torch.rand(batch, depth, 1, generator=generator) * (ranks + 1) * 1.2
        logp = logp.masked_fill(torch.arange(ranks) >= (ranks + 1 - gone).clamp(min=0).floor(), float("-inf"))
    if kind == "rising":
        logp = logp - logp[..., :1] * 1.5
        logp = logp.sort(-1, descending=True).values
    ids = torch.rand(batch, depth, 5 * ranks, generator=generator).argsort(-1)[..., :ranks].contiguous()
    return logp, ids


def both(device, seed, batch, depth, ranks, budget, kind, spine=False) -> tuple[DraftTree, DraftTree]:
    logp, ids = (x.to(device) for x in marginals(seed, batch, depth, ranks, kind))
    root = torch.arange(batch, device=device) * 7 + 3
    return build_tree(root, logp, ids, budget, spine), level_wise(root, logp, ids, budget, spine)


KINDS = ("flat", "peaked", "grid", "holes", "rising")


@pytest.mark.parametrize("spine", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("batch", "depth", "ranks", "budget"), [(1, 7, 15, 15), (3, 1, 9, 6), (2, 4, 3, 31), (1, 8, 1, 12), (1, 3, 20, 50)]
)
def test_equals_level_wise(device, batch, depth, ranks, budget, kind, spine):
    for seed in range(2):
        got, want = both(device, seed, batch, depth, ranks, budget, kind, spine)
        assert differs(got, want) == []
        assert got.depth_limit == want.depth_limit


@pytest.mark.parametrize(("kind", "spine"), [("flat", False), ("peaked", True)])
@pytest.mark.parametrize(("batch", "depth", "ranks", "budget"), [(2, 15, 63, 63), (1, 31, 4, 33), (1, 5, 40, 100)])
def test_equals_level_wise_at_working_sizes(device, batch, depth, ranks, budget, kind, spine):
    got, want = both(device, 3, batch, depth, ranks, budget, kind, spine)
    assert differs(got, want) == []


@pytest.mark.parametrize(("budget", "kind"), [(255, "flat"), (255, "grid"), (300, "peaked")])
def test_equals_level_wise_where_a_depth_is_crowded(device, budget, kind):
    """More new prefixes than a tile holds: the bound is tightened, and counting runs over several tiles."""
    got, want = both(device, 5, 1, 4, 300, budget, kind)
    assert differs(got, want) == []


def test_largest_budget(device):
    got, want = both(device, 6, 1, 2, 1024, 1024, "flat")
    assert differs(got, want) == []


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 3),
    depth=st.integers(1, 6),
    ranks=st.integers(1, 8),
    budget=st.integers(1, 40),
    kind=st.sampled_from(KINDS),
    spine=st.booleans(),
)
def test_equals_level_wise_everywhere(device, seed, batch, depth, ranks, budget, kind, spine):
    budget = max(budget, depth) if spine else budget
    got, want = both(device, seed, batch, depth, ranks, budget, kind, spine)
    assert differs(got, want) == []


def test_nothing_to_draft(device):
    logp = torch.full((2, 3, 4), float("-inf"), device=device)
    ids = torch.arange(4, device=device).expand(2, 3, 4).contiguous()
    root = torch.tensor([1, 2], device=device)
    for spine in (False, True):
        assert differs(build_tree(root, logp, ids, 5, spine), level_wise(root, logp, ids, 5, spine)) == []


def test_all_costs_equal(device):
    """Every comparison is a tie, and all pairs but the first depth's come too late."""
    logp = torch.zeros(1, 4, 40, device=device)
    ids = torch.arange(40, device=device).expand(1, 4, 40).contiguous()
    root = torch.tensor([1], device=device)
    for budget in (7, 40, 60, 150):
        assert differs(build_tree(root, logp, ids, budget), level_wise(root, logp, ids, budget)) == []


def test_a_wrong_order_of_ties_is_seen(device, monkeypatch):
    """Negative control: a reference whose sort reverses ties must differ on peaked marginals."""
    original = torch.Tensor.sort

    def unstable(self, dim=-1, descending=False, stable=False):
        values, indices = original(self.flip(dim), dim=dim, descending=descending, stable=True)
        return torch.return_types.sort((values, self.shape[dim] - 1 - indices))

    logp, ids = (x.to(device) for x in marginals(1, 2, 6, 12, "grid"))
    root = torch.tensor([4, 5], device=device)
    got = build_tree(root, logp, ids, 20)
    assert differs(got, level_wise(root, logp, ids, 20)) == []
    monkeypatch.setattr(torch.Tensor, "sort", unstable)
    wrong = reference.level_wise(root, logp, ids, 20)
    monkeypatch.undo()
    assert "parent_BN" in differs(got, wrong)


def test_the_tree_answers_with_what_the_kernel_made(device):
    got, _ = both(device, 3, 1, 4, 5, 9, "flat")
    assert got.ancestor_mask_BNN() is got.ancestors_BNN
    assert to_sibling_layout(got) is got.layout


@pytest.mark.parametrize(
    ("budget", "spine", "words"), [(0, False, "at least 1"), (3, True, ">= 5"), (1025, False, "1024")]
)
def test_impossible_budgets_are_refused(device, budget, spine, words):
    logp, ids = (x.to(device) for x in marginals(0, 1, 5, 4, "flat"))
    with pytest.raises(ValueError, match=words):
        build_tree(torch.tensor([1], device=device), logp, ids, budget, spine)
