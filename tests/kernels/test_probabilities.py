"""Softmax in two passes and the coins in one launch, against the torch functions of the decoding package."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decoding import verify
from harness.decoding.sampling import SamplingParams, probabilities, sampling_batch, stream_key
from harness.decoding.tree import candidates, chain, level_wise, root_only
from harness.decoding.verify import VERIFIERS, accept_by_kernel
from harness.kernels.probabilities import clamp_coins, kernel_coins, softmax_and_positive, softmax_scaled


def batch_of(temperatures, device, seed=0):
    params = [SamplingParams(t, stream=stream_key(seed, "p", str(i), 0)) for i, t in enumerate(temperatures)]
    return sampling_batch(params, device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperatures", [[1.0, 0.3], [0.0, 0.0], [0.7, 0.0], [1e-3, 4.0]])
def test_softmax_equals_the_reference(device, dtype, temperatures):
    generator = torch.Generator().manual_seed(1)
    sampling = batch_of(temperatures, device)
    for nodes, vocab in ((1, 9), (3, 5001)):
        logits = (torch.randn(2, nodes, vocab, generator=generator) * 6).to(device, dtype)
        got, positive = softmax_and_positive(logits, sampling.temperature_B)
        expected = probabilities(logits, sampling)
        assert got.dtype == torch.float32
        assert got.is_contiguous()
        torch.testing.assert_close(got, expected, rtol=3e-5, atol=1e-12)
        assert torch.equal(positive.sum(-1), (got > 0).sum(-1))
        torch.testing.assert_close(
            got.double().sum(-1), torch.ones(2, nodes, device=device).double(), rtol=0, atol=2e-6
        )
        for b, temperature in enumerate(temperatures):
            if temperature == 0:
                assert torch.equal(got[b], expected[b])


def test_ties_infinities_and_float64(device):
    logits = torch.full((1, 3, 5000), -math.inf, device=device)
    logits[0, 0, [4000, 3000, 2500]] = 2.0  # whole chunks of -inf beside them
    logits[0, 1, [7, 3]] = 1.0
    logits[0, 2] = 0.0
    for temperature in (0.0, 1.0):
        sampling = batch_of([temperature], device)
        got, positive = softmax_and_positive(logits, sampling.temperature_B)
        torch.testing.assert_close(got, probabilities(logits, sampling), rtol=1e-6, atol=0)
        assert positive.sum(-1).tolist() == [[1, 1, 1] if temperature == 0 else [3, 2, 5000]]
    assert got.sum(-1).isfinite().all()
    assert softmax_scaled(logits, torch.tensor([0.0], device=device)).argmax(-1).tolist() == [[2500, 3, 0]]
    with pytest.raises(ValueError, match="float64"):
        softmax_scaled(logits.double(), sampling.temperature_B)


def test_another_temperature_is_seen(device):
    """Negative control of the tolerance above."""
    logits = torch.randn(1, 2, 300, generator=torch.Generator().manual_seed(0)).to(device)
    got = softmax_scaled(logits, torch.tensor([1.0], device=device))
    assert not torch.allclose(got, probabilities(logits, batch_of([1.0005], device)), rtol=3e-5, atol=1e-12)


def covered_case(device, batch, depth, budget, vocab, seed):
    """A tree, and probabilities of which most nodes give all or nearly all to their children: sums beside 1."""
    generator = torch.Generator().manual_seed(seed)
    logp, ids = candidates(torch.randn(batch, depth, vocab, generator=generator), budget)
    tree = level_wise(torch.zeros(batch, dtype=torch.int64), logp, ids, budget)
    target = torch.rand(batch, tree.num_nodes, vocab, generator=generator) ** 3
    for b in range(batch):
        for node in range(tree.num_nodes):
            children = tree.token_BN[b][tree.parent_BN[b] == node]
            if len(children) and torch.rand((), generator=generator) < 0.7:
                only = torch.zeros(vocab)
                only[children] = target[b, node, children] * (torch.rand(len(children), generator=generator) < 0.8)
                target[b, node] = only
    target /= target.sum(-1, keepdim=True).clamp(min=1e-9)
    if seed % 2:
        target *= 0.7  # so that every covered node's coin becomes its sum
    coin = 1 - torch.randint(0, 3, (batch, tree.num_nodes), generator=generator) * 2.0**-24  # 1, and next to it
    tree = type(tree)(
        *(x.to(device) for x in (tree.token_BN, tree.parent_BN, tree.depth_BN, tree.score_BN, tree.count_B)),
        tree.depth_limit,
    )
    return tree, target.to(device), coin.to(device)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    batch=st.integers(1, 3),
    depth=st.integers(1, 4),
    budget=st.integers(1, 20),
    vocab=st.integers(2, 12),
    seed=st.integers(0, 2**20),
)
def test_clamped_coins_are_equal_bit_for_bit(device, batch, depth, budget, vocab, seed):
    tree, target, coin = covered_case(device, batch, depth, budget, vocab, seed)
    positive = (target > 0).sum(-1, keepdim=True).to(torch.int32)
    assert torch.equal(clamp_coins(coin, tree, target, positive), verify._clamp_coins(coin, tree, target))


def test_the_cases_above_clamp_and_their_order_counts(device):
    """Negative control: coins do change, and a sum in falling node order is another float32 somewhere."""
    changed = different = 0
    for seed in range(6):
        tree, target, coin = covered_case(device, 2, 2, 16, 14, seed)
        positive = (target > 0).sum(-1, keepdim=True).to(torch.int32)
        got = clamp_coins(coin, tree, target, positive)
        changed += int((got != coin).sum())
        for b in range(2):
            children = (tree.parent_BN[b] == 0).nonzero()[:, 0].tolist()
            forward = backward = torch.zeros((), device=device)
            for child in children:
                forward = forward + target[b, 0, tree.token_BN[b, child]]
            for child in reversed(children):
                backward = backward + target[b, 0, tree.token_BN[b, child]]
            different += int(forward != backward)
    assert changed > 10
    assert different >= 2


@pytest.mark.parametrize("temperatures", [[1.0, 0.0, 0.6], [0.0]])
def test_coins_of_a_tree_are_equal_bit_for_bit(device, temperatures):
    batch = len(temperatures)
    generator = torch.Generator().manual_seed(2)
    sampling = batch_of(temperatures, device)
    logp, ids = candidates(torch.randn(batch, 3, 40, generator=generator), 9)
    roots = torch.zeros(batch, dtype=torch.int64)
    index = torch.randint(0, 4000, (batch,), generator=generator).to(device)
    for tree in (
        level_wise(roots.to(device), logp.to(device), ids.to(device), 9),
        chain(roots.to(device), ids[..., 0].to(device), logp[..., 0].cumsum(1).to(device)),
        root_only(roots.to(device)),
    ):
        logits = torch.randn(batch, tree.num_nodes, 40, generator=generator).to(device) * 3
        target, positive = softmax_and_positive(logits, sampling.temperature_B)
        got = kernel_coins(tree, target, positive, sampling.stream_B, index)
        expected = verify.kernel_coins(tree, target, sampling, index)
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])
        assert not torch.equal(kernel_coins(tree, target, positive, sampling.stream_B, index + 1)[1], expected[1])


def test_the_verifier_makes_the_same_of_both(device):
    """Verifier `kernel` on these probabilities and coins: path, count and bonus of the torch chain, at mixed T."""
    generator = torch.Generator().manual_seed(5)
    temperatures = [1.0, 0.0, 0.5, 1.5]
    accepted = 0
    for seed in range(3):
        logp, ids = candidates(torch.randn(4, 3, 12, generator=generator) * 2, 9)
        tree = level_wise(torch.zeros(4, dtype=torch.int64), logp, ids, 9)
        logits = torch.randn(4, tree.num_nodes, 12, generator=generator) * 2
        for b in range(4):  # a parent likes its children, so that drafts are accepted
            for node in range(1, tree.num_nodes):
                logits[b, tree.parent_BN[b, node], tree.token_BN[b, node]] += 4
        sampling = batch_of(temperatures, "cpu", seed)
        index = torch.arange(4) + seed
        expected = VERIFIERS["kernel"](tree, logits, sampling, index)
        moved = [x.to(device) for x in (sampling.temperature_B, sampling.stream_B, index)]
        there = type(tree)(
            *(x.to(device) for x in (tree.token_BN, tree.parent_BN, tree.depth_BN, tree.score_BN, tree.count_B)),
            tree.depth_limit,
        )
        target, positive = softmax_and_positive(logits.to(device), moved[0])
        coin, final = kernel_coins(there, target, positive, *moved[1:])
        target, coin, final = (x.cpu() for x in (target, coin, final))  # the verification kernel is not under test
        got = accept_by_kernel(tree, target, coin, final, torch.zeros_like(target))
        for field in ("path_BW", "num_accepted_B", "bonus_B"):
            assert torch.equal(getattr(got, field), getattr(expected, field)), field
        accepted += int(got.num_accepted_B.sum())
    assert accepted > 8
