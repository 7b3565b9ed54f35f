"""SGLang's modes against each other on one machine: acceptance length and tokens/s by concurrency and temperature.

Runs inside SGLang's environment. Each stage is one engine in a process of its own; a stage's cells are written as they
end, and a cell that the result file holds already is not run again, so a run may be cut and continued.

    python -m benchmarks.sglang_gpu --target DIR --drafter DIR --prompts prompts.json --out result.json --seconds 540

Stages: autoregressive, dflash, ddtree with overlap scheduling, and the same with it off (`_sync`). Tokens/s are output
tokens over the wall time of a cell, prefill included; every request gives exactly `--new-tokens` tokens (the end token
is ignored), so all stages do the same work. Acceptance length is (tokens - 1) / verifications, pooled.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STAGES = ("autoregressive", "dflash", "ddtree", "autoregressive_sync", "dflash_sync", "ddtree_sync")
START_S = 45  # no stage is started with less time left


def main() -> None:
    asked = parse()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    if asked.child:
        run_stage(asked, asked.child)
        return
    end = time.monotonic() + asked.seconds
    done = read(asked.out)
    done.setdefault("cells", [])
    if not asked.cpu:
        done["machine"] = machine(asked)
    done["settings"] = {
        key: getattr(asked, key)
        for key in ("tree_budget", "new_tokens", "verifier", "dtype", "generations", "tensor_parallel")
    }
    write(asked.out, done)
    complete = True
    for stage in asked.stages:
        if not missing(asked, stage):
            continue
        left = end - time.monotonic()
        if left < START_S:
            print(f"no time left for {stage}", flush=True)
            complete = False
            continue
        complete &= child(asked, stage, left - 10)
    print("complete" if complete else "incomplete: run again", flush=True)
    sys.exit(0 if complete else 3)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("target", "drafter", "prompts", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--stages", type=words(str), default=[*STAGES[:3], "dflash_sync", "ddtree_sync"])
    parser.add_argument("--concurrency", type=words(int), default=[1, 4, 16, 64])
    parser.add_argument("--temperatures", type=words(float), default=[0.0, 0.6, 1.0])
    parser.add_argument("--generations", type=words(int), default=[32, 128, 512, 512], help="per concurrency")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--tree-budget", type=int, default=15)
    parser.add_argument("--verifier", default="coupled")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--commit", default="", help="where the files travelled without git")
    parser.add_argument("--cpu", action="store_true", help="rehearsal: timings mean nothing")
    parser.add_argument("--child", choices=STAGES, help=argparse.SUPPRESS)
    return parser.parse_args()


def words(kind: type) -> Any:
    return lambda text: [kind(word) for word in text.split(",")]


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: Path, result: dict[str, Any]) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(result, allow_nan=False) + "\n")
    draft.replace(path)


def missing(asked: argparse.Namespace, stage: str) -> list[tuple[float, int, int]]:
    """(temperature, concurrency, generations) that the result file does not hold."""
    cells = {(c["stage"], c["temperature"], c["concurrency"], c["generations"]) for c in read(asked.out)["cells"]}
    wanted = [
        (temperature, concurrency, count)
        for temperature in asked.temperatures
        for concurrency, count in zip(asked.concurrency, asked.generations, strict=True)
    ]
    return [cell for cell in wanted if (stage, *cell) not in cells]


def child(asked: argparse.Namespace, stage: str, seconds: float) -> bool:
    """One stage in its own process group; killed at its limit. What it has written stays."""
    log = asked.out.with_name(f"{stage}.log")
    started = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.sglang_gpu", *sys.argv[1:], "--child", stage],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | str = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = "time"
        if process.poll() is None or code != 0:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    print(f"== {stage}: {code}, {time.monotonic() - started:.0f} s", flush=True)
    lines = log.read_text(errors="replace").splitlines()
    print(*(line for line in lines if line.startswith("CELL")), sep="\n", flush=True)
    if code not in (0, "time"):
        print(*(line[:300] for line in lines[-40:]), sep="\n", flush=True)
    return code == 0


def engine_options(asked: argparse.Namespace, stage: str) -> dict[str, Any]:
    mode, _, sync = stage.partition("_")
    most = max(asked.concurrency)
    options: dict[str, Any] = dict(
        model_path=str(asked.target),
        dtype=asked.dtype,
        context_length=2048,
        max_running_requests=most,
        random_seed=1,
        log_level="info",
        tp_size=asked.tensor_parallel,
        disable_overlap_schedule=bool(sync) or asked.cpu,
    )
    if mode != "autoregressive":
        options |= dict(speculative_algorithm=mode.upper(), speculative_draft_model_path=str(asked.drafter))
    if mode == "ddtree":
        options["speculative_num_draft_tokens"] = asked.tree_budget + 1
        os.environ["DDTREE_VERIFIER"] = asked.verifier
    if asked.cpu:
        return options | dict(
            device="cpu",
            attention_backend="torch_native",
            sampling_backend="pytorch",
            max_total_tokens=16384,
            mem_fraction_static=0.3,
            skip_server_warmup=True,
        )
    return options | dict(
        attention_backend="triton",
        sampling_backend="pytorch",
        mem_fraction_static=0.5,
        cuda_graph_max_bs_decode=most,
        disable_prefill_cuda_graph=True,
        disable_flashinfer_autotune=True,
        max_total_tokens=262144,
    )


def run_stage(asked: argparse.Namespace, stage: str) -> None:
    import sglang

    prompts = json.loads(asked.prompts.read_text())
    started = time.monotonic()
    engine = sglang.Engine(**engine_options(asked, stage))
    up_s = time.monotonic() - started
    print(f"CELL {stage}: engine up in {up_s:.0f} s", flush=True)
    loop = asyncio.new_event_loop() if not hasattr(engine, "loop") else engine.loop
    for concurrency in sorted({c for _, c, _ in missing(asked, stage)}):  # every graph and kernel once
        for temperature in asked.temperatures:
            loop.run_until_complete(ask(engine, asked, prompts[: 2 * concurrency], temperature, concurrency, 16))
    for temperature, concurrency, count in missing(asked, stage):
        engine.flush_cache()
        began = time.monotonic()
        rows = loop.run_until_complete(ask(engine, asked, prompts[:count], temperature, concurrency, asked.new_tokens))
        cell = dict(
            stage=stage, temperature=temperature, concurrency=concurrency, generations=count, up_s=round(up_s, 1)
        )
        cell |= summary(rows, time.monotonic() - began)
        result = read(asked.out)
        result["cells"].append(cell)
        write(asked.out, result)
        shown = {key: value for key, value in cell.items() if key not in ("rows", "histogram")}
        print("CELL", json.dumps(shown), flush=True)
    engine.shutdown()


async def ask(
    engine: Any, asked: argparse.Namespace, prompts: list[dict], temperature: float, concurrency: int, tokens: int
) -> list[dict]:
    """All prompts, at most `concurrency` at a time. The seed belongs to the prompt: equal over stages and batches."""
    gate = asyncio.Semaphore(concurrency)

    async def one(place: int, prompt: dict) -> dict:
        params = dict(temperature=temperature, max_new_tokens=tokens, ignore_eos=True)
        params |= dict(sampling_seed=1000003 * (place + 1))
        async with gate:
            answer = await engine.async_generate(input_ids=prompt["ids"], sampling_params=params)
        meta = answer["meta_info"]
        return dict(
            id=prompt["id"],
            tokens=meta["completion_tokens"],
            rounds=meta.get("spec_verify_ct"),
            drafts=meta.get("spec_num_correct_drafts"),
            histogram=meta.get("spec_correct_drafts_histogram"),
            output=answer["output_ids"],
        )

    return await asyncio.gather(*(one(place, prompt) for place, prompt in enumerate(prompts)))


def summary(rows: list[dict], wall_s: float) -> dict[str, Any]:
    """Rows keep tokens and rounds of each prompt, for intervals clustered by prompt, and a hash of the output."""
    import hashlib

    tokens = sum(row["tokens"] for row in rows)
    found: dict[str, Any] = dict(wall_s=round(wall_s, 3), tokens=tokens, tokens_per_s=round(tokens / wall_s, 1))
    if all(row["rounds"] for row in rows):
        rounds = sum(row["rounds"] for row in rows)
        found["acceptance_length"] = round((tokens - len(rows)) / rounds, 4)
        width = max(len(row["histogram"]) for row in rows)
        padded = [row["histogram"] + [0] * (width - len(row["histogram"])) for row in rows]
        found["histogram"] = [sum(column) for column in zip(*padded, strict=True)]
    found["rows"] = [
        [row["id"], row["tokens"], row["rounds"], hashlib.sha256(json.dumps(row["output"]).encode()).hexdigest()[:12]]
        for row in rows
    ]
    return found


def machine(asked: argparse.Namespace) -> dict[str, Any]:
    import importlib.metadata

    from benchmarks.machine import facts

    found = facts("cuda", asked.commit)
    for name in ("sglang", "sglang-kernel", "transformers", "triton"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


if __name__ == "__main__":
    main()
