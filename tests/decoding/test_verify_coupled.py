"""`coupled` and `walk` key their draws by output index: any tree must give the tokens of autoregressive decoding."""

import pytest
import torch

from harness.decoding.sampling import SamplingParams, sampling_batch, stream_key
from harness.decoding.tree import chain, root_only
from harness.decoding.verify import VERIFIERS, coupled_at_once, verify_coupled, verify_walk

FILTERED = {"top_k": 4, "top_p": 0.95, "min_p": 0.05}


@pytest.mark.parametrize("temperature", [0.0, 0.3, 0.6, 1.0, 1.5])
@pytest.mark.parametrize("verify", [verify_coupled, verify_walk])
def test_trees_give_the_tokens_of_autoregressive_decoding(toy, toy64, verify, temperature):
    for model, extra in ((toy, {}), (toy64, {}), (toy, FILTERED)):
        params = SamplingParams(temperature, **extra)
        runs = {
            kind: model.decode(verify, model.build(kind), params, batch=200, length=25)[0]
            for kind in ("root", "chain", "tree", "spine", "full")
        }
        for kind, tokens in runs.items():
            assert torch.equal(tokens, runs["root"]), kind
        if temperature > 0.5:
            assert len(torch.unique(runs["root"], dim=0)) > 190  # and it does sample


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("extra", [{}, FILTERED], ids=["plain", "filtered"])
def test_both_forms_of_coupled_agree(toy, toy64, temperature, extra):
    """The one for CUDA graphs, here on CPU tensors, and the host's walk: every field of every round."""
    for model in (toy, toy64):
        for kind in ("root", "chain", "spine", "full"):

            def both(tree, logits, sampling, index, kind=kind):
                walked, at_once = (f(tree, logits, sampling, index) for f in (verify_coupled, coupled_at_once))
                for field in ("path_BW", "num_accepted_B", "bonus_B"):
                    assert torch.equal(getattr(walked, field), getattr(at_once, field)), (kind, field)
                return at_once

            model.decode(both, model.build(kind), SamplingParams(temperature, **extra), batch=200, length=15)


def test_noise_by_node_instead_of_index_is_caught(toy):
    """Negative control: with the root's index at every node, tree and autoregressive outputs part."""

    def no_depth(tree, logits, sampling, index):
        flat = type(tree)(
            tree.token_BN, tree.parent_BN, tree.depth_BN * 0, tree.score_BN, tree.count_B, tree.depth_limit
        )
        return coupled_at_once(flat, logits, sampling, index)

    params = SamplingParams(1.0)
    root, _ = toy.decode(no_depth, toy.build("root"), params, batch=50, length=10)
    tree, _ = toy.decode(no_depth, toy.build("tree"), params, batch=50, length=10)
    assert not torch.equal(root, tree)


@pytest.mark.parametrize("name", VERIFIERS)
def test_temperature_samples_and_seeds_count(name):
    """Public reports sglang#39253 and vllm#6038: T = 1 over four equal tokens, 64 samples; same seed, same draws."""

    def draw(seed: int) -> list[int]:
        batch = sampling_batch([SamplingParams(1.0, stream=stream_key(seed, "t", str(i), 0)) for i in range(64)])
        roots = torch.zeros(64, dtype=torch.int64)
        return VERIFIERS[name](root_only(roots), torch.zeros(64, 1, 4), batch, roots).bonus_B.tolist()

    assert len(set(draw(0))) == 4
    assert draw(0) == draw(0) != draw(1)


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_request_is_verified_alike_alone_and_in_a_batch(toy, name):
    build, roots, before = toy.build("tree"), torch.tensor([0, 3, 2, 4]), torch.tensor([1, 1, 0, 2])
    params = [
        SamplingParams(t, top_k=k, stream=stream_key(0, "b", str(i), 0))
        for i, (t, k) in enumerate([(1.0, 0), (0.0, 0), (0.7, 3), (1.2, 0)])
    ]
    index = torch.tensor([4, 0, 17, 300])
    tree = build(roots)
    together = VERIFIERS[name](tree, toy.node_logits(tree, before), sampling_batch(params), index)
    for b in range(4):
        one = build(roots[b : b + 1])
        logits = toy.node_logits(one, before[b : b + 1])
        alone = VERIFIERS[name](one, logits, sampling_batch(params[b : b + 1]), index[b : b + 1])
        for field in ("path_BW", "num_accepted_B", "bonus_B"):
            assert torch.equal(getattr(alone, field)[0], getattr(together, field)[b]), field


@pytest.mark.parametrize("name", VERIFIERS)
def test_the_prefill_token_is_drawn_at_index_zero(name):
    """A root at index -1 stands for the prompt's last token: the loop draws the first output token through it."""
    sampling = sampling_batch([SamplingParams(1.0, stream=5)])
    got = VERIFIERS[name](root_only(torch.tensor([0])), torch.zeros(1, 1, 50), sampling, torch.tensor([-1]))
    assert got.path_BW.tolist() == [[0]]
    assert got.num_accepted_B.tolist() == [0]
    assert 0 <= int(got.bonus_B) < 50


def test_padding_is_never_followed():
    """Padding holds token 0: a draw of 0 must not step into it."""
    tree = chain(torch.tensor([3]), torch.tensor([[2, 1]]), torch.tensor([[-1.0, float("-inf")]]))
    logits = torch.tensor([[[0.0, 0, 9, 0], [9.0, 0, 0, 0], [0.0, 0, 0, 9]]])
    for name, verifier in VERIFIERS.items():
        got = verifier(tree, logits, sampling_batch([SamplingParams(0.0)]), torch.tensor([0]))
        assert got.path_BW.tolist() == [[0, 1, -1]], name
        assert got.bonus_B.tolist() == [0], name
