"""The cells that `benchmarks.rounds` measures, those that the claims rest on first."""

from collections.abc import Iterator
from dataclasses import dataclass

PRIMARY = ("autoregressive", "dflash", "ddtree-15", "ddtree-31", "ddtree-63", "ddtree-127", "ddtree-255", "ddtree-511")
SHORT = ("autoregressive", "dflash", "ddtree-15", "ddtree-63", "ddtree-255")


@dataclass(frozen=True)
class Group:
    """Cells that take turns: the same shape, batch and context, so the same buffers."""

    shape: str
    batch: int
    context: int
    modes: tuple[str, ...]
    official: bool = False  # the official loop in the same turns; it knows batch 1 only


def plan(shapes: list[str]) -> Iterator[Group]:
    """All groups of one shape before the next, because loading one takes long."""
    for shape in shapes:
        yield Group(shape, 1, 1024, PRIMARY, official=True)
        large = shape == "qwen3-8b"
        yield Group(shape, 1, 4096, SHORT if large else SHORT[:4])
        yield Group(shape, 4, 1024, SHORT)
        yield Group(shape, 16, 1024, SHORT)
        if large:
            yield Group(shape, 1, 512, SHORT)
            yield Group(shape, 1, 2048, SHORT)
            yield Group(shape, 1, 8192, SHORT)
            yield Group(shape, 16, 4096, ("autoregressive", "dflash", "ddtree-15", "ddtree-63"))
            yield Group(shape, 4, 8192, ("autoregressive", "dflash", "ddtree-15", "ddtree-63"))


def tree_budget(mode: str) -> int | None:
    return int(mode.removeprefix("ddtree-")) if mode.startswith("ddtree-") else None
