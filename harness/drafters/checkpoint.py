"""Reading and writing DFlash checkpoints in the public layout, and the checks that a drafter fits its target.

Layout (z-lab/*-DFlash*, read in the official code): `config.json` is a Qwen3 config plus `block_size`,
`num_target_layers` and `dflash_config.{target_layer_ids, mask_token_id}`; the safetensors hold `fc`, `hidden_norm`,
`layers.N.*` and `norm`. Embedding and LM head are the target's and are not stored.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PretrainedConfig, Qwen3Config

KEY = "speculative.drafter"
INDEX = "model.safetensors.index.json"
ROPE_TYPES = ("default", "linear", "yarn", "llama3")  # those whose frequencies do not change with the length seen


@dataclass(frozen=True)
class DrafterConfig:
    """What config.json says, checked. `network` is the Qwen3 config of the layers."""

    network: Qwen3Config
    block_size: int
    mask_token_id: int
    target_layer_ids: list[int]
    num_target_layers: int


def read_config(path: Path) -> DrafterConfig:
    """Raises ValueError, naming the key, when the file is missing or asks for something this drafter cannot do."""
    file = path / "config.json"
    if not file.is_file():
        raise ValueError(f"{KEY}: no config.json in {path}; expected a DFlash checkpoint folder")
    raw: dict[str, Any] = json.loads(file.read_text())
    if "DFlashDraftModel" not in raw.get("architectures", []):
        raise ValueError(f"{KEY}: {file} is {raw.get('architectures')}, not a DFlashDraftModel")
    if raw.get("quantization_config"):
        raise ValueError(f"{KEY}: {file} has a quantization_config; only unquantized drafters are supported")
    dflash = dict(raw.get("dflash_config") or {})
    block_size = raw.get("block_size", dflash.pop("block_size", None))
    layer_ids, mask = dflash.pop("target_layer_ids", None), dflash.pop("mask_token_id", None)
    for name, value in (
        ("block_size", block_size),
        ("num_target_layers", raw.get("num_target_layers")),
        ("dflash_config.target_layer_ids", layer_ids),
        ("dflash_config.mask_token_id", mask),
    ):
        if value is None:
            raise ValueError(f"{KEY}: {file} has no {name}")
    if dflash:
        raise ValueError(f"{KEY}: {file} has dflash_config keys that are not supported: {sorted(dflash)}")
    assert block_size is not None
    assert mask is not None
    assert layer_ids is not None
    if block_size < 2:
        raise ValueError(f"{KEY}: {file} has block_size {block_size}; a block drafts block_size - 1 tokens, so >= 2")
    other = sorted(set(raw.get("layer_types") or []) - {"full_attention"})
    if other or (raw.get("use_sliding_window") and raw.get("sliding_window")):
        raise ValueError(
            f"{KEY}: {file} asks for {other or 'sliding_attention'} layers; only full_attention is supported"
        )
    network = Qwen3Config.from_dict(raw)
    rope = (network.rope_parameters or {}).get("rope_type", "default")
    if rope not in ROPE_TYPES:
        raise ValueError(f"{KEY}: {file} has rope type {rope!r}; supported: {', '.join(ROPE_TYPES)}")
    return DrafterConfig(
        network, int(block_size), int(mask), [int(i) for i in layer_ids], int(raw["num_target_layers"])
    )


def check_fit(drafter: DrafterConfig, target_config: PretrainedConfig, num_embeddings: int) -> None:
    """Raises ValueError when the drafter was made for another target. target_config: the text model's config."""
    target = target_config.get_text_config() if hasattr(target_config, "get_text_config") else target_config
    for name, ours, theirs in (
        ("hidden_size", drafter.network.hidden_size, target.hidden_size),
        ("vocab_size", drafter.network.vocab_size, target.vocab_size),
        ("num_target_layers", drafter.num_target_layers, target.num_hidden_layers),
    ):
        if ours != theirs:
            raise ValueError(
                f"{KEY}: this drafter has {name} {ours}, its target {theirs}; take the drafter made for this target, "
                "or set model.drafter"
            )
    bad = [i for i in drafter.target_layer_ids if not 0 <= i < target.num_hidden_layers]
    if bad or not drafter.target_layer_ids:
        raise ValueError(f"{KEY}: target_layer_ids {bad or '[]'} must lie in 0..{target.num_hidden_layers - 1}")
    if not 0 <= drafter.mask_token_id < num_embeddings:
        raise ValueError(
            f"{KEY}: mask_token_id {drafter.mask_token_id} is outside the target's {num_embeddings} embeddings"
        )


def read_weights(path: Path) -> dict[str, Tensor]:
    """Every tensor of `path`: the files that the index names, or all model*.safetensors."""
    if (path / INDEX).is_file():
        names = sorted(set(json.loads((path / INDEX).read_text())["weight_map"].values()))
    else:
        names = sorted(file.name for file in path.glob("*.safetensors"))
    absent = [name for name in names if not (path / name).is_file()]
    if absent or not names:
        raise ValueError(f"{KEY}: {path} lacks {absent or 'a .safetensors file'}")
    state: dict[str, Tensor] = {}
    for name in names:
        state.update(load_file(path / name))
    return state


def write_checkpoint(
    path: Path, config: DrafterConfig, state: dict[str, Tensor], dtype: torch.dtype, max_shard_bytes: int = 15 * 2**20
) -> None:
    """Write the public layout with an index, in files of at most `max_shard_bytes` (a larger tensor gets its own)."""
    path.mkdir(parents=True, exist_ok=True)
    raw = config.network.to_diff_dict()
    raw |= {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": str(dtype).removeprefix("torch."),
        "block_size": config.block_size,
        "num_target_layers": config.num_target_layers,
        "dflash_config": {"mask_token_id": config.mask_token_id, "target_layer_ids": config.target_layer_ids},
    }
    # Readers other than transformers 5 look for the older top-level rope keys.
    rope = dict(config.network.rope_parameters or {})
    raw |= {"rope_theta": rope.pop("rope_theta", 10000.0), "rope_scaling": rope if len(rope) > 1 else None}
    for name in ("head_dim", "rms_norm_eps", "hidden_act", "attention_bias", "tie_word_embeddings", "vocab_size"):
        raw[name] = getattr(config.network, name)
    for name in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "intermediate_size"):
        raw[name] = getattr(config.network, name)
    raw["max_position_embeddings"] = config.network.max_position_embeddings
    raw["layer_types"] = ["full_attention"] * config.network.num_hidden_layers
    (path / "config.json").write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n")
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in state.items():
        tensor = tensor.detach().to("cpu", dtype).contiguous()
        num_bytes = tensor.numel() * tensor.element_size()
        if shards[-1] and size + num_bytes > max_shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += num_bytes
    for old in path.glob("model-*.safetensors"):
        old.unlink()
    weight_map: dict[str, str] = {}
    for index, shard in enumerate(shards, 1):
        file = f"model-{index:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, path / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    total = sum(t.numel() * t.element_size() for shard in shards for t in shard.values())
    index_json = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (path / INDEX).write_text(json.dumps(index_json, indent=2) + "\n")
