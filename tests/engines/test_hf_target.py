"""The tree forward and the commit against plain prefills, for every architecture that engine=hf claims.

The oracle of this file is transformers itself: a fresh forward over the committed text, no cache, no mask of ours.
"""

import pytest
import torch

from harness.decoding.loop import decode
from harness.decoding.sampling import SamplingParams, sampling_batch
from harness.decoding.verify import VERIFIERS
from harness.engines.hf_target import HFTarget, refuse_unsupported
from harness.speculative.autoregressive import Autoregressive
from harness.speculative.ddtree import DDTree
from harness.speculative.dflash import DFlash

KINDS = ["llama", "qwen3", "qwen3_moe", "gpt_oss", "deepseek_v3"]
PROMPTS = [[5, 9, 3, 44, 8, 2, 60], [7, 7, 30]]
LAYERS = [0, 1]
BLOCK = 6
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def open_target(path, dtype=torch.float32) -> HFTarget:
    return HFTarget.load(path, dtype=dtype, device=DEVICE, attention="auto", feature_layers=LAYERS)


def run(target, mode, drafter, *, params, prompts=PROMPTS, verifier="coupled", cap=24):
    return decode(
        target,
        drafter,
        mode.build,
        VERIFIERS[verifier],
        prompts,
        sampling_batch(params, DEVICE),
        max_new_tokens=cap,
        num_nodes=mode.num_nodes(BLOCK),
        stop_ids=[],
    )


def params_at(temperature, **filters):
    return [SamplingParams(temperature=temperature, stream=stream, **filters) for stream in range(len(PROMPTS))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.3])
def test_modes_equal_autoregressive_token_for_token(tiny_checkpoint, oracle, kind, temperature):
    target = open_target(tiny_checkpoint(kind))
    params = params_at(temperature)
    plain = [r.output_ids for r in run(target, Autoregressive(), None, params=params)]
    for mode in (DFlash(), DDTree(tree_budget=11), DDTree(tree_budget=9, spine=True)):
        results = run(target, mode, oracle(BLOCK, PROMPTS, plain), params=params)
        assert [r.output_ids for r in results] == plain
        accepted = sum(s.num_accepted for r in results for s in r.rounds)
        assert accepted > 10  # the comparison is not one of empty paths


@pytest.mark.parametrize("filters", [dict(top_p=0.8), dict(min_p=0.1), dict(top_k=5, top_p=0.9, min_p=0.02)])
def test_filters_keep_the_equality(tiny_checkpoint, oracle, filters):
    target = open_target(tiny_checkpoint("qwen3"))
    params = params_at(1.0, **filters)
    plain = [r.output_ids for r in run(target, Autoregressive(), None, params=params)]
    results = run(target, DDTree(tree_budget=11), oracle(BLOCK, PROMPTS, plain), params=params)
    assert [r.output_ids for r in results] == plain


@pytest.mark.parametrize("kind", KINDS)
def test_committed_rows_and_features_equal_a_fresh_prefill(tiny_checkpoint, oracle, kind):
    """Cases 18 and 19: after many rounds with non-first branches, state is that of a prefill of the same text."""
    target, params = open_target(tiny_checkpoint(kind)), params_at(0.8)
    plain = [r.output_ids for r in run(target, Autoregressive(), None, params=params)]
    drafter = oracle(BLOCK, PROMPTS, plain)
    results = run(target, DDTree(tree_budget=11), drafter, params=params)
    assert not took_first_children_only(target, plain, params, oracle)
    fresh = open_target(tiny_checkpoint(kind))
    for b, (prompt, result) in enumerate(zip(PROMPTS, results, strict=True)):
        text = prompt + result.output_ids[:-1]  # the last token is a root: its row is not written yet
        _, feature, length = fresh.prefill([text], len(text))
        assert int(target.cache.length_B[b]) == int(length[0]) == len(text)
        for layer in target.cache.keys:
            for buffers, expected in ((target.cache.keys, fresh.cache.keys), (target.cache.values, fresh.cache.values)):
                torch.testing.assert_close(
                    buffers[layer][b, :, : len(text)], expected[layer][0, :, : len(text)], atol=2e-4, rtol=1e-3
                )
        torch.testing.assert_close(torch.cat(drafter.features[b]), feature[0], atol=2e-4, rtol=1e-3)


def took_first_children_only(target, plain, params, oracle) -> bool:
    """Whether every accepted node was its parent's first child; then the test above would see no reordering."""
    seen = []
    verify = VERIFIERS["coupled"]

    def spy(tree, logits, sampling, index):
        verified = verify(tree, logits, sampling, index)
        for b, num in enumerate(verified.num_accepted_B.tolist()):
            for above, node in zip(verified.path_BW[b, :num], verified.path_BW[b, 1 : num + 1], strict=True):
                first = (tree.parent_BN[b] == above).nonzero()[0, 0]
                seen.append(int(node) == int(first))
        return verified

    mode = DDTree(tree_budget=11)
    drafter = oracle(BLOCK, PROMPTS, plain)
    decode(
        target, drafter, mode.build, spy, PROMPTS, sampling_batch(params, DEVICE),
        max_new_tokens=24, num_nodes=12, stop_ids=[],
    )  # fmt: skip
    return all(seen)


def test_keeping_the_wrong_row_is_seen(tiny_checkpoint, oracle):
    """Negative control: commit the first nodes of the tree in place of the accepted path."""
    target, params = open_target(tiny_checkpoint("llama")), params_at(0.8)
    plain = [r.output_ids for r in run(target, Autoregressive(), None, params=params)]
    right = target.commit
    target.commit = lambda path, num: right(torch.arange(path.shape[1], device=DEVICE).expand_as(path), num)
    results = run(target, DDTree(tree_budget=11), oracle(BLOCK, PROMPTS, plain), params=params)
    assert [r.output_ids for r in results] != plain


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_every_node_equal_a_forward_over_its_path(tiny_checkpoint, kind):
    """Each node's logits against transformers' own forward over prompt + path, without cache or mask."""
    target = open_target(tiny_checkpoint(kind))
    target.prefill(PROMPTS, 64)
    root = torch.tensor([11, 12], device=DEVICE)
    logits = torch.randn(2, BLOCK - 1, 101, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    tree = DDTree(tree_budget=10).build(root, logits)
    got, _ = target.forward(tree, max(map(len, PROMPTS)))
    for b, prompt in enumerate(PROMPTS):
        for node in range(int(tree.count_B[b])):
            path, at = [], node
            while at >= 0:
                path.append(int(tree.token_BN[b, at]))
                at = int(tree.parent_BN[b, at])
            with torch.no_grad():
                expected = target.model(torch.tensor([prompt + path[::-1]], device=DEVICE)).logits[0, -1]
            torch.testing.assert_close(got[b, node], expected, atol=2e-4, rtol=1e-3)


def test_a_batch_equals_its_samples_alone(tiny_checkpoint, oracle):
    target, params = open_target(tiny_checkpoint("llama")), params_at(1.0)
    together = [r.output_ids for r in run(target, Autoregressive(), None, params=params)]
    for b, prompt in enumerate(PROMPTS):
        [alone] = run(target, Autoregressive(), None, params=params[b : b + 1], prompts=[prompt])
        assert alone.output_ids == together[b]


def test_a_recurrent_target_is_refused_by_name():
    class Config:
        layer_types = ("linear_attention", "full_attention")

    with pytest.raises(ValueError, match="linear_attention"):
        refuse_unsupported(Config())


def test_an_empty_prompt_is_refused(tiny_checkpoint):
    with pytest.raises(ValueError, match="prompt has no tokens"):
        open_target(tiny_checkpoint("llama")).prefill([[3], []], 8)
