"""Verifiers by kernels against the torch forms, and which of them serves where."""

import pytest
import torch

from harness.decoding import verify as reference
from harness.decoding.noise import stream_key
from harness.decoding.sampling import SamplingParams, sampling_batch
from harness.decoding.tree import candidates, level_wise
from harness.decoding.verify_kernel import tree_speculative_sampling_target_only
from harness.kernels import choice
from harness.kernels.candidates import candidates as by_kernels
from harness.kernels.verify import verify_coupled, verify_kernel
from tests.interpreter import DEVICE

PAIRS = [(verify_coupled, reference.coupled_at_once), (verify_kernel, reference.verify_kernel)]


def sampling(**more):
    params = [SamplingParams(t, stream=stream_key(0, "v", str(i), 0), **more) for i, t in enumerate((1.0, 0.0, 0.6))]
    return sampling_batch(params, DEVICE)


def drafted(seed: int, vocab: int = 40):
    """A tree and logits that like its tokens, so that paths are deep."""
    generator = torch.Generator().manual_seed(seed)
    logits_BDV = torch.randn(3, 4, vocab, generator=generator)
    tree = level_wise(torch.arange(3), *candidates(logits_BDV, 9), 9)
    logits_BNV = torch.randn(3, 10, vocab, generator=generator)
    liked_BN = torch.where(tree.parent_BN >= 0, tree.parent_BN, 0)
    rows_BN = torch.arange(3)[:, None].expand_as(liked_BN)
    logits_BNV.index_put_((rows_BN, liked_BN, tree.token_BN), torch.tensor(2.0), accumulate=True)
    moved = {name: value.to(DEVICE) for name, value in vars(tree).items() if isinstance(value, torch.Tensor)}
    return type(tree)(**moved, depth_limit=tree.depth_limit), logits_BNV.to(torch.bfloat16).to(DEVICE)


@pytest.mark.parametrize("extra", [{}, {"top_p": 0.8}], ids=["plain", "filtered"])
@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=["coupled", "kernel"])
def test_equal_the_torch_forms(monkeypatch, ours, theirs, extra):
    # One verification kernel for both sides, on any device: it is not under test.
    monkeypatch.setattr("harness.decoding.verify.find_kernel", lambda kind: tree_speculative_sampling_target_only)
    accepted = 0
    for seed in range(6):
        tree, logits = drafted(seed)
        index_B = torch.tensor([3, 0, 7], device=DEVICE)
        got, expected = (form(tree, logits, sampling(**extra), index_B) for form in (ours, theirs))
        for one, other in zip(vars(got).values(), vars(expected).values(), strict=True):
            assert torch.equal(one, other)
        accepted += int(got.num_accepted_B.sum())
    assert accepted > 10


def test_kernels_serve_on_cuda_alone():
    tree, logits = drafted(0)
    index_B = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    candidates_here, _ = choice.searchers(logits, 9)
    assert (candidates_here is by_kernels) == (DEVICE == "cuda")
    assert choice.searchers(logits.double(), 9) == (candidates, level_wise)
    assert choice.searchers(logits.cpu(), 9) == (candidates, level_wise)
    assert choice.searchers(logits, 4096) == (candidates, level_wise)  # more than the kernel's tree may hold
    for name in ("coupled", "walk"):
        got = choice.verifier(name)(tree, logits, sampling(), index_B)
        assert torch.equal(got.bonus_B, reference.VERIFIERS[name](tree, logits, sampling(), index_B).bonus_B)
