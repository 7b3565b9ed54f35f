"""Turn a SmolLM2 GGUF file into a plain Hugging Face checkpoint folder: `python -m harness.convert_gguf IN OUT`.

Only the `llama` architecture with the `smollm` byte-pair tokenizer is understood; anything else is refused by name.
transformers can read GGUF itself, but for this file it marks the model as quantized, drops the tokenizer rule that
splits numbers into digits, and names `<|im_start|>` as the end token. GGUF key names: the `gguf` package.
"""

import argparse
import json
from pathlib import Path
from typing import Any

VERSION = 1  # part of the cache key: raise it whenever the output changes

ARCHITECTURE = "llama"
PRE_TOKENIZER = "smollm"
END_OF_TURN = "<|im_end|>"
CONTROL = 3  # gguf.TokenType.CONTROL

_WHOLE_MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_REQUIRED = (
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.rope.freq_base",
    "tokenizer.chat_template",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.tokens",
)


def hf_name(name: str, source: Path = Path("GGUF")) -> str:
    """The Hugging Face name of a GGUF tensor, e.g. `blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`.

    Raises ValueError for a tensor that a Llama without biases does not have, so that nothing is dropped in silence.
    """
    match name.split("."):
        case [stem, "weight"] if stem in _WHOLE_MODEL:
            return f"{_WHOLE_MODEL[stem]}.weight"
        case ["blk", layer, stem, "weight"] if layer.isdecimal() and stem in _PER_LAYER:
            return f"model.layers.{layer}.{_PER_LAYER[stem]}.weight"
    raise ValueError(f"{source}: tensor {name!r} is not part of a plain Llama model and cannot be converted")


def unpermute_rope(weight: Any, num_heads: int) -> Any:
    """Undo GGUF's row order of a query or key projection. [num_heads * head_dim, hidden] -> the same shape.

    GGUF keeps the two halves of a rotary pair next to each other (row 2i is followed by row 2i+1); Hugging Face keeps
    all first halves before all second halves within a head.
    """
    head_dim = weight.shape[0] // num_heads
    pairs = weight.reshape(num_heads, head_dim // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def convert(source: Path, folder: Path) -> None:
    """Write config.json, generation_config.json, model.safetensors (bfloat16), tokenizer.json, tokenizer_config.json.

    `folder` is created. Raises ValueError naming `source` when it is no GGUF file, or one of another architecture or
    tokenizer, or lacks a value that the checkpoint needs.
    """
    from gguf import GGUFReader

    try:
        reader = GGUFReader(str(source))
    except ValueError as error:
        raise ValueError(f"{source}: not a readable GGUF file ({error})") from error
    facts = {key: field.contents() for key, field in reader.fields.items()}
    _refuse_others(source, facts)
    eos = _end_tokens(source, facts)
    names = {tensor.name: hf_name(tensor.name, source) for tensor in reader.tensors}
    folder.mkdir(parents=True, exist_ok=True)
    tied, vocab_size = _write_weights(reader, names, facts, folder / "model.safetensors")
    config = _model_config(facts, eos, tied, vocab_size)
    _write_json(folder / "config.json", config)
    special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", special)
    _write_tokenizer(facts, eos[0], folder)


def _refuse_others(source: Path, facts: dict[str, Any]) -> None:
    architecture = facts.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise ValueError(f"{source}: architecture {architecture!r}; only {ARCHITECTURE!r} can be converted")
    tokenizer = (facts.get("tokenizer.ggml.model"), facts.get("tokenizer.ggml.pre"))
    if tokenizer != ("gpt2", PRE_TOKENIZER):
        raise ValueError(f"{source}: tokenizer {tokenizer}; only ('gpt2', {PRE_TOKENIZER!r}) can be converted")
    if missing := [key for key in _REQUIRED if key not in facts]:
        raise ValueError(f"{source}: the GGUF file lacks {', '.join(missing)}")
    if scaled := sorted(key for key in facts if key.startswith("llama.rope.scaling")):
        raise ValueError(f"{source}: scaled rotary positions ({', '.join(scaled)}) are not supported")


def _end_tokens(source: Path, facts: dict[str, Any]) -> list[int]:
    """End-of-turn first: a chat model ends its answer there, whatever end of text the file names besides."""
    tokens = facts["tokenizer.ggml.tokens"]
    if END_OF_TURN not in tokens:
        raise ValueError(f"{source}: the vocabulary has no {END_OF_TURN}; this is not a SmolLM2 chat model")
    bos = facts["tokenizer.ggml.bos_token_id"]
    named = facts.get("tokenizer.ggml.eos_token_id")
    ends = [tokens.index(END_OF_TURN), named]
    # A file whose end token is also its start token (<|im_start|>) would stop every answer that opens a new turn.
    return list(dict.fromkeys(token for token in ends if token is not None and token != bos))


def _write_weights(reader: Any, names: dict[str, str], facts: dict[str, Any], path: Path) -> tuple[bool, int]:
    """Returns whether the LM head is tied to the embedding, and the number of rows of the embedding."""
    import numpy as np
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    rows = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        stem = tensor.name.split(".")[-2]
        if stem in rows:
            weight = unpermute_rope(weight, rows[stem])
        # A copy: unquantized tensors are read-only views of the mapped file.
        weights[names[tensor.name]] = torch.from_numpy(np.array(weight, dtype=np.float32)).to(torch.bfloat16)
    save_file(weights, str(path), metadata={"format": "pt"})
    return "lm_head.weight" not in weights, weights["model.embed_tokens.weight"].shape[0]


def _model_config(facts: dict[str, Any], eos: list[int], tied: bool, vocab_size: int) -> dict[str, Any]:
    heads = facts["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "dtype": "bfloat16",
        "eos_token_id": eos if len(eos) > 1 else eos[0],
        "head_dim": facts["llama.embedding_length"] // heads,
        "hidden_act": "silu",
        "hidden_size": facts["llama.embedding_length"],
        "initializer_range": 0.02,
        "intermediate_size": facts["llama.feed_forward_length"],
        "max_position_embeddings": facts["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": facts["llama.block_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "pad_token_id": facts.get("tokenizer.ggml.padding_token_id", eos[0]),
        # GGUF stores float32: 1e-5 comes back as 9.999999747e-06.
        "rms_norm_eps": round(float(facts["llama.attention.layer_norm_rms_epsilon"]), 9),
        "rope_scaling": None,
        "rope_theta": float(facts["llama.rope.freq_base"]),
        "tie_word_embeddings": tied,
        "use_cache": True,
        "vocab_size": vocab_size,
    }


def _write_tokenizer(facts: dict[str, Any], eos: int, folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={text: index for index, text in enumerate(tokens)}, merges=merges))
    # "smollm" in GGUF stands for this pair; without Digits, 35 of the 164 HumanEval prompts tokenize differently.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [text for text, kind in zip(tokens, facts["tokenizer.ggml.token_type"], strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    tokenizer.save(str(folder / "tokenizer.json"))

    def text_of(key: str, default: int | None = None) -> str | None:
        index = facts.get(f"tokenizer.ggml.{key}_token_id", default)
        return None if index is None else tokens[index]

    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_prefix_space": False,
            "bos_token": text_of("bos"),
            "chat_template": facts["tokenizer.chat_template"],
            "clean_up_tokenization_spaces": False,
            "eos_token": tokens[eos],
            "model_max_length": facts["llama.context_length"],
            "pad_token": text_of("padding", eos),
            "unk_token": text_of("unknown"),
        },
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Turn a SmolLM2 GGUF file into a Hugging Face checkpoint folder.")
    parser.add_argument("source", type=Path, metavar="IN", help="a .gguf file")
    parser.add_argument("folder", type=Path, metavar="OUT", help="the folder to write")
    args = parser.parse_args()
    try:
        convert(args.source, args.folder)
    except ValueError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
