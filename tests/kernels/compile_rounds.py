"""Compiles every kernel of a round for an H200, where there may be no GPU: `python -m tests.kernels.compile_rounds`.

The interpreter accepts what the compiler refuses (a variable that changes its type in a loop), so the tests that run in
it do not suffice. Rounds of small models run here as on CUDA, except that a launch compiles and stops: outputs stay
zero. One line for each compiled kernel: name, bytes of shared memory, number of fused multiply-adds.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from harness.decoding.tree import DraftTree
from harness.decoding.verify import Verified
from harness.kernels import choice, verify
from harness.sglang_plugin import round as plugin_round
from harness.speculative import ddtree, dflash

SM_90 = GPUTarget("cuda", 90, 32)
compiled: dict[str, Any] = {}


def compile_only() -> None:
    """From now on a launch compiles for SM_90, and memory that nobody has written is zero."""
    device = SimpleNamespace(
        get_current_device=lambda: 0, get_current_stream=lambda _: 0, get_current_target=lambda: SM_90
    )
    triton.runtime.driver.set_active(device)
    launch = JITFunction.run

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        kernel = launch(self, *arguments, grid=grid, warmup=True, **named)
        compiled[kernel.hash] = kernel

    JITFunction.run = run
    for module in (ddtree, dflash, plugin_round):
        module.searchers = lambda *_: (choice.kernels().candidates, choice.kernels().build_tree)  # as on a GPU
    verify.accept_by_kernel = nothing_accepted  # sgl-kernel's own comes compiled; its torch form needs a tree
    torch.empty, torch.empty_like, torch.Tensor.new_empty = torch.zeros, torch.zeros_like, torch.Tensor.new_zeros


def nothing_accepted(tree: DraftTree, *_: Any) -> Verified:
    nothing_B = torch.zeros_like(tree.count_B)
    return Verified(torch.zeros_like(tree.token_BN[:, : tree.depth_limit + 1]), nothing_B, nothing_B)


@torch.inference_mode()
def rounds(shape: Any, dtype: torch.dtype, verifier: str, batch: int, modes: tuple[str, ...]) -> None:
    from benchmarks.rounds_ours import our_mode
    from benchmarks.shapes import random_drafter, random_target
    from harness.decoding.loop import slots_needed
    from harness.decoding.round import Round, RoundState
    from harness.decoding.sampling import SamplingParams, sampling_batch
    from harness.engines.hf_fused import FusedDrafter, FusedTarget
    from harness.engines.hf_models import samplers

    model = random_target(shape, "cpu", dtype)
    drafter = FusedDrafter(random_drafter(shape, model, "cpu", dtype))
    _, sample = samplers(verifier, fused=True)
    sampling = sampling_batch([SamplingParams(1.0, stream=b) for b in range(batch)], "cpu")
    for name in modes:
        mode = our_mode(name, verifier)
        target = FusedTarget(model, feature_layers=list(shape.target_layer_ids) if mode.needs_drafter else [])
        slots = slots_needed(1000, 0, 512, shape.block_size)
        _, feature, length = target.prefill([[3, 4, 5]] * batch, slots)
        state = RoundState.new(batch, shape.block_size if mode.needs_drafter else 1, [], 10**9, torch.device("cpu"))
        drafting = drafter.new_state(batch, slots) if mode.needs_drafter else None
        if drafting:
            drafter.extend(drafting, feature, length)
        used = drafter if mode.needs_drafter else None
        num_nodes = mode.num_nodes(shape.block_size)
        a_round = Round(target, used, drafting, mode.build, sample, sampling, state, num_nodes)
        for stage in Round.STAGES:
            if stage != "draft" or used:
                getattr(a_round, stage)(900)


@torch.inference_mode()
def plugin_rounds(verifier: str, batch: int) -> None:
    """What SGLang's graphs end with, at the shapes of SmolLM2."""
    from harness.decoding.tree import candidates
    from harness.sglang_plugin.rows import SamplingRows

    depth, vocab, budget = 7, 49152, 15
    buffers = plugin_round.RoundBuffers(batch, budget + 1, depth + 1, "cpu")
    prefix_B = torch.full((batch,), 9)
    logits_BDV = torch.zeros(batch, depth, vocab, dtype=torch.bfloat16)
    plugin_round.plant(buffers, prefix_B, prefix_B, lambda k: candidates(logits_BDV, k), False)
    logits_MV = torch.zeros(batch * (budget + 1), vocab)
    verify_by_kernels = choice.kernels().verifiers[verifier]
    plugin_round.judge(buffers, logits_MV, prefix_B, SamplingRows(batch, "cpu", 0).captured(batch), verify_by_kernels)


def main() -> None:
    compile_only()
    plugin_rounds("coupled", 1)
    plugin_rounds("kernel", 4)
    from benchmarks.shapes import SHAPES

    llama = replace(SHAPES["smollm2-135m"], layers=2, target_layer_ids=(0, 1), drafter_layers=1)
    qwen3 = replace(
        SHAPES["qwen3-8b"], layers=2, target_layer_ids=(0, 1), drafter_layers=1,
        hidden=4096, intermediate=1024, heads=8, kv_heads=2, vocab=33000, mask_token_id=7,
    )  # fmt: skip
    rounds(llama, torch.bfloat16, "coupled", 1, ("autoregressive", "dflash", "ddtree-15", "ddtree-255"))
    rounds(llama, torch.float32, "kernel", 4, ("autoregressive", "ddtree-31"))
    rounds(qwen3, torch.bfloat16, "kernel", 1, ("autoregressive", "ddtree-63"))
    rounds(qwen3, torch.bfloat16, "coupled", 4, ("autoregressive", "ddtree-255"))
    for kernel in compiled.values():
        print(kernel.metadata.name, kernel.metadata.shared, kernel.asm["ptx"].count("fma.rn.f32"))


if __name__ == "__main__":
    main()
