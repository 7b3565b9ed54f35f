"""A case of `benchmarks.kernels`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """One function at one size. Both calls take no argument, read tensors made before and may run in a CUDA graph.

    differs: both results -> what differs, in words, empty when nothing does.
    reference_in_graph: false where the reference waits for the device; it is then timed call by call.
    """

    name: str
    size: str
    ours: Callable[[], Any]
    reference: Callable[[], Any]
    differs: Callable[[Any, Any], str]
    reference_in_graph: bool = True
