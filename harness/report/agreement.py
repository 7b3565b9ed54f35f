"""Which facts two runs must share before their figures may stand side by side, and where they differ."""

from dataclasses import dataclass
from typing import Any

from harness.records import RunManifest

# What a comparison is about, or what says nothing about the figures.
FREE_ASKED = (
    "speculative", "tracking", "hydra", "experiment", "run.limit", "run.output_dir", "_target_",
    # How a server is found: each mode of engine=openai has its own, and no address says what serves there.
    "engine.base_url", "engine.python", "engine.api_key_variable", "engine.startup_s", "engine.timeout_s",
)  # fmt: skip
# Resolved facts that belong to the mode, or say where a file lies, and the commit, because
# `versions.code` decides; all that begins with "drafter" is free as well.
FREE_RESOLVED = (
    "commit", "speculative", "mode", "verifier", "seeded_by", "kernel", "tree_budget", "block_size", "nodes_per_round",
    "path",
)  # fmt: skip
ABSENT = "(absent)"

# What a table or a curve over many runs may vary beside the mode: the asked keys of a factor, and the facts that follow
# from it. A fact that follows is explained only where the factor itself was asked differently.
FACTORS = {
    "model": (
        ("asked.model",),
        ("resolved.sources.target", "resolved.prompts", "resolved.stop_ids", "resolved.sampling", "resolved.engine"),
    ),
    "hardware": (("asked.hardware",), ("hardware_seen", "resolved.engine")),
    "task": (("asked.task",), ("resolved.sources.data", "resolved.task")),
    "temperature": (("asked.sampling.name", "asked.sampling.temperature"), ("resolved.sampling.temperature",)),
}


@dataclass(frozen=True)
class Difference:
    key: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.left!r} against {self.right!r}"


def differences(left: RunManifest, right: RunManifest) -> list[Difference]:
    """The facts that must agree and do not, by key. Empty: the two may be compared."""
    a, b = facts(left), facts(right)
    return [
        Difference(key, a.get(key, ABSENT), b.get(key, ABSENT))
        for key in sorted(set(a) | set(b))
        if a.get(key, ABSENT) != b.get(key, ABSENT)
    ]


def unexplained(found: list[Difference]) -> list[Difference]:
    """Those of the differences that no factor accounts for: a reader across runs must know of them."""
    accounted: tuple[str, ...] = ()
    for asked, follows in FACTORS.values():
        if any(_under(difference.key, asked) for difference in found):
            accounted += asked + follows
    return [difference for difference in found if not _under(difference.key, accounted)]


def _under(key: str, prefixes: tuple[str, ...]) -> bool:
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)


def facts(manifest: RunManifest) -> dict[str, Any]:
    """Every fact that two compared runs must share, flat: `asked.sampling.temperature`, `resolved.dtype`, ..."""
    asked = _flat("", manifest.asked)
    found = {
        f"asked.{key}": value
        for key, value in asked.items()
        if not any(key == f or key.startswith(f"{f}.") or key.endswith(f".{f}") for f in FREE_ASKED)
    }
    for group, values in (
        ("resolved", manifest.resolved),
        ("versions", manifest.versions),
        ("hardware_seen", manifest.hardware_seen),
    ):
        for key, value in _flat("", values).items():
            if not any(part in FREE_RESOLVED or part.startswith("drafter") for part in key.split(".")):
                found[f"{group}.{key}"] = value
    return found


def _flat(prefix: str, value: Any) -> dict[str, Any]:
    """Leaves by dotted key; an empty mapping says as much as an absent one."""
    if not isinstance(value, dict):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= _flat(f"{prefix}.{key}" if prefix else str(key), inner)
    return found
