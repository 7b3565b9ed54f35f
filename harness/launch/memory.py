"""What a cell needs in memory, from the config.json and weight headers of checkpoints that are on this machine.

Bytes. Symbols: L layers with attention, H key/value heads, D head size, S cache slots, B batch, N tree nodes with the
root, V vocabulary.

    weights   parameters of target and drafter x bytes of engine.dtype; tensors stored as integers count as stored
    KV        2 L H D S B x bytes of the dtype, for both; S = prompt + sampling.max_new_tokens + N + 2 blocks
    tree      B N V x 4 bytes, three times (logits, the target's probabilities, the kernel's scratch), and B N S of mask

Activations, fragments and the allocator's reserve come on top.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.compose import build
from harness.config import EvalConfig, Sources
from harness.file_hashes import cache_folder
from harness.sources import ROOT

PROMPT_TOKENS = 512  # prompts are not known before the data is read
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
FLOATS = {"F64", "F32", "F16", "BF16"}
STORED = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
ATTENTION = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes; None where a file that says it is not on this machine."""

    weights: int | None
    kv: int | None
    tree: int | None

    @property
    def total(self) -> int | None:
        parts = (self.weights, self.kv, self.tree)
        return None if None in parts else sum(part for part in parts if part is not None)


def needed(config: EvalConfig) -> Memory:
    mode = build(config.speculative, "speculative")
    width = BYTES[_dtype(config)]
    batch = config.engine.params.get("batch_size") or config.engine.params.get("concurrency") or 1
    target = located(config.model.target, config.model.source)
    folders = [target]
    block = 1
    if mode.needs_drafter:
        drafter = located(config.speculative.params.get("drafter") or config.model.drafter, config.model.source)
        folders.append(drafter)
        block = _block_size(drafter) if drafter else 0
    configs = [_config(folder) for folder in folders if folder]
    if len(configs) < len(folders) or not block:
        return Memory(weights=None, kv=None, tree=None)
    nodes = mode.num_nodes(block)
    slots = PROMPT_TOKENS + config.sampling.max_new_tokens + nodes + 2 * block
    weights = [weight_bytes(folder, width) for folder in folders if folder]
    rows = [kv_bytes_per_slot(values, width) for values in configs]
    vocabulary = configs[0].get("vocab_size")
    return Memory(
        weights=None if None in weights else sum(w for w in weights if w),
        kv=None if None in rows else sum(r for r in rows if r) * slots * batch,
        tree=batch * nodes * (3 * 4 * vocabulary + slots) if vocabulary else None,
    )


def located(sources: str | Sources | None, choice: str) -> Path | None:
    """The checkpoint's folder if it is on this machine already. Fetches nothing."""
    if sources is None:
        return None
    text = sources if isinstance(sources, str) else sources.path
    if text is not None:
        for path in (Path.cwd() / Path(text).expanduser(), ROOT / text):
            if (path / "config.json").is_file():
                return path
        return _in_hub_cache(text, "main") if isinstance(sources, str) and text.count("/") == 1 else None
    assert isinstance(sources, Sources)
    if choice == "package" and sources.package:
        found = sorted((cache_folder() / "converted").glob(f"*-{sources.package.sha256[:16]}-gguf-v*/config.json"))
        return found[-1].parent if found else None
    return _in_hub_cache(sources.hub.repo, sources.hub.revision) if choice == "hub" and sources.hub else None


def _in_hub_cache(repo: str, revision: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


def weight_bytes(folder: Path, width: int) -> int | None:
    """From the headers of the safetensors files (8 bytes of length, then JSON), once each; None without files."""
    tensors: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        tensors |= {name: entry for name, entry in header.items() if name != "__metadata__"}
    if not tensors:
        return None
    return sum(
        math.prod(entry["shape"]) * (width if entry["dtype"] in FLOATS else STORED.get(entry["dtype"], 1))
        for entry in tensors.values()
    )


def kv_bytes_per_slot(config: dict[str, Any], width: int) -> int | None:
    """Key and value of one token in every layer that keeps them; None for attention that stores something else."""
    heads = config.get("num_attention_heads")
    if not heads or "kv_lora_rank" in config:
        return None
    kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    layers = sum(kind in ATTENTION for kind in kinds)
    return 2 * layers * (config.get("num_key_value_heads") or heads) * head_size * width


def _config(folder: Path) -> dict[str, Any]:
    values = json.loads((folder / "config.json").read_text())
    return values.get("text_config") or values


def _block_size(folder: Path) -> int:
    values = json.loads((folder / "config.json").read_text())
    return values.get("block_size") or (values.get("dflash_config") or {}).get("block_size") or 0


def _dtype(config: EvalConfig) -> str:
    asked = config.engine.params.get("dtype", "auto")
    if asked in BYTES:
        return asked
    from harness.engines.hf import _resolve_dtype

    return _resolve_dtype("auto", config.hardware.device)
