"""A tiny random target and DFlash drafter that SGLang and transformers both load; nothing is downloaded.

The vocabulary is small beside the tree budget, so that even a random drafter's trees hold every first token and many of
the next ones: paths of every length are walked. It is no multiple of 64, so SGLang pads the LM head: a padded id must
never come out.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 12, 64, 128, 4, 2, 16
LAYERS, DRAFT_LAYERS, FEATURE_LAYERS, BLOCK_SIZE, MASK_ID, EOS = 3, 1, [0, 1], 4, 3, 2
BUDGET = 63


def _random(generator: torch.Generator, *shape: int, std: float) -> torch.Tensor:
    return torch.randn(*shape, generator=generator) * std


def _layer(generator: torch.Generator, prefix: str, qk_norm: bool) -> dict[str, torch.Tensor]:
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    weights = {f"{prefix}{name}.weight": _random(generator, *shape, std=0.15) for name, shape in shapes.items()}
    norms = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}
    if qk_norm:
        norms |= {"self_attn.q_norm": HEAD_DIM, "self_attn.k_norm": HEAD_DIM}
    return weights | {f"{prefix}{name}.weight": torch.ones(size) for name, size in norms.items()}


def _write(folder: Path, weights: dict[str, torch.Tensor], facts: dict) -> None:
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    shared = dict(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        vocab_size=VOCAB,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        hidden_act="silu",
        max_position_embeddings=2048,
        attention_bias=False,
        tie_word_embeddings=False,
        torch_dtype="float32",
        bos_token_id=1,
        eos_token_id=EOS,
    )
    (folder / "config.json").write_text(json.dumps(shared | facts))


def write_pair(out: Path) -> tuple[Path, Path]:
    """(target folder, drafter folder)."""
    generator = torch.Generator().manual_seed(3)
    weights = {"model.embed_tokens.weight": _random(generator, VOCAB, HIDDEN, std=1.0)}
    for index in range(LAYERS):
        weights |= _layer(generator, f"model.layers.{index}.", qk_norm=False)
    weights |= {
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": _random(generator, VOCAB, HIDDEN, std=0.25),
    }
    llama = dict(architectures=["LlamaForCausalLM"], model_type="llama", num_hidden_layers=LAYERS, mlp_bias=False)
    _write(out / "target", weights, llama)
    _write_tokenizer(out / "target")

    weights = {"fc.weight": _random(generator, HIDDEN, len(FEATURE_LAYERS) * HIDDEN, std=0.1)}
    for index in range(DRAFT_LAYERS):
        weights |= _layer(generator, f"layers.{index}.", qk_norm=True)
    weights |= {"hidden_norm.weight": torch.ones(HIDDEN), "norm.weight": torch.ones(HIDDEN)}
    facts = dict(
        architectures=["DFlashDraftModel"],
        model_type="qwen3",
        num_hidden_layers=DRAFT_LAYERS,
        num_target_layers=LAYERS,
        block_size=BLOCK_SIZE,
        layer_types=["full_attention"] * DRAFT_LAYERS,
        dflash_config=dict(mask_token_id=MASK_ID, target_layer_ids=FEATURE_LAYERS, block_size=BLOCK_SIZE),
    )
    _write(out / "draft", weights, facts)
    return out / "target", out / "draft"


def _write_tokenizer(folder: Path) -> None:
    vocab = {f"<{index}>": index for index in range(VOCAB)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = dict(bos_token="<1>", eos_token="<2>", pad_token="<0>")
    facts = dict(tokenizer_class="PreTrainedTokenizerFast", model_max_length=1024, **special)
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    (folder / "generation_config.json").write_text(json.dumps(dict(bos_token_id=1, eos_token_id=EOS)))
