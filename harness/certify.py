"""The exactness certificate of one cell, part by part: `python -m harness.certify KEY=VALUE ...`.

The cell is composed as for a run, and every run with the same key (`certificate/scope.py`) refers to the certificate. The
proof, the conditions and what a green one means: docs/exactness.md.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in harness/__main__.py: before torch is imported
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from rich.console import Console

from harness import hardware
from harness.certificate.bench import Bench, open_bench
from harness.certificate.controls import inject
from harness.certificate.distribution import edge_coins, find_contexts, redrawn
from harness.certificate.document import show, show_scope, show_verdict, to_json, write
from harness.certificate.equality import equality
from harness.certificate.line import Line
from harness.certificate.realrun import real_run
from harness.certificate.reference import Filters
from harness.certificate.served import ABSENT, ServedBench, run_size, served_lines
from harness.certificate.serving import Serving
from harness.certificate.settings import CertifySettings
from harness.certificate.state import state
from harness.certificate.toy import toy_lines
from harness.compose import build, checked, compose, compose_values
from harness.config import EvalConfig
from harness.decoding.noise import stream_key
from harness.decoding.verify_kernel import find_kernel
from harness.engines.base import Request, Setup
from harness.plan import make_plan
from harness.runs import now, open_run
from harness.tracking.base import Tracker
from tasks.base import Task

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Cell:
    engine: Any
    setup: Setup
    requests: list[Request]
    settings: CertifySettings
    serving: Serving  # with a known mistake where one is injected


def certify(config: EvalConfig, settings: CertifySettings, console: Console) -> int:
    """Take the certificate, write it and log it. Returns 0 when it is green, 1 when it is red."""
    engine: Any = build(config.engine, "engine")
    served = refuse(engine, config, settings)
    task: Task = build(config.task, "task")
    tracker: Tracker = build(config.tracking, "tracking")
    found = hardware.seen(config.hardware)
    hardware.check(config.hardware, found)
    plan = make_plan(config, task)
    if not plan.setup.mode.needs_drafter:
        raise ValueError(
            f"speculative={config.speculative.name} is what the others are held against. Certify dflash or ddtree"
        )

    started_at, started = now(), time.perf_counter()
    settings = fitted(settings, config)
    serving = inject(Serving(), settings.inject) if settings.inject else Serving()
    bench: Any = ServedBench(engine, plan.setup) if served else open_bench(engine, plan.setup, serving)
    with closing(bench):
        plan.resolved["engine"] = bench.session.resolved
        run, manifest = open_run(config, plan.resolved, found, len(plan.requests))
        show_scope(console, manifest, settings)

        lines: list[Line] = []
        with console.status("") as status:
            if served:
                few = some_requests(plan.requests, max(settings.equality_samples, engine.concurrency), config)
                many = some_requests(plan.requests, run_size(settings), config)
                taken = served_lines(bench, few, many, settings, status.update)
            else:
                requests = some_requests(plan.requests, max(settings.samples, engine.batch_size), config)
                cell = Cell(engine, plan.setup, requests, settings, serving)
                taken = parts(cell, bench, status.update)
            for line in taken:
                lines.append(line)
                show(console, line)
    seconds = time.perf_counter() - started
    certificate = to_json(lines, ABSENT if served else [], manifest, settings, started_at, seconds)
    path = write(certificate, run, manifest, settings)
    if not settings.inject:
        tracker.start(run, manifest)
        tracker.finish({**(run.summary() or {}), "certificate/status": certificate["status"]})
    return show_verdict(console, certificate, path)


def refuse(engine: Any, config: EvalConfig, settings: CertifySettings) -> bool:
    """Whether the engine is a server, of which only a part can be seen. ValueError for what cannot be certified."""
    if hasattr(engine, "batch_size"):
        return False
    if not engine.owns_device:
        raise ValueError(
            f"engine={config.engine.name}: a server that is not started here cannot be asked for its other modes and "
            "dtypes. Certify engine=hf or engine=sglang"
        )
    if engine.prompts == "messages":
        raise ValueError("engine.tokenizer=server: the certificate needs the prompts' ids here. Allowed: harness")
    if settings.inject:
        raise ValueError(
            f"certify.inject={settings.inject}: mistakes are put into functions of this process, and engine="
            f"{config.engine.name} runs in another. Allowed with it: null"
        )
    return True


def parts(cell: Cell, bench: Bench, tell: Tell) -> Iterator[Line]:
    """All lines, in order: equality, distribution with prediction, state."""
    settings, requests, batch = cell.settings, cell.requests, cell.engine.batch_size
    if settings.float64_samples:
        exact = open_bench(cell.engine, cell.setup, cell.serving, dtype="float64")
        some = requests[: max(settings.float64_samples, min(batch, 2))]
        yield from equality(exact, some, settings.float64_tokens, settings, tell)
        yield from state(exact, some, settings.float64_tokens, settings, tell)
        exact.close()
    some = requests[: max(settings.equality_samples, batch)]
    if settings.equality_tokens and bench.dtype != "float64":
        yield from equality(bench, some, settings.equality_tokens, settings, tell)
    if settings.equality_tokens and bench.session.runner and bench.dtype != "float32":
        # Graphs have no float64: the same kernels with the fewest near ties they can have.
        finer = open_bench(cell.engine, cell.setup, cell.serving, dtype="float32")
        yield from equality(finer, some, settings.equality_tokens, settings, tell)
        finer.close()
    device, verifiers = bench.target.device, usable(cell, bench)
    yield from toy_lines(cell.serving, verifiers, Filters(0.8), settings.toy_draws, settings.seed, tell, device)
    if "kernel" in verifiers:
        yield edge_coins(cell.serving, device)
    yield from redraws(cell, bench, tell)
    tell("the real run")
    yield from real_run(bench, requests, settings)
    yield from state(bench, requests[: max(batch, 2)], settings.equality_tokens or settings.run_tokens, settings, tell)


def redraws(cell: Cell, bench: Bench, tell: Tell) -> Iterator[Line]:
    """The verifier that serves at every temperature; the two others where a draw tells most, at the highest."""
    serves = cell.setup.mode.verifier
    temperatures = sorted(cell.settings.redraw_temperatures)
    cells = [*map(Filters, temperatures), Filters(1.0, top_p=0.9, min_p=0.02)]
    for filters in cells:
        tell(f"contexts at {filters}")
        contexts = find_contexts(bench, cell.requests, filters, cell.settings)
        yield from redrawn(cell.serving, serves, contexts, cell.settings, tell)
        if filters == Filters(temperatures[-1]):
            for other in sorted(set(usable(cell, bench)) - {serves}):
                yield from redrawn(cell.serving, other, contexts, cell.settings, tell)


def usable(cell: Cell, bench: Bench) -> list[str]:
    """Every verifier; a machine without the real kernel can still certify the two others."""
    try:
        find_kernel(bench.target.device.type)
    except ValueError:
        if cell.setup.mode.verifier == "kernel":
            raise
        return [name for name in cell.serving.verify if name != "kernel"]
    return list(cell.serving.verify)


def some_requests(planned: list[Request], count: int, config: EvalConfig) -> list[Request]:
    """`count` requests of the cell's samples; where there are fewer samples, again with another repeat's stream."""
    samples = [request for request in planned if request.repeat == 0]
    chosen = []
    for place in range(count):
        request, repeat = samples[place % len(samples)], place // len(samples)
        stream = stream_key(config.sampling.seed, config.task.name, request.sample_id, repeat)
        chosen.append(replace(request, repeat=repeat, stream=stream))
    return chosen


def fitted(settings: CertifySettings, config: EvalConfig) -> CertifySettings:
    """No sample longer than the cell's own, whose length was checked against the target."""
    most = config.sampling.max_new_tokens
    lengths = {name: min(getattr(settings, name), most) for name in ("equality_tokens", "float64_tokens", "run_tokens")}
    return replace(settings, **lengths)


def main(arguments: list[str]) -> int:
    """0 green, 1 red, 2 the configuration cannot run, 130 interrupted: then nothing is written."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console()
    try:
        values = compose_values(arguments, "certify")
        settings: CertifySettings = checked(CertifySettings, values["certify"], "certify")
        config = compose([word for word in arguments if not word.startswith("certify.")])
        return certify(config, settings, console)
    except ValueError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted: no certificate was written")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
