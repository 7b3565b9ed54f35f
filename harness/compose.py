"""The one door to Hydra and OmegaConf: overrides in, a checked EvalConfig out, and objects built from it.

Every error a user can make in a configuration is raised here as ConfigError, before torch or a model is loaded. The
message names the key, what was given and what is allowed.
"""

import difflib
import itertools
import json
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError

from harness.config import Behaviour, DataConfig, EvalConfig, HardwareConfig, ModelConfig, RunConfig, SamplingConfig

CONF = Path(__file__).resolve().parent.parent / "conf"
FACTS = {"model": ModelConfig, "hardware": HardwareConfig, "sampling": SamplingConfig, "run": RunConfig}
BEHAVIOURS = ("engine", "speculative", "task", "tracking")
GROUPS = ("model", "hardware", "engine", "speculative", "sampling", "task", "tracking", "experiment")
DATA_KEYS = tuple(f.name for f in fields(DataConfig))


class ConfigError(ValueError):
    """A configuration that cannot run. The message is meant for the person who typed it."""


def compose(overrides: list[str], config_name: str = "config") -> EvalConfig:
    """Compose conf/ with Hydra overrides and check every value against the class it is for. Raises ConfigError."""
    return from_values(compose_values(overrides, config_name), overrides)


def from_values(values: dict[str, Any], overrides: list[str]) -> EvalConfig:
    """Check composed values, fresh or out of a run's manifest, against their classes. Raises ConfigError."""
    built: dict[str, Any] = {name: checked(cls, values[name], name) for name, cls in FACTS.items()}
    for group in BEHAVIOURS:
        params = dict(values[group])
        if group == "task":
            data = {key: params.pop(key) for key in DATA_KEYS if key in params}
            built["data"] = checked(DataConfig, data, "task")
        built[group] = Behaviour(name=params["name"], target=params.pop("_target_"), params=params)
    config = EvalConfig(**built, asked=values, overrides=list(overrides))
    for group in BEHAVIOURS:
        build(getattr(config, group), group)
    return config


def plain_words(overrides: list[str]) -> dict[str, Any]:
    """`a.b=VALUE` words as dotted keys and values, in order. Raises ConfigError for any other form."""
    parsed = _parse(overrides)
    for o in parsed:
        if o.is_add() or o.is_force_add() or o.is_delete() or o.is_sweep_override():
            raise ConfigError(f"{o.input_line}: only words of the form KEY=VALUE are taken here")
    return {o.key_or_group: o.value() for o in parsed}


def build(behaviour: Behaviour, group: str) -> Any:
    """Make the object that a behaviour describes. Its class is the schema: unknown keys and wrong values are errors."""
    module, _, name = behaviour.target.rpartition(".")
    try:
        cls = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{group}._target_={behaviour.target}: cannot be imported ({error})") from error
    params = dict(behaviour.params)
    if "name" not in {f.name for f in fields(cls)}:  # most classes need no name of their own
        params.pop("name", None)
    return checked(cls, params, group)


def compose_values(overrides: list[str], config_name: str = "config") -> dict[str, Any]:
    """The composed configuration as plain values, Hydra's own node left out. Raises ConfigError."""
    values = _compose(overrides, config_name)
    if "sweep" in values:
        preset = next((o for o in overrides if o.startswith("experiment=")), "this preset")
        raise ConfigError(
            f"{preset} is a sweep of several cells: `make sweep {preset}` runs them, `make plan {preset}` lists them. "
            "With ~sweep only what all of its cells share is taken"
        )
    return {key: value for key, value in values.items() if key != "hydra"}


def preset_sweep(overrides: list[str]) -> dict[str, Any]:
    """The `sweep` node of a preset: `cells` and `axes`; empty when it has none. Raises ConfigError."""
    sweep = _compose(overrides, "config").get("sweep") or {}
    if not isinstance(sweep, dict):
        raise ConfigError("sweep: must be a mapping of `cells` and `axes`")
    return sweep


def expand(overrides: list[str]) -> list[list[str]]:
    """Hydra's sweep syntax (`a=1,2`, `range(...)`) as plain override lists, the last word varying fastest."""
    lists = []
    for override in _parse(overrides):
        text = override.input_line or ""
        if not override.is_sweep_override():
            lists.append([text])
            continue
        try:
            key = override.get_key_element()
            lists.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        except HydraException as error:
            raise ConfigError(f"{text}: list the values, as in {override.key_or_group}=A,B ({error})") from error
    return [list(words) for words in itertools.product(*lists)]


def compose_launcher(words: list[str]) -> Any:
    """The object that `hydra/launcher=NAME hydra.launcher.KEY=VALUE` describes. Raises ConfigError."""
    parsed = _parse(words)
    names = [o.value() for o in parsed if o.key_or_group == "hydra/launcher"] or ["local"]
    allowed = sorted(path.stem for path in (CONF / "hydra/launcher").glob("*.yaml"))
    if names[-1] not in allowed:
        raise ConfigError(f"hydra/launcher={names[-1]}: no such choice. {_allowed(str(names[-1]), allowed)}")
    keys = [o for o in parsed if o.key_or_group != "hydra/launcher"]
    choice = [f"hydra/launcher={names[-1]}"]
    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        try:
            base = hydra_compose("config", choice, return_hydra_config=True)
            for override in keys:
                _check_key(override, base)
            # A mapping such as `profiles` starts empty, and Hydra adds keys to it only by force.
            given = [f"{'++' * isinstance(o.value(), dict)}{(o.input_line or '').lstrip('+')}" for o in keys]
            config = hydra_compose("config", [*choice, *given], return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(_first_line(error)) from error
    values = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    assert isinstance(values, dict)
    behaviour = Behaviour(name=names[-1], target=values.pop("_target_"), params=values)  # type: ignore[arg-type]  # keys are text
    return build(behaviour, "hydra.launcher")


def _compose(overrides: list[str], config_name: str) -> dict[str, Any]:
    parsed = _parse(overrides)
    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        _check_choices([o for o in parsed if _is_choice(o)])
        try:
            config = hydra_compose(config_name, overrides)
        except (HydraException, OmegaConfBaseException) as error:
            _explain_keys(parsed, config_name)
            raise ConfigError(_first_line(error)) from error
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ConfigError(f"{missing[0]} has no value yet: set it with {missing[0]}=...")
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def checked(cls: type, values: dict[str, Any], group: str) -> Any:
    """Values as an instance of a dataclass, types and ranges included; strict, so that "3" is no number."""
    assert is_dataclass(cls)
    known = [f.name for f in fields(cls) if f.init]
    for key in values:
        if key not in known:
            raise ConfigError(f"{group}.{key}: no such key. {_allowed(key, known)}")
    for f in fields(cls):
        if f.init and f.name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise ConfigError(f"{group}.{f.name} is missing: set it with {group}.{f.name}=...")
    try:
        # JSON keeps strictness without refusing mappings for nested dataclasses.
        return TypeAdapter(cls).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        raise ConfigError(_explain(error, values, group)) from error


def _parse(overrides: list[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(overrides)
    except HydraException as error:
        raise ConfigError(_first_line(error)) from error


def _is_choice(override: Override) -> bool:
    return override.key_or_group in GROUPS and not isinstance(override.value(), dict)


def _check_choices(choices: list[Override]) -> None:
    for override in choices:
        group, value = override.key_or_group, override.value()
        if value is None or override.is_delete():
            continue
        allowed = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
        if isinstance(value, str) and value in allowed:
            continue
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line}: one run takes one {group}; a sweep over several needs -m")
        raise ConfigError(f"{group}={value}: no such choice. {_allowed(str(value), allowed)}")


def _check_key(override: Override, base: DictConfig) -> None:
    if override.is_add() or override.is_force_add() or override.is_delete():
        return
    if override.is_sweep_override():
        raise ConfigError(f"{override.input_line}: one run takes one value; a sweep over several needs -m")
    node: Any = base
    path = override.key_or_group.split(".")
    for depth, key in enumerate(path):
        allowed = [str(k) for k in node] if isinstance(node, DictConfig) else []
        if key not in allowed:
            where = ".".join(path[: depth + 1])
            raise ConfigError(f"{where}: no such key. {_allowed(key, allowed)}")
        node = None if OmegaConf.is_missing(node, key) else node[key]


def _explain_keys(parsed: list[Override], config_name: str) -> None:
    """Raises ConfigError in our words where a key is at fault. Costs a second composition, so only after an error."""
    try:
        base = hydra_compose(config_name, [o.input_line or "" for o in parsed if _is_choice(o)])
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_first_line(error)) from error
    for override in parsed:
        if not _is_choice(override):
            _check_key(override, base)


def _allowed(given: str, allowed: list[str]) -> str:
    close = difflib.get_close_matches(given, allowed, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]}? " if close else ""
    return f"{hint}Allowed: {', '.join(sorted(allowed)) or 'nothing'}"


def _explain(error: ValidationError, values: dict[str, Any], group: str) -> str:
    """One line a key: what was given and everything that would have been accepted."""
    reasons: dict[str, list[str]] = {}
    for item in error.errors():
        place = [str(part) for part in item["loc"]]
        key = place[0] if place else ""
        message = item["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        inner = [part for part in place[1:] if part.isidentifier() and part[0].islower()]
        reasons.setdefault(key, []).append(f"{'.'.join(inner)}: {message}" if inner else message)
    lines = []
    for key, messages in reasons.items():
        if not key:
            lines += [message if message.startswith(group) else f"{group}: {message}" for message in messages]
            continue
        lines.append(f"{group}.{key}={_show(values.get(key))}: must be {' or '.join(dict.fromkeys(messages))}")
    return "\n".join(lines)


def _show(value: Any) -> str:
    return "null" if value is None else str(value)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
