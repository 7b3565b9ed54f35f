"""How long calls take on a device: CUDA events around many, the wall clock elsewhere; and its copy bandwidth."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def device_ms(call: Callable[[], Any], number: int, device: str) -> float:
    """Milliseconds a call, `number` of them enqueued back to back: the device's time, and the host's where it is late."""
    if device != "cuda":
        return wall_ms(call, number, device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(number):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / number


def wall_ms(call: Callable[[], Any], number: int, device: str) -> float:
    """Milliseconds a call on the wall clock, with nothing left to do at both ends."""
    wait(device)
    started = time.perf_counter()
    for _ in range(number):
        call()
    wait(device)
    return 1000 * (time.perf_counter() - started) / number


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def capture(work: Callable[[], None], device: str) -> Callable[[], None]:
    """The work as one CUDA graph, run once before so that everything is compiled; the work itself elsewhere."""
    if device != "cuda":
        return work
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()  # capturing computes nothing: whoever reads its results needs them
    torch.cuda.synchronize()
    return graph.replay


def copy_bandwidth(device: str) -> float:
    """Bytes a second of one large copy, read and written bytes together: the median of nine."""
    size = 2**32 if device == "cuda" else 2**26
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    device_ms(lambda: target.copy_(source), 2, device)
    times = [device_ms(lambda: target.copy_(source), 3, device) for _ in range(9)]
    return 2 * size / (statistics.median(times) / 1000)


def kernels(call: Callable[[], Any], number: int, most: int = 16) -> dict[str, Any]:
    """From the profiler, a call of `number`: launches, device milliseconds in all, and the kernels that take most."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(number):
            call()
        torch.cuda.synchronize()
    found = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)
    found = [row for row in found if row.self_device_time_total > 0]
    return {
        "launches": sum(row.count for row in found) / number,
        "busy_ms": sum(row.self_device_time_total for row in found) / 1000 / number,
        "largest": [
            {"name": row.key[:100], "ms": round(row.self_device_time_total / 1000 / number, 4), "calls": row.count / number}
            for row in found[:most]
        ],
    }  # fmt: skip
