"""What does a round cost, and its stages, against the time that reading the weights takes? Random weights.

    python -m benchmarks.rounds [--official PATH] [--shapes qwen3-8b,...] [--limit-s 500] [--out FILE]

A cell is a shape, batch, context and mode. The modes of a group take turns, a run of rounds each, and the median over
the passes is reported. `round_ms`: rounds enqueued back to back, by CUDA events. `decoded_ms`: the same on the wall
clock with each round's report read on the host, as decoding does; what it takes longer is host time between rounds.
Stages are timed after that, each as a CUDA graph of its own, so they add up to a little more than the round.
The floor is the target's streamed weights over the copy bandwidth measured in the same run. The official loop
(benchmarks/official.py) decodes at the same shape in the same turns, with its own clock and its own stage timers.
"""

import argparse
import gc
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import machine, timing
from benchmarks.official import OfficialLoop
from benchmarks.rounds_cells import Group, plan, tree_budget
from benchmarks.rounds_ours import OurModels
from benchmarks.shapes import SHAPES, Shape

Cell = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--official", type=Path, help="checkout of the official loop: see benchmarks/official.py")
    parser.add_argument("--shapes", default="qwen3-8b,smollm2-135m,qwen3-4b")
    parser.add_argument(
        "--groups", choices=("all", "others"), default="all", help="others: those without official rounds"
    )
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--verifier", choices=("coupled", "kernel", "walk"), default="coupled")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20, help="of a pass")
    parser.add_argument("--official-rounds", type=int, default=10, help="of a pass")
    parser.add_argument("--limit-s", type=float, default=500, help="start no group after so long")
    machine.add_arguments(parser)
    options = parser.parse_args()
    device = machine.pick_device(options.device)
    started = time.monotonic()
    bandwidth = timing.copy_bandwidth(device)
    print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s", flush=True)
    names = options.shapes.split(",")

    def asked(name: str) -> list[Group]:
        return [group for group in plan([name]) if options.groups == "all" or not group.official]

    result: dict[str, Any] = {
        "benchmark": "rounds",
        "machine": machine.facts(device, options.commit),
        "options": {k: v for k, v in vars(options).items() if isinstance(v, (int, float, str)) and k != "commit"},
        "copy_bandwidth_gb_s": round(bandwidth / 1e9, 1),
        "shapes": {name: shape_facts(SHAPES[name], bandwidth) for name in names},
        "not_measured": [],
        "cells": [],
    }
    for place, name in enumerate(names, 1):
        until = started + options.limit_s * place / len(names)
        begun = time.monotonic()
        if begun > until:
            result["not_measured"] += [{**asdict(group), "reason": "time"} for group in asked(name)]
            continue
        models = OurModels(SHAPES[name], device, torch.bfloat16, options.verifier)
        official = OfficialLoop.of(options.official, models.model, models.network) if options.official else None
        print(f"{name}: {time.monotonic() - begun:.0f} s to make", flush=True)
        for group in asked(name):
            if time.monotonic() > until:
                result["not_measured"].append({**asdict(group), "reason": "time"})
                continue
            found, failed = measure_group(group, models, official, bandwidth, options, device)
            result["cells"] += found
            result["not_measured"] += failed
            result["seconds"] = round(time.monotonic() - started, 1)
            show(found, f"{name}, batch {group.batch}, context {group.context}, {result['seconds']:.0f} s")
            machine.write(options.out, result)  # what is done is kept, whatever comes next
        del models, official
        _free(device)
    machine.write(options.out, result)


def shape_facts(shape: Shape, bandwidth: float) -> dict[str, Any]:
    """Streamed bytes, and the milliseconds that streaming them takes. `round`: also the drafter and a second LM head."""
    whole = shape.target_bytes + shape.drafter_bytes + shape.head_bytes
    return {
        **{k: v for k, v in asdict(shape).items() if k != "name"},
        "target_gb": shape.target_bytes / 1e9,
        "drafter_gb": shape.drafter_bytes / 1e9,
        "floor_ms": 1000 * shape.target_bytes / bandwidth,
        "round_floor_ms": 1000 * whole / bandwidth,
        "kv_ms_per_1k_tokens": 1000 * 1024 * shape.kv_bytes_per_token / bandwidth,
    }


@torch.inference_mode()
def measure_group(
    group: Group,
    models: OurModels,
    official: OfficialLoop | None,
    bandwidth: float,
    options: argparse.Namespace,
    device: str,
) -> tuple[list[Cell], list[dict[str, Any]]]:
    """A cell for every mode, ours and the official one's, and what could not be measured with its reason."""
    shape = models.shape
    floor_ms = 1000 * shape.target_bytes / bandwidth
    opened, cells, failed = {}, [], []

    def fail(mode: str, error: Exception) -> None:
        failed.append({**asdict(group), "modes": [mode], "reason": f"{type(error).__name__}: {error}"[:300]})
        print(f"  {mode}: {failed[-1]['reason']}", flush=True)

    for mode in group.modes:
        try:
            opened[mode] = models.open(mode, group.batch, group.context, options.temperature)
            opened[mode].set_context(group.context)
            opened[mode].rounds(3)  # captured, compiled and warm
        except Exception as error:  # one mode's failure leaves the others their turns
            fail(mode, error)
            opened.pop(mode, None)
    rounds: dict[str, list[float]] = {mode: [] for mode in opened}
    decoded: dict[str, list[float]] = {mode: [] for mode in opened}
    theirs = {mode: OfficialTurns(official, mode, group, shape, options) for mode in group.modes} if (
        official and group.official
    ) else {}  # fmt: skip
    for _ in range(options.passes):
        for mode, round_ in opened.items():
            round_.set_context(group.context)
            round_.drain()
            rounds[mode].append(timing.device_ms(round_.round, options.rounds, device))
            round_.set_context(group.context)
            round_.drain()
            decoded[mode].append(timing.wall_ms(lambda r=round_: r.rounds(options.rounds), 1, device) / options.rounds)
        for turns in theirs.values():
            turns.take()
    baseline = statistics.median(rounds["autoregressive"]) if "autoregressive" in rounds else None
    for mode, round_ in opened.items():
        round_ms, decoded_ms = statistics.median(rounds[mode]), statistics.median(decoded[mode])
        cell = head(group, mode, "ours", round_ms, floor_ms, baseline)
        cell |= {"passes_ms": rounds[mode], "decoded_ms": decoded_ms, "host_share": max(0.0, 1 - round_ms / decoded_ms)}
        try:
            round_.set_context(group.context)
            stages = round_.stages(lambda work: timing.capture(work, device))
            cell["stages_ms"] = {
                name: timing.device_ms(stage, options.rounds, device) for name, stage in stages.items()
            }
            if device == "cuda" and group.official:
                round_.set_context(group.context)
                cell["kernels"] = timing.kernels(round_.round, 5)
        except Exception as error:
            fail(f"{mode} stages", error)
        cells.append(cell)
    for mode, turns in theirs.items():
        if turns.error:
            fail(f"official {mode}", turns.error)
        if turns.round_ms:
            cells.append(
                turns.cell(head(group, mode, "official", statistics.median(turns.round_ms), floor_ms, baseline))
            )
    opened.clear()
    _free(device)
    return cells, failed


def head(
    group: Group, mode: str, engine: str, round_ms: float, floor_ms: float, autoregressive_ms: float | None
) -> Cell:
    """What every cell says. `over_autoregressive` is against our own, in the same group."""
    return {
        "shape": group.shape,
        "batch": group.batch,
        "context": group.context,
        "mode": mode,
        "engine": engine,
        "round_ms": round_ms,
        "times_floor": round_ms / floor_ms,
        "over_autoregressive": round_ms / autoregressive_ms if autoregressive_ms else None,
    }


class OfficialTurns:
    """The official loop's rounds at a cell: one short generation a turn, its first round left out."""

    def __init__(self, loop: OfficialLoop, mode: str, group: Group, shape: Shape, options: argparse.Namespace):
        self.loop, self.mode, self.rounds = loop, mode, options.official_rounds
        self.temperature, self.context = options.temperature, group.context
        generator = torch.Generator().manual_seed(0)
        self.prompt = torch.randint(3, min(shape.vocab, 50000), (group.context,), generator=generator).tolist()
        self.round_ms: list[float] = []
        self.stages: dict[str, list[float]] = {}
        self.error: Exception | None = None
        self.turn = 0

    def take(self) -> None:
        self.turn += 1
        try:
            found = self.loop.generate(
                self.prompt,
                method="ddtree" if tree_budget(self.mode) else self.mode,  # type: ignore[arg-type]
                tree_budget=tree_budget(self.mode),
                temperature=self.temperature,
                max_new_tokens=self.rounds + 2,
                stop_ids=[],
                stream=self.turn,
            )
        except Exception as error:
            self.error = error
            return
        self.round_ms.append(1000 * statistics.mean(found.round_s[1:]))
        for name, seconds in found.stage_s.items():
            self.stages.setdefault(name, []).append(1000 * seconds / len(found.round_s))

    def cell(self, cell: Cell) -> Cell:
        stages = {name: statistics.median(values) for name, values in self.stages.items()}
        return cell | {"passes_ms": self.round_ms, "stages_ms": stages, "own_stage_timers": True}


def show(cells: list[Cell], title: str) -> None:
    ours = [cell.get("stages_ms", {}) for cell in cells if cell["engine"] == "ours"]
    stages = list(dict.fromkeys(stage for found in ours for stage in found))
    keys = ("round_ms", "times_floor", "over_autoregressive", "decoded_ms", "host_share")
    table = Table("engine", "mode", "round ms", "× floor", "× AR", "decoded ms", "host", *stages, title=title)
    for cell in cells:
        values = [cell.get(key) for key in keys] + [cell.get("stages_ms", {}).get(stage) for stage in stages]
        table.add_row(cell["engine"], cell["mode"], *("" if v is None else f"{v:.3f}" for v in values))
    Console(width=160).print(table)


def _free(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
