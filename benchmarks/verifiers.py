"""Host walk or GPU kernel? Time of one verification, from the target's logits to path and bonus token on the host.

    python -m benchmarks.verifiers [--device cuda] [--seconds 110] [--check] [--out FILE]

Arms, interleaved in random order in every repetition, so that ratios are paired:
  walk               probabilities at visited nodes only, one question to the device a step
  draw_then_walk     a token drawn at every node on the device, all of them copied to the host, a walk in Python there
                     (a way of accelerators: on a CPU in tiny cells only)
  copy_then_walk     all logits copied to the host, `walk` there (CUDA only, up to 1 GiB of logits)
  kernel             softmax at every node, zeroed scratch, the kernel (CUDA: sgl_kernel's; CPU: its torch form)
  coupled            Gumbel argmax; on CUDA all nodes at once, on a CPU the visited ones
  coupled_at_once    all nodes at once (CPU only, where it differs from coupled)
and parts: `softmax` of every node (what kernel cannot do without), and `bare_kernel` on ready probabilities.
`graph_ms`: the verifier and the copy to the host when a CUDA graph replays it.

Trees come from level_wise on a synthetic drafter of 15 depths; target logits are the drafter's plus noise, in bfloat16.
Shapes: B batch, N nodes with the root, D depths, V vocabulary.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks import machine
from benchmarks.device_agreement import check
from benchmarks.verifier_cells import Cell, Problem, cells, make_problem
from harness.decoding.layout import to_sibling_layout
from harness.decoding.sampling import probabilities
from harness.decoding.verify import VERIFIERS, Verified, coupled_at_once
from harness.decoding.verify_kernel import find_kernel, kernel_origin

MOST_IN_GRAPH = 2**30
MOST_COPIED = 2**29
MOST_DRAWN_ON_CPU = 2**20  # nothing to copy there, and ten times slower than the rest together
MOST_BARE = 2**31  # its probabilities and scratch stay allocated beside the other arms


def draw_then_walk(problem: Problem) -> Verified:
    p_MV = probabilities(problem.logits_BNV, problem.sampling).flatten(0, 1)
    tree, shape = problem.tree, problem.tree.token_BN.shape
    drawn = torch.multinomial(p_MV, 1).view(shape).tolist()
    paths, bonus = [], []
    for draws, tokens, parents in zip(drawn, tree.token_BN.tolist(), tree.parent_BN.tolist(), strict=True):
        child = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
        path, node = [], 0
        while node is not None:
            path.append(node)
            node = child.get((node, draws[node]))
        paths.append(path + [-1] * (tree.max_depth + 1 - len(path)))
        bonus.append(draws[path[-1]])
    path_BW = torch.tensor(paths)
    return Verified(path_BW, (path_BW >= 0).sum(1) - 1, torch.tensor(bonus))


def copy_then_walk(problem: Problem, index_B: Tensor) -> Verified:
    tree, sampling = problem.host
    return VERIFIERS["walk"](tree, problem.logits_BNV.cpu(), sampling, index_B.cpu())


def bare_kernel(problem: Problem) -> Callable[[], Tensor]:
    """The kernel alone. Its scratch is zeroed once: rewriting the same mass costs the same."""
    tree, layout = problem.tree, to_sibling_layout(problem.tree)
    target_BNV = probabilities(problem.logits_BNV, problem.sampling).contiguous()
    batch, nodes, _ = target_BNV.shape
    draft_BNV, coin_BN = torch.zeros_like(target_BNV), torch.rand_like(target_BNV[..., 0]).clamp(min=1e-6)
    out = [torch.zeros(n, dtype=torch.int32, device=coin_BN.device) for n in (batch * nodes, batch)]
    path_BW = torch.zeros(batch, tree.max_depth + 1, dtype=torch.int32, device=coin_BN.device)
    final_B, kernel = coin_BN[:, 0].contiguous(), find_kernel(coin_BN.device.type)

    def call() -> Tensor:
        kernel(
            out[0], path_BW, out[1], tree.token_BN, layout.retrieve_index_BN, layout.retrieve_next_token_BN,
            layout.retrieve_next_sibling_BN, coin_BN, final_B, target_BNV, draft_BNV, 1.0, 1.0, True,
        )  # fmt: skip
        return out[1]

    return call


def arms(problem: Problem, device: str) -> dict[str, Callable[[Tensor], Verified | Tensor]]:
    """Each takes the index of the round, so that every repetition draws anew."""
    given = (problem.tree, problem.logits_BNV, problem.sampling)
    found: dict[str, Callable[[Tensor], Verified | Tensor]] = {
        "walk": lambda index: VERIFIERS["walk"](*given, index),
        "kernel": lambda index: VERIFIERS["kernel"](*given, index),
        "coupled": lambda index: VERIFIERS["coupled"](*given, index),
        "softmax": lambda index: probabilities(*given[1:])[0, 0, :1],
    }
    if device == "cuda" or problem.logits_BNV.numel() <= MOST_DRAWN_ON_CPU:
        found["draw_then_walk"] = lambda index: draw_then_walk(problem)
    if device == "cpu":
        return found | {"coupled_at_once": lambda index: coupled_at_once(*given, index)}
    if problem.logits_BNV.numel() <= MOST_COPIED:
        found["copy_then_walk"] = lambda index: copy_then_walk(problem, index)
    return found


def on_host(got: Verified | Tensor) -> Tensor:
    """What a round needs on the host, in one copy."""
    if isinstance(got, Tensor):
        return got.cpu()
    return torch.cat([got.num_accepted_B, got.bonus_B, got.path_BW.flatten()]).cpu()


def cpu_clock() -> Callable[[], float]:
    """With one thread the process's own seconds, into which busy neighbours do not enter; else the wall clock."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def timed(call: Callable[[], Tensor], device: str) -> tuple[float, Tensor]:
    """Milliseconds until the answer is on the host."""
    if device == "cpu":
        clock = cpu_clock()
        started = clock()
        answer = call()
        return (clock() - started) * 1e3, answer
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    answer = call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end), answer


def measure(cell: Cell, device: str, seconds: float) -> dict[str, Any]:
    """One row of the result."""
    problem = make_problem(cell, device)
    row: dict[str, Any] = vars(cell) | {"arms": {}, "graph_ms": {}, "not_run": {}}
    index_B = torch.zeros(cell.batch, dtype=torch.int64, device=device)
    calls: dict[str, Callable[[], Tensor]] = {}
    warm_ms: dict[str, float] = {}
    candidates_ = {name: (lambda arm=arm: on_host(arm(index_B))) for name, arm in arms(problem, device).items()}
    if problem.logits_BNV.numel() <= MOST_BARE:
        bare = bare_kernel(problem)
        candidates_["bare_kernel"] = lambda: on_host(bare())
    for name, call in candidates_.items():
        try:
            for _ in range(2):
                warm_ms[name] = timed(call, device)[0]
            calls[name] = call
        except (ValueError, torch.OutOfMemoryError) as error:
            row["not_run"][name] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    spent = sum(warm_ms[name] for name in calls) / 1e3
    repetitions = max(5, min(60, int(seconds / max(spent, 1e-3))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    accepted: dict[str, list[float]] = {name: [] for name in calls}
    order = random.Random(cell.entries)
    for repetition in range(repetitions):
        index_B.fill_(repetition)
        for name in order.sample(list(calls), len(calls)):
            ms, answer = timed(calls[name], device)
            times[name].append(ms)
            if name not in ("softmax", "bare_kernel"):
                accepted[name].append(answer[: cell.batch].double().mean().item())
    for name, ms_R in times.items():
        ratio_R = [walk / ms for walk, ms in zip(times["walk"], ms_R, strict=True)]
        row["arms"][name] = {"ms": _quartiles(ms_R), "times_faster_than_walk": _quartiles(ratio_R)}
        if accepted[name]:
            row["arms"][name]["mean_accepted"] = round(statistics.fmean(accepted[name]), 2)
    row["repetitions"] = repetitions
    if device == "cuda" and problem.logits_BNV.numel() <= MOST_IN_GRAPH:
        for name in ("kernel", "coupled"):
            row["graph_ms"][name] = _graph(name, problem, index_B, repetitions)
    return row


def _graph(name: str, problem: Problem, index_B: Tensor, repetitions: int) -> list[float] | str:
    try:
        captured = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(captured):
            got = VERIFIERS[name](problem.tree, problem.logits_BNV, problem.sampling, index_B)
            packed = torch.cat([got.num_accepted_B, got.bonus_B, got.path_BW.flatten()])

        def replay() -> Tensor:
            captured.replay()
            return packed.cpu()

        return _quartiles([timed(replay, "cuda")[0] for _ in range(repetitions + 2)][2:])
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"


def _quartiles(values: list[float]) -> list[float]:
    """[median, first quartile, third quartile]."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return [float(f"{value:.4g}") for value in (middle, low, high)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    machine.add_arguments(parser)
    parser.add_argument("--seconds", type=float, default=150, help="for the timings")
    parser.add_argument("--check", action="store_true", help="also compare CUDA with the CPU (device_agreement.py)")
    parser.add_argument("--tiny", action="store_true", help="two small cells, to try the script")
    arguments = parser.parse_args()
    device = machine.pick_device(arguments.device)
    result: dict[str, Any] = {"machine": machine.facts(device, arguments.commit), "kernel": kernel_origin(device)}
    if arguments.check:
        result["device_agreement"] = check(device, small=arguments.tiny)
        print(result["device_agreement"], flush=True)
    result["clock"] = "cuda events" if device == "cuda" else cpu_clock().__name__
    todo, deadline = list(cells(device, arguments.tiny)), time.monotonic() + arguments.seconds
    result |= {"ms": "[median, first quartile, third quartile]", "rows": [], "cells_not_run": []}
    for place, cell in enumerate(todo):
        left = deadline - time.monotonic()
        if left <= 0:
            result["cells_not_run"].append(vars(cell))
            continue
        # Half of the fair share: making the problem, warming up and capturing take the rest.
        try:
            row = measure(cell, device, 0.5 * left / (len(todo) - place))
        except torch.OutOfMemoryError:
            result["cells_not_run"].append(vars(cell) | {"why": "out of memory"})
            continue
        result["rows"].append(row)
        brief = {name: arm["ms"][0] for name, arm in row["arms"].items()}
        print(vars(cell), row["repetitions"], brief, row["graph_ms"], row["not_run"], flush=True)
        machine.write(arguments.out, result)  # what is measured survives a run that is cut
        if device == "cuda":
            torch.cuda.empty_cache()
    result["load_average_1min_after"] = machine.load()
    machine.write(arguments.out, result)


if __name__ == "__main__":
    main()
