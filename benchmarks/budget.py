"""Which tree budget is fastest on this machine? Every mode on the same prompts, interleaved, in one process.

    python benchmarks/budget.py [KEY=VALUE ...] [--samples 8] [--budgets 4,7,8,15,16,31,32] [--out FILE]

Writes one JSON: per mode the pooled acceptance length, decode tokens/s, and the ratio of its time per token to
autoregressive decoding's on the same samples (median over samples, and pooled). Modes take turns sample by sample, so a
machine that slows down slows all of them. Prompts are of one half of the samples by default: report on the other.
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from harness import hardware
from harness.compose import build, compose
from harness.plan import make_plan
from harness.runs import now, versions
from harness.speculative.autoregressive import Autoregressive
from harness.speculative.ddtree import DDTree
from harness.speculative.dflash import DFlash


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--budgets", default="4,7,8,15,16,31,32")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    config = compose([f"run.limit={2 * options.samples}", *options.overrides])
    plan = make_plan(config, build(config.task, "task"))
    requests = plan.requests[options.samples :]  # the default run decodes the first ones: choose on others
    modes = {"autoregressive": Autoregressive(), "dflash": DFlash()}
    modes |= {f"ddtree-{b}": DDTree(tree_budget=int(b)) for b in options.budgets.split(",")}
    engine = build(config.engine, "engine")
    sessions = {name: engine.open(replace(plan.setup, mode=mode)) for name, mode in modes.items()}

    found: dict[str, list] = {name: [] for name in modes}
    for request in track(requests, description="samples"):
        for name, session in sessions.items():
            [generation] = session.generate([request])
            assert generation.error is None, generation.error
            found[name].append(generation)
    rows = {name: row(generations, found["autoregressive"]) for name, generations in found.items()}
    show(rows)
    result = {
        "at": now(),
        "command": f"python benchmarks/budget.py {' '.join(options.overrides)} --samples {options.samples}",
        "hardware": hardware.seen(config.hardware),
        "engine": sessions["autoregressive"].resolved,
        "sampling": plan.resolved["sampling"],
        "samples": [request.sample_id for request in requests],
        "versions": versions(),
        "modes": rows,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def row(generations: list, baseline: list) -> dict[str, float]:
    emitted = sum(r.num_emitted for g in generations for r in g.rounds)
    rounds = sum(len(g.rounds) for g in generations)
    seconds = sum(g.decode_s or 0 for g in generations)
    ratios = [per_token(b) / per_token(g) for g, b in zip(generations, baseline, strict=True) if g.rounds and b.rounds]
    return {
        "acceptance_length": emitted / rounds,
        "round_ms": 1000 * seconds / rounds,
        "decode_tokens_per_s": emitted / seconds,
        "speed_up_pooled": sum(b.decode_s or 0 for b in baseline)
        / sum(r.num_emitted for b in baseline for r in b.rounds)
        / (seconds / emitted),
        "speed_up_median": statistics.median(ratios),
    }


def per_token(generation) -> float:
    return generation.decode_s / sum(r.num_emitted for r in generation.rounds)


def show(rows: dict[str, dict[str, float]]) -> None:
    table = Table("mode", *next(iter(rows.values())))
    for name, values in rows.items():
        table.add_row(name, *(f"{value:.3f}" for value in values.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
