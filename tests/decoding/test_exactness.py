"""Every verifier must leave the target's law as it is; known mistakes must be caught by the same test.

Chi-square on the first three tokens of 20,000 generations, against the enumerated law of ancestral sampling. Seeds are
fixed. A test fails when p < 1e-4: over seeds, the 27 exact cases together would raise a false alarm in 0.3 %.
A negative control has to reach p < 1e-9, which a correct verifier does once in 1e9 runs.
"""

import pytest
import torch

from harness.decoding import verify_kernel as contract
from harness.decoding.layout import to_sibling_layout
from harness.decoding.noise import uniform
from harness.decoding.sampling import SamplingParams, probabilities
from harness.decoding.tree import DraftTree, candidates, level_wise
from harness.decoding.verify import VERIFIERS, Verified, verify_walk

BATCH, LENGTH = 20_000, 3
PLAIN = SamplingParams(temperature=1.0)
COLD = SamplingParams(temperature=0.6)
FILTERED = SamplingParams(temperature=0.8, top_k=4, top_p=0.9, min_p=0.08)


def p_value(toy, output_p_value, filter_oracle, verify, build, params) -> float:
    tokens, _ = toy.decode(verify, build, params, batch=BATCH, length=LENGTH)
    settings = (params.temperature, params.top_k, params.top_p, params.min_p)
    return output_p_value(tokens, toy.law(LENGTH, lambda logits: filter_oracle(logits, *settings)))


@pytest.mark.parametrize("params", [PLAIN, COLD, FILTERED], ids=["plain", "cold", "filtered"])
@pytest.mark.parametrize("kind", ["chain", "tree", "full"])
@pytest.mark.parametrize("name", VERIFIERS)
def test_output_follows_ancestral_sampling(toy, output_p_value, filter_oracle, name, kind, params):
    assert p_value(toy, output_p_value, filter_oracle, VERIFIERS[name], toy.build(kind), params) > 1e-4


@pytest.mark.parametrize("name", VERIFIERS)
def test_mean_accepts_equal_the_trees_path_mass(toy, filter_oracle, name):
    """Public report omlx#3370: every draft rejected at T > 0. Five standard errors: one false alarm in 1.7 million."""
    build = toy.build("tree")
    _, accepts = toy.decode(VERIFIERS[name], build, COLD, batch=BATCH, length=1)
    tree = build(torch.tensor([2]))
    mass = {0: 1.0}
    for node in range(1, int(tree.count_B)):
        parent = int(tree.parent_BN[0, node])
        before = 1 if parent == 0 else int(tree.token_BN[0, tree.parent_BN[0, parent]])
        p = filter_oracle(toy.logits[before, int(tree.token_BN[0, parent])].numpy(), 0.6, 0, 1.0, 0.0)
        mass[node] = mass[parent] * p[int(tree.token_BN[0, node])]
    expected = sum(mass.values()) - 1
    assert 0.5 < expected < 2
    assert abs(float(accepts.double().mean()) - expected) < 5 * float(accepts.double().std()) / BATCH**0.5


# Negative controls: mistakes that real implementations made.


def accept_by_ratio(toy):
    """min(1, p/q) although the draft is an argmax and not a sample of q; residual (p - q)+. It accepts too much."""

    def verify(tree: DraftTree, logits, sampling, index_B) -> Verified:
        p_BNV = probabilities(logits, sampling)
        q_BDV = torch.softmax(toy.draft_logits[tree.token_BN[:, 0]], -1)
        row = torch.arange(len(index_B))
        num = torch.zeros_like(index_B)
        going = torch.ones_like(index_B, dtype=torch.bool)
        for step in range(tree.max_depth):
            token = tree.token_BN[:, step + 1]
            ratio = p_BNV[row, step, token] / q_BDV[row, step, token]
            going = going & (uniform(sampling.stream_B, index_B, step) <= ratio)
            num = num + going
        padded_q = torch.cat([q_BDV, torch.zeros_like(q_BDV[:, :1])], 1)
        left = (p_BNV[row, num] - padded_q[row, num]).clamp(min=0)
        coin = uniform(sampling.stream_B, index_B, 99)
        bonus = torch.searchsorted(left.cumsum(1), coin[:, None] * left.sum(1, keepdim=True))[:, 0].clamp(max=4)
        step = torch.arange(tree.num_nodes)
        return Verified(torch.where(step <= num[:, None], step, -1), num, bonus)

    return verify


def keep_scratch(scratch: torch.Tensor):
    """The kernel's contract called twice with one draft_probs: the second call sees what the first one rejected."""

    def verify(tree: DraftTree, logits, sampling, index_B) -> Verified:
        p_BNV = probabilities(logits, sampling)
        batch, num_nodes, _ = p_BNV.shape
        layout = to_sibling_layout(tree)
        for call in range(2):
            predicts = torch.zeros(batch * num_nodes, dtype=torch.int32)
            accept = torch.zeros(batch, tree.max_depth + 1, dtype=torch.int32)
            num = torch.zeros(batch, dtype=torch.int32)
            nodes = torch.arange(num_nodes) + 100 * call
            coins = uniform(sampling.stream_B[:, None], index_B[:, None], nodes)
            contract.tree_speculative_sampling_target_only(
                predicts, accept, num, tree.token_BN, layout.retrieve_index_BN, layout.retrieve_next_token_BN,
                layout.retrieve_next_sibling_BN, coins, uniform(sampling.stream_B, index_B, 99 + 100 * call), p_BNV,
                scratch[: p_BNV.numel()].view_as(p_BNV),
            )  # fmt: skip
        num_B, row = num.long(), torch.arange(batch)
        path = accept.long() - row[:, None] * num_nodes
        path = torch.where(torch.arange(path.shape[1]) <= num_B[:, None], path, -1)
        return Verified(path, num_B, predicts[accept[row, num_B].long()].long())

    return verify


def duplicated_siblings(toy):
    def build(root_B: torch.Tensor) -> DraftTree:
        logp, ids = candidates(toy.draft_logits[root_B], 5)
        ids = ids.clone()
        ids[..., 1] = ids[..., 0]
        return level_wise(root_B, logp, ids, 6)

    return build


def bonus_of_the_parent(tree: DraftTree, logits, sampling, index_B) -> Verified:
    """The path is right, but the bonus token comes from the distribution before the last accepted draft."""
    got = verify_walk(tree, logits, sampling, index_B)
    row = torch.arange(len(index_B))
    wrong_node = got.path_BW[row, (got.num_accepted_B - 1).clamp(min=0)]
    cdf = probabilities(logits[row, wrong_node], sampling).double().cumsum(1)
    coin = uniform(sampling.stream_B, index_B, 99)
    drawn = torch.searchsorted(cdf, coin[:, None] * cdf[:, -1:])[:, 0]
    return Verified(got.path_BW, got.num_accepted_B, torch.where(got.num_accepted_B > 0, drawn, got.bonus_B))


@pytest.mark.parametrize("mistake", ["ratio", "scratch", "siblings", "parent"])
def test_known_mistakes_are_caught(toy, output_p_value, filter_oracle, mistake):
    verify, build = {
        "ratio": (accept_by_ratio(toy), toy.build("chain")),
        "scratch": (keep_scratch(torch.zeros(BATCH * 7 * 5)), toy.build("tree")),
        "siblings": (VERIFIERS["kernel"], duplicated_siblings(toy)),
        "parent": (bonus_of_the_parent, toy.build("tree")),
    }[mistake]
    assert p_value(toy, output_p_value, filter_oracle, verify, build, PLAIN) < 1e-9
