"""What SGLang's command line has no word for: read from the server's environment.

`DDTREE_VERIFIER` (coupled | kernel | walk, see `harness.decoding.verify`) and `DDTREE_SPINE` (0 | 1). The tree budget is
`--speculative-num-draft-tokens` less one, since SGLang reserves KV rows by that number.
"""

from collections.abc import Mapping
from dataclasses import dataclass

NAME = "DDTREE"
DEFAULT_WIDTH = 16  # nodes with the root: tree budget 15
VERIFIERS = ("coupled", "kernel", "walk")


@dataclass(frozen=True)
class PluginOptions:
    """verifier: one of VERIFIERS. spine: keep the drafter's greedy chain in every tree."""

    verifier: str = "coupled"
    spine: bool = False


def read_options(environ: Mapping[str, str]) -> PluginOptions:
    """Raises ValueError naming the variable and what it takes."""
    verifier = environ.get("DDTREE_VERIFIER") or "coupled"
    if verifier not in VERIFIERS:
        raise ValueError(f"DDTREE_VERIFIER must be one of {', '.join(VERIFIERS)}, got {verifier!r}")
    spine = environ.get("DDTREE_SPINE") or "0"
    if spine not in ("0", "1"):
        raise ValueError(f"DDTREE_SPINE must be 0 or 1, got {spine!r}")
    return PluginOptions(verifier, spine == "1")
