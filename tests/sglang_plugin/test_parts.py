"""The plugin's parts that need no SGLang, against small direct forms of the same."""

from types import SimpleNamespace

import pytest
import torch

from harness.decoding.noise import stream_key
from harness.decoding.sampling import SamplingParams, sampling_batch
from harness.decoding.tree import candidates, level_wise
from harness.decoding.verify import VERIFIERS, verify_coupled
from harness.sglang_plugin import compat, mask
from harness.sglang_plugin.marginals import draft_candidates, merge_shards
from harness.sglang_plugin.options import PluginOptions, read_options
from harness.sglang_plugin.refusals import TOP_K_ALL, check_request, check_server_args
from harness.sglang_plugin.round import RoundBuffers, judge, plant
from harness.sglang_plugin.rows import SamplingRows

GENERATOR = torch.Generator().manual_seed(0)


def request(rid="a", prompt=3, **given):
    usual = dict(
        temperature=1.0,
        top_k=TOP_K_ALL,
        top_p=1.0,
        min_p=0.0,
        sampling_seed=None,
        json_schema=None,
        regex=None,
        ebnf=None,
        structural_tag=None,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        repetition_penalty=1.0,
        min_new_tokens=0,
        logit_bias=None,
        n=1,
    )
    own = dict(return_logprob=False, return_hidden_states=False, custom_logit_processor=None)
    return SimpleNamespace(
        rid=rid,
        origin_input_ids=list(range(prompt)),
        sampling_params=SimpleNamespace(**usual | {k: v for k, v in given.items() if k not in own}),
        **own | {k: v for k, v in given.items() if k in own},
    )


def random_tree(batch=3, budget=9, depth=4, vocab=11):
    logp, ids = candidates(torch.randn(batch, depth, vocab, generator=GENERATOR), vocab)
    return level_wise(torch.arange(batch), logp, ids, budget)


def test_mask_cells_stand_where_the_kernel_reads_them():
    """Full layout, built by concatenation: N rows of (prefix + N) cells a request."""
    tree = random_tree()
    mask_BNN, prefix = tree.ancestor_mask_BNN(), [5, 1, 8]
    cells = torch.zeros(mask.numel(prefix, 10), dtype=torch.uint8)
    mask.write(cells, mask_BNN, torch.tensor(prefix))
    rows = [torch.cat([torch.zeros(10, n), m.float()], dim=1).flatten() for n, m in zip(prefix, mask_BNN, strict=True)]
    assert torch.equal(cells.float(), torch.cat(rows))


def test_buffers_hold_a_round_and_judge_as_the_verifier_does():
    """Through the static buffers, padded with an old batch's rows, the outcome is that of a direct verification."""
    buffers = RoundBuffers(capacity=6, num_nodes=10, block_size=5, device="cpu")
    old = random_tree(batch=6)
    buffers.put_tree(old, torch.arange(6))
    logits_BDV = torch.randn(3, 4, 11, generator=GENERATOR)
    prefix_B, root_B = torch.tensor([7, 3, 12]), torch.tensor([4, 0, 9])
    plant(buffers, root_B, prefix_B, lambda k: candidates(logits_BDV, k), spine=False)
    direct = level_wise(root_B, *candidates(logits_BDV, 9), 9)
    assert torch.equal(buffers.tree(3).parent_BN, direct.parent_BN)
    assert torch.equal(buffers.position[:3], prefix_B[:, None] + direct.depth_BN)
    reqs = [request("a", 7, sampling_seed=1), request("b", 2, temperature=0.5, top_p=0.9), request("c", 12, top_k=1)]
    rows = SamplingRows(6, "cpu", seed=5).update(reqs)
    target_BNV = 2 * torch.randn(3, 10, 11, generator=GENERATOR)
    for name, verify in VERIFIERS.items():
        judge(buffers, target_BNV.flatten(0, 1), prefix_B, rows, verify)
        got = buffers.verdict(3)
        params = [
            SamplingParams(stream=1),
            SamplingParams(temperature=0.5, top_p=0.9, stream=stream_key(5, "sglang", "b", 0)),
            SamplingParams(temperature=0.0),
        ]
        expected = verify(direct, target_BNV, sampling_batch(params), torch.tensor([0, 1, 0]))
        assert got.count_B.tolist() == (expected.num_accepted_B + 1).tolist(), name
        for b, count in enumerate(got.count_B.tolist()):
            path = expected.path_BW[b, :count].tolist()
            assert got.path_BK[b, :count].tolist() == path
            assert got.token_BK[b, :count].tolist() == [
                *direct.token_BN[b, path[1:]].tolist(),
                int(expected.bonus_B[b]),
            ]


def test_a_captured_batch_equals_a_plain_one():
    """The graph's flags (greedy and drawn requests mixed, no filter) lose nothing where no filter is asked for."""
    rows = SamplingRows(4, "cpu", seed=1)
    now = rows.update([request("a", temperature=0.7), request("b", top_k=1)])
    assert now.plain
    tree, logits = random_tree(batch=2), torch.randn(2, 10, 11, generator=GENERATOR)
    index_B = torch.tensor([3, 4])
    one = verify_coupled(tree, logits, now.sampling, index_B)
    two = verify_coupled(tree, logits, rows.captured(2).sampling, index_B)
    assert torch.equal(one.path_BW, two.path_BW)
    assert torch.equal(one.bonus_B, two.bonus_B)
    assert not rows.update([request("c", min_p=0.1)]).plain


def test_rows_follow_the_composition():
    rows = SamplingRows(4, "cpu", seed=1)
    one, two = request("a", 3), request("b", 5)
    first = rows.update([one, two])
    assert rows.update([one, two]) is first
    assert rows.update([two, one]).prompt_len_B.tolist() == [5, 3]
    again = rows.update([request("b", 5, temperature=0.5), one])  # a request id used again
    assert again.sampling.temperature_B.tolist() == [0.5, 1.0]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_split_heads_give_the_whole_heads_candidates(ranks):
    """Ties across ranks too: by lower id."""
    logits = torch.randn(2, 3, 12, generator=GENERATOR).round(decimals=1)
    shards = logits.split(12 // ranks, dim=-1)
    tops = [s.topk(min(5, 12 // ranks), dim=-1) for s in (x - 1e-6 * torch.arange(x.shape[-1]) for x in shards)]
    ids = [t.indices + place * 12 // ranks for place, t in enumerate(tops)]
    values = [s.gather(-1, t.indices) for s, t in zip(shards, tops, strict=True)]
    mass = torch.cat([s.logsumexp(-1, keepdim=True) for s in shards], dim=-1)
    logp, found = merge_shards(torch.cat(values, -1), torch.cat(ids, -1), mass, 4)
    expected_logp, expected = candidates(logits, 4)
    assert torch.equal(found, expected)
    assert torch.allclose(logp, expected_logp)


class Ranks:
    """What a tensor-parallel group does, in one process: `draft_candidates` runs once a rank, then sees all parts."""

    def __init__(self, heads):
        self.heads, self.world_size, self.parts, self.calls = heads, len(heads), [], 0

    def all_gather(self, part, dim):
        if self.parts:  # the second time: everything that was given
            self.calls += 1
            return torch.cat([given[self.calls - 1] for given in self.parts], dim=dim)
        self.given.append(part)
        return torch.zeros(*part.shape[:-1], part.shape[-1] * self.world_size, dtype=part.dtype)

    def run(self, hidden, k):
        everything = []
        for head in self.heads:
            self.given = []
            draft_candidates(hidden, head, k, self)
            everything.append(self.given)
        self.parts = everything
        return draft_candidates(hidden, self.heads[0], k, self)


@pytest.mark.parametrize("sizes", [(8, 4), (12, 0), (5, 7)])
def test_ranks_with_unequal_parts_of_the_vocabulary(sizes):
    """A padded vocabulary split in two: one rank may hold nothing real. The same candidates as the whole head's."""
    weight, hidden = torch.randn(12, 6, generator=GENERATOR), torch.randn(2, 3, 6, generator=GENERATOR)
    heads = []
    for size, first in zip(sizes, (0, sizes[0]), strict=True):
        padded = torch.cat([weight[first : first + size], 9 * torch.ones(16 - size, 6)])
        heads.append(
            SimpleNamespace(
                weight=padded, shard_indices=SimpleNamespace(num_org_elements=size, org_vocab_start_index=first)
            )
        )
    logp, ids = Ranks(heads).run(hidden, 9)
    expected_logp, expected = candidates(hidden @ weight.T, 9)
    assert torch.equal(ids, expected)
    assert torch.allclose(logp, expected_logp, atol=1e-5)


def test_padded_rows_of_a_head_are_never_drafted():
    weight = torch.cat([torch.randn(10, 6, generator=GENERATOR), 100 * torch.ones(6, 6)])
    shard = SimpleNamespace(num_org_elements=10, org_vocab_start_index=0)
    head = SimpleNamespace(weight=weight, shard_indices=shard)
    _, ids = draft_candidates(torch.rand(1, 2, 6, generator=GENERATOR), head, 16)
    assert ids.shape[-1] == 10
    assert ids.max() < 10


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (dict(return_logprob=True), "return_logprob"),
        (dict(return_hidden_states=True), "return_hidden_states"),
        (dict(regex="a"), "grammar"),
        (dict(presence_penalty=1), "presence_penalty"),
        (dict(n=2, sampling_seed=1), "n > 1"),
        (dict(temperature=1e-6), "sampling.temperature"),
        (dict(min_p=2.0), "sampling.min_p"),
    ],
)
def test_requests_are_refused_by_name(given, word):
    assert word in check_request(request(**given))


def test_usual_requests_pass():
    for given in (dict(), dict(min_p=0.1), dict(top_k=-1), dict(top_k=1), dict(temperature=0.6, top_k=20, top_p=0.9)):
        assert check_request(request(**given)) is None


ARGS = dict(
    device="cuda",
    attention_backend="triton",
    speculative_draft_model_path="draft",
    speculative_num_draft_tokens=16,
    page_size=1,
    pp_size=1,
)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (dict(attention_backend="fa3"), ["--attention-backend", "triton"]),
        (dict(attention_backend=None), ["--attention-backend", "triton"]),
        (dict(decode_attention_backend="flashinfer"), ["--decode-attention-backend", "triton"]),
        (dict(device="npu"), ["npu", "cuda"]),
        (dict(speculative_num_draft_tokens=7), ["--speculative-num-draft-tokens", "8"]),
        (dict(page_size=16), ["--page-size"]),
        (dict(pp_size=2), ["--pp-size"]),
        (dict(enable_dp_attention=True), ["--enable-dp-attention"]),
        (dict(speculative_draft_window_size=64), ["--speculative-draft-window-size"]),
        (dict(speculative_draft_model_path=None), ["--speculative-draft-model-path"]),
    ],
)
def test_server_options_are_refused_by_name(given, words):
    check_server_args(SimpleNamespace(**ARGS), block_size=8)
    with pytest.raises(ValueError, match="DDTREE") as refused:
        check_server_args(SimpleNamespace(**ARGS | given), block_size=8)
    assert all(word in str(refused.value) for word in words)


def test_options():
    assert read_options({}) == PluginOptions("coupled", False)
    assert read_options(dict(DDTREE_VERIFIER="walk", DDTREE_SPINE="1")) == PluginOptions("walk", True)
    for wrong in (dict(DDTREE_VERIFIER="greedy"), dict(DDTREE_SPINE="yes")):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            read_options(wrong)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [("0.5.17", "ok"), ("0.5.23", "warn"), ("0.5.20", "warn"), ("0.5.16", "refuse"), ("0.6.0", "refuse")],
)
def test_versions_are_judged_by_name(found, verdict):
    judged, message = compat.judge(found)
    assert judged == verdict
    assert verdict == "ok" or found in message
