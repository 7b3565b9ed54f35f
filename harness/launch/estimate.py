"""About how long a cell takes, and the table of `make plan`.

Best is a finished run of the same target, hardware and mode: its tokens a sample and its speed. Next is one of
the same target and hardware in another mode. Else the floor of a memory-bound step: the weights are read once a round
and a round commits at least one token, so the time at one token a round is what autoregressive decoding cannot beat.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.config import EvalConfig
from harness.launch.cells import Planned
from harness.launch.memory import PROMPT_TOKENS, Memory, needed
from harness.records import RunFolder, RunManifest


@dataclass(frozen=True, kw_only=True)
class Time:
    """Seconds for all samples, or for one where their number is not known."""

    seconds: float | None
    per_sample: bool
    basis: str


Finished = list[tuple[RunManifest, Mapping[str, Any]]]


def finished_runs(outputs: Path) -> Finished:
    """Manifest and summary of every finished run, the newest first."""
    found = []
    for path in outputs.glob("*/run.json"):
        try:
            run = RunFolder(path.parent)
            manifest, summary = run.manifest(), run.summary()
        except ValueError:
            continue
        if manifest.status == "finished" and summary and summary.get("throughput/decode_tokens_per_s"):
            found.append((manifest, summary))
    return sorted(found, key=lambda pair: pair[0].started_at, reverse=True)


def time_of(config: EvalConfig, memory: Memory, runs: Finished) -> Time:
    asked = config.asked
    same = [
        pair for pair in runs if _same(pair[0], asked, "model", "target") and _same(pair[0], asked, "hardware", "name")
    ]
    mode = [pair for pair in same if _same(pair[0], asked, "speculative", "name")]
    budget = [pair for pair in mode if _same(pair[0], asked, "speculative", "tree_budget")]
    samples = _samples(config, same)
    for pairs, basis in ((budget, "runs in this mode"), (mode, "another budget"), (same, "another mode")):
        if pairs:
            manifest, summary = pairs[0]
            per_sample = summary["tokens/output"] / max(summary["samples/records"], 1)
            cap_before, cap = manifest.asked["sampling"]["max_new_tokens"], config.sampling.max_new_tokens
            tokens = per_sample if cap == cap_before else min(cap, per_sample * cap / cap_before)
            return _time(tokens / summary["throughput/decode_tokens_per_s"], samples, basis)
    bandwidth = config.hardware.bandwidth_gb_s
    if memory.weights is None or bandwidth is None:
        missing = "no checkpoint on this machine" if memory.weights is None else "no hardware.bandwidth_gb_s"
        return Time(seconds=None, per_sample=samples is None, basis=f"nothing: {missing}")
    round_s = memory.weights / (1e9 * bandwidth * config.hardware.count)
    batch = config.engine.params.get("batch_size") or config.engine.params.get("concurrency") or 1
    return _time(round_s * config.sampling.max_new_tokens / batch, samples, "bandwidth floor, one token a round")


def _time(per_sample_s: float, samples: int | None, basis: str) -> Time:
    return Time(seconds=per_sample_s * (samples or 1), per_sample=samples is None, basis=basis)


def _same(manifest: RunManifest, asked: Mapping[str, Any], group: str, key: str) -> bool:
    return manifest.asked.get(group, {}).get(key) == asked[group].get(key)


def _samples(config: EvalConfig, same: Finished) -> int | None:
    """How many decodes the cell is; of a whole set only known from a run that took it whole."""
    if config.run.limit is not None:
        return config.run.limit * config.sampling.repeats
    for manifest, _ in same:
        if _same(manifest, config.asked, "task", "name") and manifest.asked["run"]["limit"] is None:
            return manifest.samples_planned // manifest.asked["sampling"]["repeats"] * config.sampling.repeats
    return None


def show(planned: Planned, states: Mapping[str, str], console: Console) -> None:
    """Print the cells, what each needs and the time that is left."""
    runs = finished_runs(planned.outputs)
    table = Table(title=f"{planned.name}: {len(planned.cells)} cells in {planned.outputs}", title_justify="left")
    table.add_column("id", no_wrap=True)
    table.add_column("cell", overflow="fold")
    for name in ("weights", "KV", "tree", "of", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("estimated from", overflow="fold")
    table.add_column("now", no_wrap=True)
    left, unknown = 0.0, 0
    for cell in planned.cells:
        config = planned.configs[cell.id]
        memory = needed(config)
        time = time_of(config, memory, runs)
        if states[cell.id] != "finished":
            unknown += time.seconds is None or time.per_sample
            left += 0.0 if time.per_sample else time.seconds or 0.0
        room = config.hardware.memory_gb
        total = memory.total
        too_much = room is not None and total is not None and total > 1e9 * room * config.hardware.count
        table.add_row(
            cell.id, cell.label, _gb(memory.weights), _gb(memory.kv), _gb(memory.tree),
            "" if room is None else f"{room * config.hardware.count:g} GB" + (" [red]too much[/]" if too_much else ""),
            _duration(time.seconds) + (" a sample" if time.per_sample and time.seconds is not None else ""),
            time.basis, states[cell.id],
        )  # fmt: skip
    console.print(table)
    console.print(
        f"KV with {PROMPT_TOKENS} prompt tokens; activations come on top. Times are decoding alone.", style="dim"
    )
    rest = f", and {unknown} cells whose time is unknown" if unknown else ""
    console.print(f"To do: about {_duration(left)} one after another{rest}.")


def _gb(value: int | None) -> str:
    if value is None:
        return "unknown"
    return f"{value / 1e9:.2f} GB" if value >= 1e7 else f"{value / 1e6:.2f} MB"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
