"""The untrained drafter: its shape follows the target, and its weights may start from the target's last layers.

A random start answers every mask with the mask token's own embedding, which a tied LM head rates far above all else
(loss 61 where uniform guessing gives 10.8). Layers copied from the target write much more than the embedding holds.
"""

import math
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, Qwen3Config

from harness.drafters.checkpoint import DrafterConfig
from harness.drafters.network import DFlashNetwork
from harness.drafters.recipe import NetworkRecipe


def new_network(recipe: NetworkRecipe, target: PreTrainedModel) -> tuple[DrafterConfig, DFlashNetwork]:
    """A float32 network for `target`, not trained. Raises ValueError when the recipe does not fit the target."""
    text = target.config.get_text_config()
    config = Qwen3Config(
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=text.num_attention_heads,
        num_key_value_heads=text.num_key_value_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        rms_norm_eps=text.rms_norm_eps,
        max_position_embeddings=text.max_position_embeddings,
        rope_parameters=text.rope_parameters,
        tie_word_embeddings=bool(text.tie_word_embeddings),
    )
    ids = recipe.target_layer_ids
    if not ids or not 0 <= min(ids) <= max(ids) < text.num_hidden_layers - 1:
        raise ValueError(f"network.target_layer_ids: {ids} must lie in 0..{text.num_hidden_layers - 2}")
    if not 0 <= recipe.mask_token_id < text.vocab_size:
        raise ValueError(f"network.mask_token_id: {recipe.mask_token_id} is not a token of the target")
    drafter = DrafterConfig(config, recipe.block_size, recipe.mask_token_id, list(ids), text.num_hidden_layers)
    network = DFlashNetwork(config, len(ids) * text.hidden_size).float()
    if recipe.init == "target":
        _copy_last_layers(network, target)
    else:
        for layer in network.each_layer():
            for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
                nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * recipe.num_layers))
        network.norm.load_state_dict(_backbone(target).norm.state_dict())
    return drafter, network


def _backbone(target: PreTrainedModel) -> Any:
    """The module with `layers` and `norm`, as Llama-like models have them."""
    return target.base_model


@torch.no_grad()
def _copy_last_layers(network: DFlashNetwork, target: PreTrainedModel) -> None:
    """Layers, norms and, for the context, the last feature layer passed straight through `fc`."""
    layers = _backbone(target).layers[-len(network.layers) :]
    for ours, theirs in zip(network.each_layer(), layers, strict=True):
        fresh = {
            name: value
            for name, value in ours.state_dict().items()
            if name.endswith(("q_norm.weight", "k_norm.weight"))
        }
        source = {name: value for name, value in theirs.state_dict().items() if name in ours.state_dict()}
        try:
            ours.load_state_dict(fresh | source)
        except RuntimeError as error:
            raise ValueError(
                f"network.init: the target's layers do not fit ({error}); use network.init=random"
            ) from None
    hidden = network.config.hidden_size
    network.fc.weight.normal_(std=0.02)
    network.fc.weight[:, -hidden:] += torch.eye(hidden)
    network.hidden_norm.weight.copy_(torch.stack([layer.input_layernorm.weight.float() for layer in layers]).mean(0))
    network.norm.load_state_dict(_backbone(target).norm.state_dict())
