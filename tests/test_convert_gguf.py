"""The GGUF conversion on a tiny model made here. The real model: test_convert_gguf_real.py.

Oracles: the row order of llama.cpp written out index by index, and transformers' own GGUF loader.
"""

import json
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from harness.convert_gguf import convert, hf_name, unpermute_rope

HIDDEN, FFN, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
HEAD_DIM = HIDDEN // HEADS
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "1", "2", "a", "b", "Ġ", "ab", "12"]
MERGES = ["a b", "1 2"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def gguf_rows(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's order: the two halves of a rotary pair, half a head apart in the checkpoint, side by side."""
    out = np.empty_like(weight)
    for head in range(num_heads):
        start = head * HEAD_DIM
        for pair in range(HEAD_DIM // 2):
            out[start + 2 * pair] = weight[start + pair]
            out[start + 2 * pair + 1] = weight[start + HEAD_DIM // 2 + pair]
    return out


def tiny_weights() -> dict[str, np.ndarray]:
    """By Hugging Face name, float32, rounded to bfloat16 so that the conversion must be exact."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"model.embed_tokens": (len(TOKENS), HIDDEN), "model.norm": (HIDDEN,)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm": (HIDDEN,),
            f"{at}.post_attention_layernorm": (HIDDEN,),
            f"{at}.self_attn.q_proj": (HIDDEN, HIDDEN),
            f"{at}.self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{at}.self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{at}.self_attn.o_proj": (HIDDEN, HIDDEN),
            f"{at}.mlp.gate_proj": (FFN, HIDDEN),
            f"{at}.mlp.up_proj": (FFN, HIDDEN),
            f"{at}.mlp.down_proj": (HIDDEN, FFN),
        }
    weights = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    return {f"{name}.weight": value.bfloat16().float().numpy() for name, value in weights.items()}


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_tiny(
    path: Path,
    *,
    arch: str = "llama",
    pre: str = "smollm",
    bos: int = 1,
    eos: int = 2,
    tokens: list[str] | None = None,
    extra_tensor: str | None = None,
    skip: str | None = None,
    quantize: str | None = None,
) -> dict[str, np.ndarray]:
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    if skip != "rope":
        writer.add_rope_freq_base(10000.0)
    if skip == "no scaling":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens or TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(eos)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    weights = tiny_weights()
    for name, value in weights.items():
        stem = name.removesuffix(".weight")
        if stem.startswith("model.layers."):
            _, _, layer, rest = stem.split(".", 3)
            to = f"blk.{layer}.{GGUF_NAMES[rest]}.weight"
        else:
            to = f"{GGUF_NAMES[stem]}.weight"
        if "q_proj" in name or "k_proj" in name:
            value = gguf_rows(value, HEADS if "q_proj" in name else KV_HEADS)
        if to == quantize:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(to, gguf.quants.quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(to, np.ascontiguousarray(value))
    if extra_tensor:
        writer.add_tensor(extra_tensor, np.zeros((HIDDEN,), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def test_every_tensor_comes_back_exactly(tmp_path: Path) -> None:
    expected = write_tiny(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == torch.bfloat16
        assert torch.equal(found[name].float(), torch.from_numpy(value)), name


def test_row_order_matters() -> None:
    """Negative control: without undoing the order, the queries of the tiny model are others."""
    weight = tiny_weights()["model.layers.0.self_attn.q_proj.weight"]
    assert not np.array_equal(gguf_rows(weight, HEADS), weight)
    assert np.array_equal(unpermute_rope(gguf_rows(weight, HEADS), HEADS), weight)
    assert not np.array_equal(unpermute_rope(gguf_rows(weight, HEADS), KV_HEADS), weight)


def test_same_weights_and_config_as_transformers_reads(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    write_tiny(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    theirs = load_gguf_checkpoint(str(tmp_path / "tiny.gguf"), return_tensors=True, model_to_load=ours)["tensors"]
    assert theirs.keys() == ours.state_dict().keys() - {"lm_head.weight"}
    for name, value in theirs.items():
        assert torch.equal(ours.state_dict()[name], torch.as_tensor(value).float()), name
    config = AutoConfig.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"):
        assert getattr(ours.config, key) == getattr(config, key)
    assert ours.config.num_key_value_heads == config.num_key_value_heads
    assert ours.lm_head.weight.data_ptr() == ours.model.embed_tokens.weight.data_ptr()


def test_quantized_tensor_is_read_to_half_a_step(tmp_path: Path) -> None:
    expected = write_tiny(tmp_path / "tiny.gguf", quantize="blk.1.ffn_gate.weight")
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    name = "model.layers.1.mlp.gate_proj.weight"
    found = load_file(tmp_path / "out" / "model.safetensors")[name].float()
    value = torch.from_numpy(expected[name])
    step = value.reshape(FFN, -1, 32).abs().amax(-1, keepdim=True).expand(-1, -1, 32).reshape(value.shape) / 127
    assert ((found - value).abs() <= 0.51 * step + value.abs() / 128).all()  # the second term: bfloat16
    assert not torch.equal(found, value)


def test_config_and_tokens(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["rms_norm_eps"], config["rope_theta"], config["tie_word_embeddings"]) == (1e-5, 10000.0, True)
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 16)
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def test_digits_are_single_although_a_merge_exists(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write_tiny(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("12ab").input_ids == [TOKENS.index("1"), TOKENS.index("2"), TOKENS.index("ab")]
    assert tokenizer("<|im_start|>a<|im_end|>").input_ids == [1, TOKENS.index("a"), 2]
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
    assert rendered == "<|im_start|>ab<|im_end|>"


@pytest.mark.parametrize(("eos", "expected"), [(1, 2), (2, 2), (0, [2, 0])])
def test_end_of_turn_is_always_an_end(tmp_path: Path, eos: int, expected: int | list[int]) -> None:
    """A file that names the start of a turn (id 1) as its end is corrected; any other end is kept beside ours."""
    write_tiny(tmp_path / "tiny.gguf", eos=eos)
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "out" / name).read_text())["eos_token_id"] == expected
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arch": "qwen2"}, "architecture 'qwen2'"),
        ({"pre": "llama-bpe"}, "llama-bpe"),
        ({"skip": "rope"}, "lacks llama.rope.freq_base"),
        ({"skip": "no scaling"}, "scaled rotary positions"),
        ({"extra_tensor": "blk.0.attn_q.bias"}, "blk.0.attn_q.bias"),
        ({"extra_tensor": "rope_freqs.weight"}, "rope_freqs.weight"),
        ({"tokens": [token.replace("im_end", "eot") for token in TOKENS]}, "no <|im_end|>"),
    ],
)
def test_refuses_what_it_does_not_know(tmp_path: Path, options: dict, message: str) -> None:
    write_tiny(tmp_path / "other.gguf", **options)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        convert(tmp_path / "other.gguf", tmp_path / "out")
    assert "other.gguf" in str(error.value)
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_refuses_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "note.gguf").write_bytes(b"not a model" * 10)
    with pytest.raises(ValueError, match=r"note\.gguf: not a readable GGUF file"):
        convert(tmp_path / "note.gguf", tmp_path / "out")


def test_names() -> None:
    assert hf_name("blk.12.ffn_norm.weight") == "model.layers.12.post_attention_layernorm.weight"
    assert hf_name("output.weight") == "lm_head.weight"
    for name in ("blk.x.attn_q.weight", "blk.0.attn_q.bias", "weight", "blk.0.ffn_gate_inp.weight"):
        with pytest.raises(ValueError, match="not part of a plain Llama"):
            hf_name(name)
