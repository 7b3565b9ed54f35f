"""Small real model, end to end: how fast does each mode decode, ours and the official loop's, on the same weights?

    python -m benchmarks.decode prepare --out prompts.json             # where the harness's packages are installed
    python -m benchmarks.decode run --prompts prompts.json --target DIR [--official PATH] [--out FILE]

`run` needs torch, transformers, scipy, rich and annotated-types alone. At each temperature arms take turns sample by
sample, the order reversed every other sample, so a machine that slows down slows all of them. Budgets are compared on
samples of their own; the fastest there is `chosen`, and the official DDTree runs with it. Prefill is in no time.

For equal acceptance rather than speed: `--engine dtype=float32 --noise coupled`, where every mode, the official loop
included, must give the same tokens at any temperature (the official loop's `sample` is replaced, so its times differ).
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.decode_arms import (
    PRIME_TOKENS,
    Arm,
    Decoded,
    OfficialArm,
    OurArm,
    Prompt,
    ddtree,
    our_modes,
    parse_engine,
)
from benchmarks.decode_rows import fastest, rows
from benchmarks.official import OfficialLoop

Found = dict[str, dict[str, Decoded]]  # arm -> sample -> what came out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    prepare = commands.add_parser("prepare", help="render prompts with the harness's own prompt code")
    prepare.add_argument("--out", type=Path, required=True)
    prepare.add_argument("--tasks", default="humaneval,math500")
    prepare.add_argument("--samples", type=int, default=60, help="of each task; the choice of budgets takes some too")
    prepare.add_argument("overrides", nargs="*", help="KEY=VALUE of the harness, e.g. model=...")
    prepare.set_defaults(call=write_prompts)
    run = commands.add_parser("run")
    run.add_argument("--prompts", type=Path, required=True)
    run.add_argument("--target", type=Path, required=True, help="checkpoint folder")
    run.add_argument("--drafter", type=Path, default=Path("assets/smollm2_135m-dflash"))
    run.add_argument("--official", type=Path, help="checkout of the official loop: see benchmarks/official.py")
    run.add_argument("--temperatures", type=_numbers, default=[0.0, 0.6, 1.0])
    run.add_argument("--budgets", type=_integers, default=[7, 15, 31, 63])
    run.add_argument("--samples", type=int, default=48, help="reported, at each temperature")
    run.add_argument("--choose-samples", type=int, default=8)
    run.add_argument("--official-samples", type=int, default=24, help="of them for the official DDTree")
    run.add_argument("--official-others", type=int, default=4, help="of them for its chain and autoregressive")
    run.add_argument("--max-new-tokens", type=int, default=128)
    run.add_argument("--verifier", choices=("coupled", "kernel", "walk"), default="coupled")
    run.add_argument("--baselines", default="coupled", help="verifiers of the autoregressive arms that compete")
    run.add_argument("--engine", nargs="*", default=[], help="KEY=VALUE of engine=hf")
    run.add_argument("--noise", choices=("own", "coupled"), default="own", help="the official loop's")
    run.add_argument("--limit-s", type=float, default=270, help="start no sample after so long")
    machine.add_arguments(run)
    run.set_defaults(call=measure)
    options = parser.parse_args()
    options.call(options)


def write_prompts(options: argparse.Namespace) -> None:
    from harness.compose import build, compose
    from harness.plan import make_plan

    prompts: list[dict[str, Any]] = []
    for task in options.tasks.split(","):
        config = compose([f"task={task}", f"run.limit={options.samples}", *options.overrides])
        plan = make_plan(config, build(config.task, "task"))
        prompts += [asdict(Prompt(task, r.sample_id, r.stream, r.prompt_ids)) for r in plan.requests]
    prompts.sort(key=lambda p: p["stream"])  # tasks mixed, in an order that nobody chose
    source = {key: value for key, value in plan.resolved["sources"]["target"].items() if key != "path"}
    found = {"stop_ids": plan.setup.stop_ids, "target": source, "prompts": prompts}
    options.out.write_text(json.dumps(found) + "\n")
    Console().print(f"{len(prompts)} prompts in {options.out}; target of `run`: {plan.setup.target}", soft_wrap=True)


def measure(options: argparse.Namespace) -> None:
    started = time.monotonic()
    asked = json.loads(options.prompts.read_text())
    prompts = [Prompt(**p) for p in asked["prompts"]]
    choose, report = prompts[: options.choose_samples], prompts[options.choose_samples :][: options.samples]
    if len(report) < options.samples:
        raise ValueError(
            f"--samples={options.samples}: {options.prompts} leaves {len(report)} beside those for choosing"
        )
    device = machine.pick_device(options.device)
    ours, start_up_s = open_ours(options, device, asked["stop_ids"], choose[0])
    loop = None
    if options.official:
        begun = time.monotonic()
        dtype = getattr(torch, ours["dflash"].session.resolved["dtype"])
        places = options.official, options.target, options.drafter
        loop = OfficialLoop.load(*places, dtype=dtype, device=device, noise=options.noise)
        start_up_s["official"] = round(time.monotonic() - begun, 2)
    result: dict[str, Any] = {
        "benchmark": "decode",
        "machine": machine.facts(device, options.commit),
        "options": {k: v for k, v in vars(options).items() if isinstance(v, (int, float, str, list)) and k != "commit"},
        "target": asked["target"],
        "engine": {name: arm.session.resolved for name, arm in ours.items()},
        "official": loop.facts() if loop else None,
        "start_up_s": start_up_s,
        "temperatures": {},
    }
    begun = time.monotonic()
    for place, t in enumerate(options.temperatures, 1):
        until = begun + (options.limit_s - (begun - started)) * place / len(options.temperatures)
        result["temperatures"][str(t)] = at_temperature(
            t, ours, loop, choose, report, options, asked["stop_ids"], until
        )
        result["seconds"] = round(time.monotonic() - started, 1)
        machine.write(options.out, result)  # what is done is kept, whatever comes next
    if failed := [message for arm in ours.values() for message in arm.failed]:
        raise SystemExit("\n".join(failed))


def open_ours(
    options: argparse.Namespace, device: str, stop_ids: list[int], prompt: Prompt
) -> tuple[dict[str, OurArm], dict[str, float]]:
    """Our arms, and the seconds until each had decoded its first tokens."""
    engine = parse_engine(options.engine)
    ours, seconds = {}, {}
    for name, mode in our_modes(options.budgets, options.verifier, options.baselines.split(",")).items():
        begun = time.monotonic()
        places = {"target": options.target, "drafter": options.drafter}
        ours[name] = OurArm(mode, engine, **places, device=device, stop_ids=stop_ids)
        ours[name].guard(prompt)
        seconds[name] = round(time.monotonic() - begun, 2)
        print(f"{name}: ready in {seconds[name]} s", flush=True)
    return ours, seconds


def at_temperature(
    t: float,
    ours: dict[str, OurArm],
    loop: OfficialLoop | None,
    choose: list[Prompt],
    report: list[Prompt],
    options: argparse.Namespace,
    stop_ids: list[int],
    until: float,
) -> dict[str, Any]:
    """Everything at one temperature: prime, choose a budget, decode in turns, tell."""
    begun = time.monotonic()
    for arm in ours.values():
        arm.prime(choose + report, t, options.max_new_tokens)
    prime_s = round(time.monotonic() - begun, 2)
    chosen = choose_budget(ours, options.budgets, choose, t, options.max_new_tokens)
    arms: dict[str, Arm] = dict(ours)
    theirs: dict[str, OfficialArm] = {}
    if loop:
        theirs = {
            "official autoregressive": OfficialArm(loop, "autoregressive", None, stop_ids),
            "official dflash": OfficialArm(loop, "dflash", None, stop_ids),
            f"official {ddtree(chosen)}": OfficialArm(loop, "ddtree", chosen, stop_ids),
        }
        for arm in theirs.values():
            arm.decode(choose[0], t, PRIME_TOKENS)  # as much warm-up as in its own benchmark
    limits = {name: options.official_samples if "ddtree" in name else options.official_others for name in theirs}
    print(f"T={t}: primed in {prime_s} s, chosen budget {chosen}", flush=True)
    found, undone = interleave(arms | theirs, report, limits, t, options.max_new_tokens, until)
    table = rows(found)
    show(t, table, chosen)
    return {
        "chosen_budget": chosen,
        "prime_s": prime_s,
        "samples_not_reached": undone,
        "failed": [message for arm in ours.values() for message in arm.failed],
        "official_samples_dropped": sum(arm.dropped for arm in theirs.values()),
        "arms": table,
        "tokens_rounds_seconds": {
            name: {sample: [d.tokens, d.rounds, round(d.seconds, 5)] for sample, d in samples.items()}
            for name, samples in found.items()
        },
    }


def choose_budget(ours: dict[str, OurArm], budgets: list[int], prompts: list[Prompt], t: float, cap: int) -> int:
    """The fastest budget at temperature t on samples that are not reported."""
    found: Found = {ddtree(budget): {} for budget in budgets}
    for prompt in prompts:
        for name in found:
            if decoded := ours[name].decode(prompt, t, cap):
                found[name][prompt.sample_id] = decoded
    best = fastest({name: samples for name, samples in found.items() if samples})
    if best is None:
        raise ValueError("--choose-samples: none of them has a round; take more")
    return int(best.removeprefix("ddtree-"))


def interleave(
    arms: dict[str, Arm], prompts: list[Prompt], limits: dict[str, int], t: float, cap: int, until: float
) -> tuple[Found, int]:
    """Every arm on every sample, in turns; an arm in `limits` on the first so many. Also: samples not reached."""
    found: Found = {name: {} for name in arms}
    for place, prompt in enumerate(prompts):
        if time.monotonic() > until:
            return found, len(prompts) - place
        names = [name for name in arms if place < limits.get(name, len(prompts))]
        for name in names[:: -1 if place % 2 else 1]:
            if decoded := arms[name].decode(prompt, t, cap):
                found[name][f"{prompt.task} {prompt.sample_id}"] = decoded
    return found, 0


def show(temperature: float, table: dict[str, dict[str, Any]], chosen: int) -> None:
    """Speed-ups are against our own fastest autoregressive arm."""
    out = Table("arm", "samples", "acceptance", "tokens/s", "round ms", "round / AR", "speed-up", "acceptance / official",
                "tokens/s / official", title=f"T={temperature}, chosen budget {chosen}")  # fmt: skip
    for name, row in table.items():
        official = row.get("over_official", {})
        out.add_row(
            name,
            str(row["samples"]),
            f"{row['acceptance_length']:.3f}",
            f"{row['tokens_per_s']:.1f}",
            f"{row['round_ms']:.3f}",
            _interval(row.get("round_over_autoregressive")),
            _interval(row.get("speed_up")),
            _interval(official.get("acceptance_length")),
            _interval(official.get("tokens_per_s")),
        )
    Console(width=180).print(out)


def _interval(value: dict[str, float] | None) -> str:
    if value is None:
        return ""
    low, high = value["low"], value["high"]
    return f"{value['value']:.3f}" + (f" [{low:.3f}, {high:.3f}]" if low is not None else "")


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


def _integers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


if __name__ == "__main__":
    main()
