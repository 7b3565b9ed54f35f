"""Which launch shape suits which projection of one row? `harness.kernels.linear` against the vendor's product, on CUDA.

    python -m benchmarks.linear [--limit-s 120] [--out FILE]

Weights of several layers take turns, so that none is read from the L2 cache. One CUDA graph a candidate. The vendor's
column has the norm, activation and residual as the engine runs them beside it. Prints the best shapes; `shape_for` in
harness/kernels/linear.py holds what was found.
"""

import argparse
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import linear as product

from benchmarks import machine
from harness.kernels.linear import Shape, gated, linear
from harness.kernels.norm import rms_norm, silu_mul

MODELS = {"qwen3_8b": (4096, 12288, 6144, 4096), "smollm2_135m": (576, 1536, 960, 576)}  # H, I, X, query width
BYTES = 4e8  # of weights that take turns: several times the L2 cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    machine.add_arguments(parser)
    parser.add_argument("--limit-s", type=float, default=120)
    options = parser.parse_args()
    deadline = time.monotonic() + options.limit_s
    found, left_out = [], []
    for model, sizes in MODELS.items():
        for name, num_inputs, num_outputs in projections(*sizes):
            label = {"model": model, "projection": name}
            if time.monotonic() > deadline:
                left_out.append(label)
                continue
            found.append(label | measure(name, num_inputs, num_outputs))
            print(found[-1], flush=True)
    machine.write(options.out, {"facts": machine.facts("cuda", options.commit), "found": found, "left_out": left_out})


def projections(hidden: int, inner: int, qkv: int, query: int) -> list[tuple[str, int, int]]:
    return [("qkv", hidden, qkv), ("out", query, hidden), ("gate_up", hidden, 2 * inner), ("down", inner, hidden)]


def measure(name: str, num_inputs: int, num_outputs: int) -> dict:
    copies = max(2, min(60, int(BYTES / (num_inputs * num_outputs * 2))))
    options = dict(device="cuda", dtype=torch.bfloat16)
    weights = [torch.randn(num_outputs, num_inputs, **options) for _ in range(copies)]
    x = torch.randn(1, num_inputs, **options)
    gain = torch.rand(num_inputs, **options)
    residual = torch.zeros(1, num_outputs, **options)

    def vendor(weight: Tensor) -> None:
        if name in ("out", "down"):
            residual.addmm_(x, weight.T)
        elif name == "qkv":
            product(rms_norm(x, gain, 1e-6), weight)
        else:
            silu_mul(product(rms_norm(x, gain, 1e-6), weight))

    def ours(weight: Tensor, shape: Shape) -> None:
        if name in ("out", "down"):
            linear(x, weight, residual_1N=residual, shape=shape)
        elif name == "qkv":
            linear(x, weight, norm=(gain, 1e-6), shape=shape)
        else:
            gated(x, weight, norm=(gain, 1e-6), shape=shape)

    times = {}
    for shape in shapes(num_inputs):
        try:
            times[shape] = microseconds(lambda weight, shape=shape: ours(weight, shape), weights)
        except Exception as error:  # too much shared memory, say: no candidate
            print(shape, type(error).__name__)
    best = sorted(times, key=times.__getitem__)[:3]
    return {
        "vendor_us": round(microseconds(vendor, weights), 2),
        "floor_us": round(num_inputs * num_outputs * 2 / 4.29e6, 2),
        "best": [[*vars(shape).values(), round(times[shape], 2)] for shape in best],
    }


def shapes(num_inputs: int) -> Iterator[Shape]:
    for outputs, inputs, warps in (
        (4, 1024, 4), (8, 512, 4), (8, 1024, 4), (8, 1024, 8), (16, 512, 4), (16, 512, 8), (4, 2048, 4),
        (2, 2048, 4), (2, 1024, 2), (16, 256, 4), (1, 4096, 4), (4, 512, 2), (16, 1024, 8), (32, 256, 8),
    ):  # fmt: skip
        if inputs < 4 * num_inputs:
            yield Shape(outputs, inputs, warps)


def microseconds(work: Callable[[Tensor], None], weights: list[Tensor]) -> float:
    for weight in weights[:2]:
        work(weight)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            work(weight)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begin.record()
    for _ in range(10):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / 10 / len(weights)


if __name__ == "__main__":
    main()
