"""From the words of a command and a preset to the cells of a sweep, all of them checked before anything starts.

A preset (conf/experiment/NAME.yaml) may hold

    sweep:
      cells:                          # explicit, for choices that depend on each other
        - {speculative: autoregressive}
        - {speculative: ddtree, speculative.tree_budget: 16}
      axes:                           # every cell once for every value of every axis
        sampling: [greedy, t10]
        temperature:                  # a value may set several keys; the axis then is a mere name
          - {sampling: t06, sampling.temperature: 0.3, sampling.name: t03}

Words such as `sampling=t06,t10` on the command line are further axes. A word for an axis of plain values replaces it.
"""

import hashlib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.compose import ConfigError, compose, expand, preset_sweep
from harness.config import EvalConfig
from harness.launch.sweep import Cell
from harness.runs import run_id, run_name

NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
SAME_RUN = "is one run in two cells"


@dataclass(frozen=True, kw_only=True)
class Planned:
    name: str  # of the sweep
    outputs: Path
    cells: list[Cell]
    configs: dict[str, EvalConfig]  # by cell id
    repeated: int  # cells left out because another is the same run with the same words


def plan_cells(words: list[str]) -> Planned:
    """Raises ConfigError that names every cell which cannot run, and why."""
    words, asked_name = _take_name(words)
    variants = expand(words)  # the command line's own axes
    common = [word for word in words if all(word in variant for variant in variants)]
    preset = [word for word in common if word.startswith("experiment=")]
    if any(word.startswith("experiment=") for word in words) and not preset:
        raise ConfigError("experiment=...: a sweep takes one preset")
    sweep = preset_sweep(preset)
    unknown = sorted(set(sweep) - {"cells", "axes"})
    if unknown:
        raise ConfigError(f"{preset[0]}: sweep.{unknown[0]}: no such key. Allowed: axes, cells")
    typed = {_key(word) for variant in variants for word in variant}
    factors = _factors(sweep, typed, preset)
    drop = ["~sweep"] if sweep else []

    composed: list[tuple[list[str], list[str], EvalConfig]] = []
    errors: dict[str, list[str]] = {}
    for variant, *choices in itertools.product(variants, *factors):
        own = [word for word in variant if word not in common] + [word for choice in choices for word in choice]
        overrides = [*common, *drop, *own]
        try:
            composed.append((own, overrides, compose(overrides)))
        except ConfigError as error:
            errors.setdefault(str(error), []).append(" ".join(own))
    if errors:
        raise ConfigError("\n".join(_refusal(message, cells, len(composed)) for message, cells in errors.items()))
    return _planned(composed, asked_name, preset)


def _planned(composed: list[tuple[list[str], list[str], EvalConfig]], name: str, preset: list[str]) -> Planned:
    configs: dict[str, EvalConfig] = {}
    chosen: dict[str, tuple[list[str], list[str]]] = {}
    repeated = 0
    for own, overrides, config in composed:
        cell_id = run_id(config.asked)
        if cell_id not in chosen:
            chosen[cell_id], configs[cell_id] = (own, overrides), config
        elif configs[cell_id].asked == config.asked:
            repeated += 1
        else:
            raise ConfigError(
                f"{configs[cell_id].run.output_dir}/{run_name(config)} {SAME_RUN} ({' '.join(chosen[cell_id][0])}) and "
                f"({' '.join(own)}): tracking, run.limit and run.output_dir make no run of their own"
            )
    outputs = {config.run.output_dir for config in configs.values()}
    if len(outputs) > 1:
        raise ConfigError(f"run.output_dir: the cells of a sweep share one. Given: {', '.join(sorted(outputs))}")
    stem = preset[0].partition("=")[2] if preset else "sweep"
    name = name or f"{stem}-{hashlib.sha256(' '.join(sorted(configs)).encode()).hexdigest()[:6]}"
    cells = []
    for cell_id, (own, overrides) in chosen.items():
        config = configs[cell_id]
        grouped = "group" in config.tracking.params and config.tracking.params["group"] is None
        cells.append(
            Cell(
                id=cell_id,
                name=run_name(config),
                label=" ".join(own) or "(the only one)",
                overrides=[*overrides, f"tracking.group={name}"] if grouped else overrides,
                hardware=config.hardware.name,
                gpus=config.hardware.count if config.hardware.device == "cuda" else 0,
                limit=config.run.limit,
            )
        )
    return Planned(name=name, outputs=Path(outputs.pop()).resolve(), cells=cells, configs=configs, repeated=repeated)


def _factors(sweep: dict[str, Any], typed: set[str], preset: list[str]) -> list[list[list[str]]]:
    """Each factor is a list of choices, each choice a list of words."""
    factors = []
    for name, values in [(None, sweep.get("cells") or [{}]), *(sweep.get("axes") or {}).items()]:
        plain = not any(isinstance(value, Mapping) for value in values)
        if name in typed and plain:
            continue  # the command line's value, or values, instead
        choices = [dict(value) if isinstance(value, Mapping) else {name: value} for value in values]
        for key in sorted({key for choice in choices for key in choice} & typed):
            raise ConfigError(
                f"{key} is what the cells of {preset[0]} set, so it cannot be given for all of them. Without the preset "
                f"say which values you want: {key}=A,B"
            )
        factors.append([[word(key, value) for key, value in choice.items()] for choice in choices])
    return factors


def word(key: str, value: Any) -> str:
    """KEY=VALUE as Hydra reads it: text that could be taken for something else is quoted."""
    if value is None or isinstance(value, bool):
        return f"{key}={'null' if value is None else str(value).lower()}"
    if not isinstance(value, str):
        return f"{key}={value}"
    bare = re.fullmatch(r"[A-Za-z_./][A-Za-z0-9_./-]*", value) and value.lower() not in ("nan", "inf")
    if bare and yaml.safe_load(value) == value:
        return f"{key}={value}"
    # Hydra reads a backslash as itself, except in a run of them before a quote, where each must be doubled.
    escaped = re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value)
    return f"{key}='{escaped}'"


def _key(text: str) -> str:
    return text.lstrip("+~").partition("=")[0].partition("@")[0]


def _take_name(words: list[str]) -> tuple[list[str], str]:
    names = [text.partition("=")[2] for text in words if text.startswith("sweep.name=")]
    if names and not NAME.fullmatch(names[-1]):
        raise ConfigError(f"sweep.name={names[-1]}: letters, digits, '.', '_' and '-' only, as it names a folder")
    return [text for text in words if not text.startswith("sweep.name=")], names[-1] if names else ""


def _refusal(message: str, cells: list[str], num_good: int) -> str:
    if not num_good and len(cells) > 1:
        return f"{message} (in every cell)"
    shown = "\n".join(f"  cell {cell or '(the only one)'}" for cell in cells)
    return f"{message}\n{shown}"
