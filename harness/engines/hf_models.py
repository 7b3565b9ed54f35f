"""What engine=hf loads: target and drafter, as transformers runs them or on the fused stack, and what samples.

The fused stack decodes a whole round as one CUDA graph. It knows a few architectures; every other one, the CPU, and
whoever asks for a particular attention get the plain loop, and the run says so.
"""

from pathlib import Path
from typing import Any

import torch

from harness.decoding.round import Sampler, sampler
from harness.decoding.verify import VERIFIERS, Verifier
from harness.engines.base import Setup
from harness.engines.hf_target import HFTarget

FUSED_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def why_no_graphs(
    asked: str, attention: str, verifier: str, target: Path, dtype: torch.dtype, device: str
) -> str | None:
    """The reason to decode without graphs, None to decode with them.

    Raises ValueError for engine.graphs=on where they cannot be had.
    """
    if asked == "off":
        return "engine.graphs=off"
    reason = _obstacle(attention, verifier, target, dtype, device)
    if asked == "on" and reason:
        raise ValueError(f"engine.graphs=on: {reason}. Set engine.graphs=auto")
    return reason


def _obstacle(attention: str, verifier: str, target: Path, dtype: torch.dtype, device: str) -> str | None:
    if device != "cuda":
        return "they need a CUDA device"
    if verifier == "walk":
        return "speculative.verifier=walk runs on the host"
    if attention != "auto":
        return f"engine.attention={attention} is asked for"
    if dtype not in FUSED_DTYPES:
        return f"no kernels for {str(dtype).removeprefix('torch.')}"
    from transformers import AutoConfig

    try:
        from harness.engines.hf_fused import why_not
    except ImportError as error:
        return f"Triton cannot be imported ({error})"
    return why_not(AutoConfig.from_pretrained(target).get_text_config())


def load_models(setup: Setup, dtype: torch.dtype, attention: str, *, fused: bool) -> tuple[HFTarget, Any]:
    """The target, and the drafter where the mode needs one. Raises ValueError when they do not fit each other."""
    device = setup.hardware.device
    layers: list[int] = []
    if setup.mode.needs_drafter:
        from harness.drafters.dflash import DFlashDrafter, read_config

        if setup.drafter is None:
            raise ValueError("model.drafter: this mode needs a drafter. Set model.drafter=PATH or a hub id")
        layers = read_config(setup.drafter).target_layer_ids
    kind = HFTarget
    if fused:
        from harness.engines.hf_fused import FusedDrafter, FusedTarget

        kind = FusedTarget
    target = kind.load(setup.target, dtype=dtype, device=device, attention=attention, feature_layers=layers)
    if not setup.mode.needs_drafter or setup.drafter is None:
        return target, None
    drafter = DFlashDrafter.load(
        setup.drafter,
        target_config=target.config,
        embedding=target.embedding,
        lm_head=target.lm_head,
        dtype=dtype,
        device=device,
    )
    return target, FusedDrafter(drafter) if fused else drafter


def samplers(name: str, *, fused: bool) -> tuple[Verifier, Sampler]:
    """The verifier of a mode, for single calls, and what a round does with it."""
    verify = VERIFIERS[name]
    if not fused:
        return verify, sampler(verify)
    from harness.kernels.finish import sample_coupled
    from harness.kernels.sample_kernel import sample_kernel

    return verify, {"coupled": sample_coupled, "kernel": sample_kernel}[name]
