"""What a task is: samples in, a score out. Nothing here knows of models, engines or the harness."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One problem. `messages` are chat messages (`role`, `content`); `reference` is what the scorer needs, JSON-able."""

    id: str
    messages: list[dict[str, str]]
    reference: Any = None


@dataclass(frozen=True, kw_only=True)
class Score:
    """`value` in [0, 1], or None where the task has no scorer: unscored is not zero. `detail` is JSON-able."""

    value: float | None
    detail: dict[str, Any] = field(default_factory=dict)


class Task(Protocol):
    """Implementations are dataclasses: their fields are the keys that `task.KEY=...` may set."""

    version: ClassVar[int]  # raised when a prompt or a grader changes
    metric: ClassVar[str | None]  # "pass@1", "accuracy"; None = unscored

    def load(self, path: Path) -> list[Sample]:
        """Read the samples of the local data file `path`, in file order. Raises ValueError naming file and line."""

    def score(self, sample: Sample, completion: str) -> Score:
        """Grade one completion. Never raises for what a model wrote."""
