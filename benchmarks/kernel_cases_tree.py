"""Cases of `benchmarks.kernels` for the tree build and the candidates of a draft."""

from collections.abc import Iterator

from benchmarks.kernels import Case


def cases(device: str) -> Iterator[Case]:
    yield from ()
