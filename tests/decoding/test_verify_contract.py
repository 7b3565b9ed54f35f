"""The kernel's contract against a scalar walk of its specification, and the traps around it."""

import numpy as np
import pytest
import torch

from harness.decoding import verify
from harness.decoding.layout import to_sibling_layout
from harness.decoding.sampling import SamplingParams, probabilities, sampling_batch
from harness.decoding.tree import candidates, chain, level_wise
from harness.decoding.verify import VERIFIERS, verify_kernel
from harness.decoding.verify_kernel import find_kernel, tree_speculative_sampling_target_only


def scalar_contract(layout, tokens, coins, final, target, draft, width):
    """One request, float32 scalars, as the kernel does it. Returns path, tokens, whether rounding decided."""
    child, sibling = layout
    row, path, out = 0, [0], []
    while len(path) < width:
        mass, node = np.float32(0), child[row]
        while node != -1:
            p = target[row, tokens[node]]
            mass = np.float32(mass + p)
            if coins[row] <= mass or p >= 1:
                break
            draft[row, tokens[node]] = p
            node = sibling[node]
        if node == -1:
            break
        out.append(tokens[node])
        path.append(node)
        row = node
    left = target[row] if len(path) == width else np.maximum(target[row] - draft[row], 0)
    sums = left.astype(np.float64).cumsum()
    goal = float(final) * sums[-1]
    ids = [v for v in range(len(left)) if sums[v] > goal and left[v] > 0]
    last = [v for v in range(len(left)) if left[v] > 0]
    near_edge = bool((abs(sums - goal) < 1e-6).any())
    out.append(ids[0] if ids else last[-1] if last else len(left) - 1)
    return path, out, near_edge


@pytest.mark.parametrize("width", [4, 3, 1])  # the tree's whole depth, and paths that end before the tree does
@pytest.mark.parametrize("seed", range(8))
def test_torch_form_equals_the_scalar_walk(seed, width):
    generator = torch.Generator().manual_seed(seed)
    batch, depth, vocab, budget = 6, 3, 7, 9
    logp, ids = candidates(torch.randn(batch, depth, vocab, generator=generator), budget)
    tree = level_wise(torch.zeros(batch, dtype=torch.int64), logp, ids, budget)
    nodes = budget + 1
    target = torch.softmax(torch.randn(batch, nodes, vocab, generator=generator) * 2, -1)
    coins = 1 - torch.rand(batch, nodes, generator=generator)
    final = 1 - torch.rand(batch, generator=generator)
    layout = to_sibling_layout(tree)
    predicts = torch.full((batch * nodes,), -7, dtype=torch.int32)
    accept = torch.full((batch, width), -7, dtype=torch.int32)
    num = torch.full((batch,), -7, dtype=torch.int32)
    draft = torch.zeros_like(target)
    expected_draft = np.zeros_like(target.numpy())
    tree_speculative_sampling_target_only(
        predicts, accept, num, tree.token_BN, layout.retrieve_index_BN, layout.retrieve_next_token_BN,
        layout.retrieve_next_sibling_BN, coins, final, target, draft,
    )  # fmt: skip
    untouched = torch.ones_like(predicts, dtype=torch.bool)
    for b in range(batch):
        links = layout.retrieve_next_token_BN[b].tolist(), layout.retrieve_next_sibling_BN[b].tolist()
        path, out, near_edge = scalar_contract(
            links,
            tree.token_BN[b].tolist(),
            coins[b].numpy(),
            final[b].numpy(),
            target[b].numpy(),
            expected_draft[b],
            width,
        )
        rows = [b * nodes + node for node in path]
        assert int(num[b]) == len(path) - 1
        assert accept[b].tolist() == rows + [-7] * (width - len(rows))
        assert near_edge or predicts[rows].tolist() == out
        untouched[rows] = False
    assert np.array_equal(draft.numpy(), expected_draft)
    assert (predicts[untouched] == -7).all()


def contract_on_a_chain(coin: float, target: list[list[float]], token: int) -> list[int]:
    tree = chain(torch.tensor([0]), torch.tensor([[token]]), torch.tensor([[-1.0]]))
    layout = to_sibling_layout(tree)
    predicts, accept, num = torch.zeros(2).int(), torch.zeros(1, 2).int(), torch.zeros(1).int()
    probs = torch.tensor([target])
    tree_speculative_sampling_target_only(
        predicts, accept, num, tree.token_BN, layout.retrieve_index_BN, layout.retrieve_next_token_BN,
        layout.retrieve_next_sibling_BN, torch.full((1, 2), coin), torch.ones(1), probs, torch.zeros_like(probs),
    )  # fmt: skip
    return predicts[accept[0, : int(num) + 1].long()].tolist()


def test_coin_of_zero_is_the_kernels_fault_and_never_drawn():
    """Public report sglang#35771: p = [0, 1], draft token 0, coin 0. Right: token 1."""
    p = [[0.0, 1.0], [0.5, 0.5]]
    assert contract_on_a_chain(0.0, p, 0)[0] == 0  # the fault, part of the contract
    assert contract_on_a_chain(2.0**-24, p, 0) == [1]  # the least coin that noise.uniform gives


def coins_of(value: float):
    """A stand-in for `uniform` that always gives the same coin."""

    def coins(stream, index, purpose):
        return torch.full(torch.broadcast_shapes(index.shape, torch.as_tensor(purpose).shape), value)

    return coins


def test_no_verifier_accepts_a_draft_of_probability_zero(monkeypatch):
    monkeypatch.setattr(verify, "uniform", coins_of(2.0**-24))
    tree = chain(torch.tensor([0]), torch.tensor([[0]]), torch.tensor([[-1.0]]))
    logits = torch.tensor([[[float("-inf"), 0.0], [0.0, 0.0]]])
    for name, verifier in VERIFIERS.items():
        got = verifier(tree, logits, sampling_batch([SamplingParams()]), torch.tensor([0]))
        assert (got.num_accepted_B.tolist(), got.bonus_B.tolist()) == ([0], [1]), name


def test_children_that_carry_all_mass_are_never_all_rejected(monkeypatch):
    """The residual would be zero everywhere and the kernel would answer V - 1, here a token outside top-k."""
    batch, vocab = 400, 9
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, 4, vocab, generator=generator)
    logits[..., -1] = -9
    sampling = sampling_batch([SamplingParams(top_k=3)] * batch)
    logp, ids = candidates(logits[:, :1], 3)
    tree = level_wise(torch.zeros(batch, dtype=torch.int64), logp, ids, 3)
    monkeypatch.setattr(verify, "uniform", coins_of(1.0))
    got = verify_kernel(tree, logits, sampling, torch.zeros(batch, dtype=torch.int64))
    assert got.num_accepted_B.tolist() == [1] * batch
    # Negative control: without the clamp some sums round below 1 and the coin of 1 passes them all.
    monkeypatch.setattr(verify, "_clamp_coins", lambda coins, tree, target: coins)
    assert 0 in verify_kernel(tree, logits, sampling, torch.zeros(batch, dtype=torch.int64)).num_accepted_B.tolist()


def test_final_draw_lands_on_positive_residual(monkeypatch):
    """A token without residual, got through rounding, is replaced by the last one that has some."""

    def broken(predicts, accept, num, *_):
        accept[:, 0] = torch.arange(len(num)) * 2
        predicts[:] = 3  # outside top-k

    monkeypatch.setattr(verify, "find_kernel", lambda device: broken)
    tree = chain(torch.tensor([0]), torch.tensor([[1]]), torch.tensor([[-1.0]]))
    logits = torch.tensor([[[2.0, 1.0, 0.0, -1.0]] * 2])
    got = verify_kernel(tree, logits, sampling_batch([SamplingParams(top_k=2)]), torch.tensor([0]))
    assert got.bonus_B.tolist() == [1]


@pytest.mark.parametrize("name", VERIFIERS)
def test_greedy_follows_argmax_and_takes_the_lowest_id(name):
    """Public report lattice#280. Batch of two: one leaves at once, one accepts all (its second child)."""
    token = torch.tensor([[0, 2, 1], [0, 2, 1]])
    logp = torch.tensor([[[-0.1, -0.2]], [[-0.1, -0.2]]])
    tree = level_wise(token[:, 0], logp, token[:, None, 1:], 2)
    logits = torch.tensor([[[1.0, 1.0, 0.5], [0.0, 0, 0], [0.0, 0, 0]], [[0.0, 2, 2], [5.0, 0, 0], [0.0, 3, 3]]])
    got = VERIFIERS[name](tree, logits, sampling_batch([SamplingParams(temperature=0.0)] * 2), torch.tensor([0, 9]))
    assert got.path_BW.tolist() == [[0, -1], [0, 2]]
    assert got.num_accepted_B.tolist() == [0, 1]
    assert got.bonus_B.tolist() == [0, 1]
    assert {x.dtype for x in (got.path_BW, got.num_accepted_B, got.bonus_B)} == {torch.int64}


def test_the_cpu_takes_the_torch_form():
    assert find_kernel("cpu") is tree_speculative_sampling_target_only


def test_probabilities_carry_the_filters():
    sampling = sampling_batch([SamplingParams(temperature=0.5, top_k=2)])
    p = probabilities(torch.tensor([[2.0, 0.0, -1.0]]), sampling)
    torch.testing.assert_close(p, torch.tensor([[1 / (1 + np.exp(-4)), 1 / (1 + np.exp(4)), 0.0]], dtype=torch.float32))
