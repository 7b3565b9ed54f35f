"""Small kernels of a round beside the torch functions they replace: equal, and how fast inside a CUDA graph?

    python -m benchmarks.kernels [--only WORD] [--replays N] [--out FILE]

Needs CUDA. A case is equal on CUDA first, then timed. `ours_us` and `reference_us` are medians over replays of a
graph that holds the call COPIES times, by CUDA events, divided by COPIES: starting a graph is not in them. Exit status
1 when a case differs or fails.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import kernel_cases_sampling, kernel_cases_tree, machine
from benchmarks.kernel_case import Case

COPIES = 10


CASES = (kernel_cases_tree.cases, kernel_cases_sampling.cases)


def median_us(call: Callable[[], Any], replays: int, in_graph: bool) -> float:
    """Median microseconds of one call."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    run = call
    if in_graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(COPIES):
                call()
        run = graph.replay
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(replays)]
    for _ in range(10):
        run()
    for start, end in marks:
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    each = 1e3 / COPIES if in_graph else 1e3
    return statistics.median(start.elapsed_time(end) for start, end in marks) * each


def measure(case: Case, replays: int) -> dict[str, Any]:
    """One row of the result; a failure is a row too, so that one fault does not lose the rest of a GPU run."""
    row: dict[str, Any] = {"name": case.name, "size": case.size}
    try:
        row["differs"] = case.differs(case.ours(), case.reference())
        row["ours_us"] = round(median_us(case.ours, replays, True), 1)
        row["reference_us"] = round(median_us(case.reference, replays, case.reference_in_graph), 1)
        row["reference_in_graph"] = case.reference_in_graph
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {str(error).strip()[:300]}"
    return row


def line(row: dict[str, Any]) -> str:
    verdict = row.get("error") or row["differs"] or "equal"
    times = [f"{row[key]:10.1f}" if key in row else f"{'-':>10}" for key in ("ours_us", "reference_us")]
    return f"{row['name']:16}{row['size']:44}{''.join(times)}  {verdict}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    machine.add_arguments(parser)
    parser.add_argument("--only", default="", help="cases whose name or size contains this")
    parser.add_argument("--replays", type=int, default=100)
    asked = parser.parse_args()
    if machine.pick_device(asked.device) != "cuda":
        raise SystemExit("benchmarks.kernels needs a CUDA device: the kernels have no other form")
    print(f"{'name':16}{'size':44}{'ours us':>10}{'torch us':>10}")
    rows = []
    for make in CASES:
        try:
            for case in make("cuda"):
                if asked.only in f"{case.name} {case.size}":
                    rows.append(measure(case, asked.replays))
                    print(line(rows[-1]), flush=True)
        except Exception as error:  # of making a case: the other list still runs
            rows.append({"name": make.__module__, "size": "", "error": f"{type(error).__name__}: {error}"[:300]})
            print(line(rows[-1]), flush=True)
    bad = [row for row in rows if row.get("error") or row["differs"]]
    machine.write(asked.out, {"machine": machine.facts("cuda", asked.commit), "replays": asked.replays, "rows": rows})
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
