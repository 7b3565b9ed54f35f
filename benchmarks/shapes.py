"""Model shapes as numbers, built with random weights: what a round costs depends on the shape, not on what it says.

Sources: config.json of Qwen/Qwen3-8B, Qwen/Qwen3-4B and HuggingFaceTB/SmolLM2-135M-Instruct. Drafters: 5 layers of the
target's own width, blocks of 16, mask id 151669, as z-lab/Qwen3-8B-DFlash-b16 and z-lab/Qwen3-4B-DFlash-b16 (the same
numbers stand in SpecForge's configs/qwen3-8b-dflash.json, target layers [1, 9, 17, 25, 33] in the converter tests of
vLLM's speculators); SmolLM2's is the bundled one. Random drafts are hardly ever accepted: a round commits one token.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from harness.drafters.checkpoint import DrafterConfig
from harness.drafters.dflash import DFlashDrafter

SCALE = 0.02  # standard deviation of the weights, as transformers starts a model


@dataclass(frozen=True)
class Shape:
    name: str
    model_type: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    eps: float
    rope_theta: float
    drafter_layers: int
    target_layer_ids: tuple[int, ...]
    block_size: int
    mask_token_id: int

    @property
    def body_weights(self) -> int:
        """Weights of the target's layers and final norm."""
        return self.layers * self._layer_weights(self.model_type == "qwen3") + self.hidden

    @property
    def head_bytes(self) -> int:
        return 2 * self.vocab * self.hidden

    @property
    def target_bytes(self) -> int:
        """Bytes (bfloat16) of the weights that a forward streams: the input embedding is read by the row."""
        return 2 * self.body_weights + self.head_bytes

    @property
    def drafter_bytes(self) -> int:
        """Bytes (bfloat16) of the drafter's own weights; it reads the target's LM head besides."""
        fuse = len(self.target_layer_ids) * self.hidden**2
        return 2 * (self.drafter_layers * self._layer_weights(True) + fuse + 2 * self.hidden)

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim

    def _layer_weights(self, head_norms: bool) -> int:
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        norms = 2 * self.hidden + (2 * self.head_dim if head_norms else 0)
        return attention + 3 * self.hidden * self.intermediate + norms

    def config(self, model_type: str, layers: int, **more: Any) -> dict[str, Any]:
        return dict(
            model_type=model_type,
            num_hidden_layers=layers,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab,
            tie_word_embeddings=self.tied,
            rms_norm_eps=self.eps,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
            max_position_embeddings=40960,
            attention_bias=False,
            **more,
        )


QWEN3 = dict(model_type="qwen3", layers=36, heads=32, kv_heads=8, head_dim=128, vocab=151936, eps=1e-6, rope_theta=1e6)
DFLASH_B16 = dict(drafter_layers=5, target_layer_ids=(1, 9, 17, 25, 33), block_size=16, mask_token_id=151669)
SHAPES = {
    shape.name: shape
    for shape in (
        Shape(name="qwen3-8b", hidden=4096, intermediate=12288, tied=False, **QWEN3, **DFLASH_B16),
        Shape(name="qwen3-4b", hidden=2560, intermediate=9728, tied=True, **QWEN3, **DFLASH_B16),
        Shape(
            name="smollm2-135m", model_type="llama", layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3,
            head_dim=64, vocab=49152, tied=True, eps=1e-5, rope_theta=1e5, drafter_layers=3,
            target_layer_ids=(1, 8, 14, 21, 27), block_size=8, mask_token_id=0,
        ),
    )
}  # fmt: skip


def random_target(shape: Shape, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """A transformers model of the shape with SDPA, its weights the same in every process."""
    values = shape.config(shape.model_type, shape.layers)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    model = on_device(lambda: AutoModelForCausalLM.from_config(config, attn_implementation="sdpa"), device, dtype)
    model.tie_weights()
    return model


def drafter_config(shape: Shape) -> DrafterConfig:
    values = shape.config("qwen3", shape.drafter_layers, layer_types=["full_attention"] * shape.drafter_layers)
    return DrafterConfig(
        network=Qwen3Config(**values),
        block_size=shape.block_size,
        mask_token_id=shape.mask_token_id,
        target_layer_ids=list(shape.target_layer_ids),
        num_target_layers=shape.layers,
    )


def random_drafter(shape: Shape, target: PreTrainedModel, device: str, dtype: torch.dtype) -> DFlashDrafter:
    modules = target.get_input_embeddings(), target.get_output_embeddings()
    return on_device(lambda: DFlashDrafter(drafter_config(shape), *modules), device, dtype)


def on_device(make: Any, device: str, dtype: torch.dtype) -> Any:
    """Make a module where it will run, in its dtype, with random weights: matrices normal, norms one."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            module: nn.Module = make()
    finally:
        torch.set_default_dtype(default)
    generator = torch.Generator(device).manual_seed(0)
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter.data, std=SCALE, generator=generator)
        else:
            nn.init.ones_(parameter.data)
    return module.eval().requires_grad_(False)
