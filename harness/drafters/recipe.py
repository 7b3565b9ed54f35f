"""The drafter recipe as typed values, from conf/drafter.yaml."""

import json
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class GenerateRecipe:
    tokens: int
    seconds: float | None
    batch_size: int
    max_length: int
    max_user_tokens: int
    user_top_p: float
    temperatures: list[float]
    opener_share: float
    shard_tokens: int


@dataclass(frozen=True, kw_only=True)
class NetworkRecipe:
    num_layers: int
    intermediate_size: int
    block_size: int
    target_layer_ids: list[int]
    mask_token_id: int
    init: str


@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    seconds: float
    steps: int | None
    call_seconds: float | None
    batch_size: int
    anchors: int
    lr: float
    warmup_steps: int
    weight_decay: float
    decay: float
    label_temperature: float
    compile: bool
    log_every: int
    eval_every: int


@dataclass(frozen=True, kw_only=True)
class HeldoutRecipe:
    every: int
    conversations: int
    anchors: int
    budgets: list[int]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    target: str | None
    work_dir: str
    output_dir: str
    device: str
    seed: int
    generate: GenerateRecipe
    network: NetworkRecipe
    train: TrainRecipe
    heldout: HeldoutRecipe


PARTS = {"generate": GenerateRecipe, "network": NetworkRecipe, "train": TrainRecipe, "heldout": HeldoutRecipe}


def read_recipe(arguments: list[str]) -> Recipe:
    """From Hydra overrides, or from `--resolved FILE` (JSON written by `--print`), which needs no Hydra.

    Raises ValueError naming the key for unknown keys and values out of range.
    """
    if arguments[:1] == ["--resolved"]:
        return checked(json.loads(Path(arguments[1]).read_text()))
    return checked(compose(arguments))


def compose(overrides: list[str]) -> dict[str, Any]:
    """conf/drafter.yaml with Hydra overrides, as plain values. Raises ValueError for keys that do not exist."""
    from harness.compose import compose_values  # needs Hydra, which a training machine may lack

    return compose_values(overrides, "drafter")


def plain(recipe: Recipe) -> dict[str, Any]:
    return asdict(recipe)


def checked(raw: dict[str, Any]) -> Recipe:
    """Raises ValueError for keys that are unknown, absent or out of range."""
    raw = dict(raw)
    for name, cls in PARTS.items():
        raw[name] = _typed(cls, raw.get(name) or {}, f"{name}.")
    recipe = _typed(Recipe, raw, "")
    ranges = {
        "generate.batch_size": recipe.generate.batch_size >= 1,
        "generate.opener_share": 0 <= recipe.generate.opener_share <= 1,
        "generate.user_top_p": 0 < recipe.generate.user_top_p <= 1,
        "generate.temperatures": recipe.generate.temperatures and min(recipe.generate.temperatures) >= 0,
        "network.block_size": recipe.network.block_size >= 2,
        "network.init": recipe.network.init in ("target", "random"),
        "train.seconds": recipe.train.seconds > 0,
        "train.lr": recipe.train.lr > 0,
        "train.label_temperature": recipe.train.label_temperature >= 0,
        "heldout.every": recipe.heldout.every >= 2,
    }
    for key, good in ranges.items():
        if not good:
            raise ValueError(f"{key}: the value is out of range; see conf/drafter.yaml")
    return recipe


def _typed(cls: Any, raw: dict[str, Any], prefix: str) -> Any:
    known = {field.name for field in fields(cls) if field.default is MISSING}
    for what, names in (("unknown", raw.keys() - known), ("missing", known - raw.keys())):
        if names:
            raise ValueError(f"{prefix}{sorted(names)[0]}: {what} key of conf/drafter.yaml; known: {sorted(known)}")
    return cls(**raw)
