"""The fused stack and the pipelined rounds against the models and the loop they stand for. float32 throughout."""

import time

import pytest
import torch

from harness.decoding.loop import decode, slots_needed
from harness.decoding.round import sampler
from harness.decoding.sampling import SamplingParams, sampling_batch
from harness.decoding.tree import DraftTree, candidates, level_wise
from harness.decoding.verify import VERIFIERS
from harness.engines.hf_target import HFTarget
from harness.speculative.autoregressive import Autoregressive
from harness.speculative.ddtree import DDTree
from harness.speculative.dflash import DFlash
from tests.interpreter import DEVICE

KINDS = ["llama", "qwen3"]
PROMPTS = [[5, 9, 3, 44, 8, 2, 60], [7, 7, 30]]
LAYERS = [0, 1]
BLOCK = 6
VERIFY = VERIFIERS["coupled"]
SAMPLE = sampler(VERIFY)


def open_target(kind, path):
    from harness.engines.hf_fused import FusedTarget

    kind = {"plain": HFTarget, "fused": FusedTarget}[kind]
    return kind.load(path, dtype=torch.float32, device=DEVICE, attention="auto", feature_layers=LAYERS)


def a_tree(batch: int, budget: int) -> DraftTree:
    torch.manual_seed(3)
    logp, ids = candidates(torch.randn(batch, BLOCK - 1, 101) * 2, budget)
    tree = level_wise(torch.arange(batch) + 4, logp, ids, budget)
    moved = {name: value.to(DEVICE) for name, value in vars(tree).items() if isinstance(value, torch.Tensor)}
    return DraftTree(**moved, depth_limit=tree.depth_limit)


@pytest.mark.parametrize("budget", [2, 9])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_tree_forward_and_its_commit_equal_the_plain_models(tiny_checkpoint, kind, budget):
    plain, fused = (open_target(way, tiny_checkpoint(kind)) for way in ("plain", "fused"))
    tree = a_tree(len(PROMPTS), budget)
    path = torch.tensor([[0, 2], [0, 1]], device=DEVICE)
    num = torch.tensor([2, 1], device=DEVICE)
    found = []
    for target in (plain, fused):
        target.prefill(PROMPTS, 120)
        first = target.forward(tree, 7)
        target.commit(path, num)
        found.append((*first, *target.forward(tree, 10)))
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=2e-4)


def real_drafter(target, folder):
    from transformers import Qwen3Config

    from harness.drafters.checkpoint import DrafterConfig, write_checkpoint
    from harness.drafters.dflash import DFlashDrafter
    from harness.drafters.network import DFlashNetwork

    torch.manual_seed(1)
    shape = Qwen3Config(
        hidden_size=32, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_hidden_layers=2, vocab_size=101,
    )  # fmt: skip
    config = DrafterConfig(
        network=shape, block_size=BLOCK, mask_token_id=7, target_layer_ids=LAYERS, num_target_layers=3
    )
    network = DFlashNetwork(shape, len(LAYERS) * 32)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    write_checkpoint(folder, config, network.state_dict(), torch.float32)
    return DFlashDrafter.load(
        folder, target_config=target.config, embedding=target.embedding, lm_head=target.lm_head,
        dtype=torch.float32, device=DEVICE,
    )  # fmt: skip


@torch.inference_mode()
def test_drafts_equal_the_plain_drafters(tiny_checkpoint, tmp_path):
    from harness.engines.hf_fused import FusedDrafter

    target = open_target("plain", tiny_checkpoint("llama"))
    plain = real_drafter(target, tmp_path)
    torch.manual_seed(2)
    prompt, rows = torch.randn(2, 5, 64, device=DEVICE), torch.randn(2, 3, 64, device=DEVICE)
    root = torch.tensor([9, 50], device=DEVICE)
    found = []
    for make in (lambda drafter: drafter, FusedDrafter):  # the second takes the weights over
        drafter = make(plain)
        state = drafter.new_state(2, 40)
        drafter.extend(state, prompt, torch.tensor([5, 2], device=DEVICE))
        first = drafter.propose(state, root, num_slots=5 + BLOCK)
        drafter.extend(state, rows, torch.tensor([1, 3], device=DEVICE))
        found.append((first, drafter.propose(state, root, num_slots=8 + BLOCK), state.length))
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=2e-4)


def run(target, mode, drafter, params, runner=None, cap=20, stop_ids=(), prompts=PROMPTS):
    num_nodes = mode.num_nodes(BLOCK)
    return decode(
        target,
        drafter,
        mode.build,
        VERIFY,
        prompts,
        sampling_batch(params, DEVICE),
        max_new_tokens=cap,
        num_nodes=num_nodes,
        stop_ids=list(stop_ids),
        slots=slots_needed(max(map(len, prompts)), 24, num_nodes, BLOCK),
        sample=SAMPLE,
        runner=runner,
    )


def params_at(*temperatures):
    return [SamplingParams(temperature=t, stream=stream) for stream, t in enumerate(temperatures)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_fused_target_decodes_the_same_tokens(tiny_checkpoint, oracle, kind):
    plain, fused = (open_target(way, tiny_checkpoint(kind)) for way in ("plain", "fused"))
    params, cap = params_at(0.0, 1.1), 20 if DEVICE == "cuda" else 4  # temperatures of their own, in one batch
    wanted = [r.output_ids for r in run(plain, Autoregressive(), None, params, cap=cap)]
    for mode in (Autoregressive(), DDTree(tree_budget=5)):
        drafter = oracle(BLOCK, PROMPTS, wanted) if mode.needs_drafter else None
        assert [r.output_ids for r in run(fused, mode, drafter, params, cap=cap)] == wanted


class AtOnce:
    """In place of graphs where there is no CUDA: work is done when it is asked for."""

    def _prepare(self, report_BX):
        self._host = [torch.empty_like(report_BX) for _ in range(2)]

    def _rehearse(self, work):
        work()

    def _record(self, work):
        return work

    def _send(self, report_BX, side):
        self._host[side].copy_(report_BX)

    def _receive(self, side):
        return self._host[side].tolist()

    def _drain(self):
        pass

    def _mark(self):
        return time.perf_counter()

    def _seconds_between(self, begin, end):
        return end - begin


def pipelined():
    """The runner itself on CUDA; elsewhere the runner with `AtOnce` below it."""
    from harness.engines.hf_graphs import GraphRunner

    return GraphRunner() if DEVICE == "cuda" else type("AtOnceRunner", (AtOnce, GraphRunner), {})()


def models_in_place(path, folder):
    """Target and drafter whose buffers stay: the fused ones on CUDA. In the interpreter a decode takes minutes, so on
    the CPU the plain models keep their caches."""
    from harness.decoding.cache import PositionCache
    from harness.drafters.dflash import DrafterState

    if DEVICE == "cuda":
        from harness.engines.hf_fused import FusedDrafter

        target = open_target("fused", path)
        return target, FusedDrafter(real_drafter(target, folder))
    caches: dict[tuple, PositionCache] = {}

    def keep(owner: str, batch: int, slots: int) -> PositionCache:
        cache = caches.setdefault((owner, batch, slots), PositionCache(batch, slots, DEVICE))
        cache.length_B.zero_()
        return cache

    target = open_target("plain", path)
    drafter = real_drafter(target, folder)
    target._new_cache = lambda batch, slots: keep("target", batch, slots)
    drafter.new_state = lambda batch, slots: DrafterState(keep("drafter", batch, slots))
    return target, drafter


@pytest.mark.parametrize(
    "mode", [Autoregressive(), DFlash(), DDTree(tree_budget=11)], ids=lambda mode: type(mode).__name__
)
def test_pipelined_rounds_give_the_stepwise_results(tiny_checkpoint, tmp_path, mode):
    """Batch after batch through one runner: other prompts, temperatures, caps and stops are copied in."""
    target, drafter = models_in_place(tiny_checkpoint("qwen3"), tmp_path)
    drafter = drafter if mode.needs_drafter else None
    runner = pipelined()
    batches = [
        (PROMPTS, params_at(0.0, 0.9), 20),
        ([[11, 12, 13, 14], [90, 3, 5, 6, 7, 8, 9]], params_at(1.5, 0.3), 13),
        (PROMPTS, params_at(0.0, 0.9), 1),
    ]
    captured = []
    for prompts, params, cap in batches:
        plain = run(target, mode, drafter, params, cap=cap, prompts=prompts)
        stop = plain[0].output_ids[len(plain[0].output_ids) // 2]
        for stop_ids in ([stop], [100]):
            wanted = run(target, mode, drafter, params, cap=cap, prompts=prompts, stop_ids=stop_ids)
            got = run(target, mode, drafter, params, runner, cap=cap, prompts=prompts, stop_ids=stop_ids)
            for one, other in zip(wanted, got, strict=True):
                assert (one.output_ids, one.finish_reason) == (other.output_ids, other.finish_reason)
                assert one.rounds == other.rounds
        captured.append(list(runner._graphs))
    assert len(captured[0]) == 1  # one capture serves all
    assert captured[0] == captured[-1]


def test_batch_one_gives_the_batchs_tokens(tiny_checkpoint, tmp_path):
    target, drafter = models_in_place(tiny_checkpoint("llama"), tmp_path)
    mode = DDTree(tree_budget=11)
    params = params_at(0.7, 0.0)
    together = run(target, mode, drafter, params, pipelined())
    for b, prompt in enumerate(PROMPTS):
        [alone] = run(target, mode, drafter, params[b : b + 1], pipelined(), prompts=[prompt])
        assert alone.output_ids == together[b].output_ids


def test_what_has_no_fused_path_says_why(tiny_checkpoint):
    from transformers import AutoConfig

    from harness.engines.hf_fused import why_not
    from harness.engines.hf_models import why_no_graphs

    reasons = {kind: why_not(AutoConfig.from_pretrained(tiny_checkpoint(kind))) for kind in ("qwen3_moe", "gpt_oss")}
    assert "qwen3_moe has no fused path" in reasons["qwen3_moe"]
    path = tiny_checkpoint("llama")
    assert why_no_graphs("auto", "auto", "coupled", path, torch.bfloat16, "cpu") == "they need a CUDA device"
    assert why_no_graphs("off", "auto", "coupled", path, torch.bfloat16, "cuda") == "engine.graphs=off"
    with pytest.raises(ValueError, match=r"engine\.graphs=on: no kernels for float64"):
        why_no_graphs("on", "auto", "coupled", path, torch.float64, "cuda")
    assert why_no_graphs("auto", "auto", "coupled", path, torch.bfloat16, "cuda") is None


@pytest.mark.parametrize("verifier", ["coupled", "kernel"] if DEVICE == "cuda" else ["coupled"])
def test_a_session_decodes_the_same_with_graphs(tiny_checkpoint, tmp_path, monkeypatch, verifier):
    """Three samples in batches of two: the last batch is filled up, warm-up and profile leave nothing behind."""
    from harness.config import HardwareConfig
    from harness.engines import hf_graphs, hf_models
    from harness.engines.base import Request, Sampling, Setup
    from harness.engines.hf import HFEngine

    path = tiny_checkpoint("llama")
    real_drafter(open_target("plain", path), tmp_path)
    monkeypatch.setattr(hf_graphs, "SMALLEST_BOUND", 2)  # several bounds, so that one is captured outside a decode
    if DEVICE == "cpu":
        monkeypatch.setattr(hf_models, "_obstacle", lambda *_: None)
        for name in ("GraphRunner", "StagedRunner"):
            monkeypatch.setattr(hf_graphs, name, type(name, (AtOnce, getattr(hf_graphs, name)), {}))
    hardware = HardwareConfig(name="here", device=DEVICE)
    setup = Setup(
        target=path,
        drafter=tmp_path,
        mode=DDTree(tree_budget=3, verifier=verifier),
        hardware=hardware,
        sampling=Sampling(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, max_new_tokens=3),
        stop_ids=[],
    )
    requests = [Request(sample_id=str(i), repeat=0, prompt_ids=[5 + i, 9, 3], stream=i) for i in range(3)]
    found = {}
    for graphs in ("off", "on"):
        session = HFEngine(dtype="float32", graphs=graphs, batch_size=2).open(setup)
        assert session.resolved["graph_mode"] == ("none" if graphs == "off" else "rounds")
        timed = list(session.generate(requests))
        [seen] = session.generate(requests[:1], profile=True)
        assert set(seen.stage_s) == {"prefill", "draft", "build", "verify", "sample", "commit"}
        assert [generation.error for generation in (*timed, seen)] == [None] * 4
        found[graphs] = [(g.output_ids, [r.num_emitted for r in g.rounds]) for g in (*timed, seen)]
        session.close()
    assert found["on"] == found["off"]
    assert found["on"][0] == found["on"][3]  # the profile pass decodes the same again
