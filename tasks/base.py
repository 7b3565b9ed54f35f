"""What a task is: samples in, a score out. Nothing here knows of models, engines or the harness."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

TURN = "/turn-"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One prompt to answer. `messages` are chat messages (`role`, `content`); `reference` is what the scorer needs,
    JSON-able.

    `follow_ups` are user turns still to come. Each is asked after the answer to the one before, so its history is what
    this very run wrote: `next_turn` makes that sample, with an id of its own.
    """

    id: str
    messages: list[dict[str, str]]
    reference: Any = None
    follow_ups: tuple[str, ...] = ()
    turn: int = 1

    @property
    def conversation(self) -> str:
        """The id that all turns of one conversation share: the first turn's."""
        return self.id.removesuffix(f"{TURN}{self.turn}") if self.turn > 1 else self.id

    def next_turn(self, answer: str) -> "Sample | None":
        """The sample that follows when `answer` was given to this one; None after the last turn.

        `answer` is what goes into the history, so without reasoning.
        """
        if not self.follow_ups:
            return None
        said = [{"role": "assistant", "content": answer}, {"role": "user", "content": self.follow_ups[0]}]
        return replace(
            self,
            id=f"{self.conversation}{TURN}{self.turn + 1}",
            messages=[*self.messages, *said],
            follow_ups=self.follow_ups[1:],
            turn=self.turn + 1,
        )


@dataclass(frozen=True, kw_only=True)
class Score:
    """`value` in [0, 1], or None where the task has no scorer: unscored is not zero. `detail` is JSON-able."""

    value: float | None
    detail: dict[str, Any] = field(default_factory=dict)


class Task(Protocol):
    """Implementations are dataclasses: their fields are the keys that `task.KEY=...` may set."""

    @property
    def version(self) -> int:
        """Raised when a prompt or a grader changes. A class variable in most tasks."""

    @property
    def metric(self) -> str | None:
        """ "pass@1", "accuracy", "judge score"; None = unscored. Chat tasks say so unless a judge is configured."""

    def load(self, path: Path) -> list[Sample]:
        """Read the samples of the local data file `path`, in file order: of a conversation, its first turn.

        Raises ValueError naming file and line.
        """

    def score(self, sample: Sample, completion: str) -> Score:
        """Grade one completion, of any turn: `sample.messages` holds what was said before. Never raises for what a
        model wrote."""


@runtime_checkable
class ChecksHost(Protocol):
    """A task that cannot be graded on every host."""

    def check_host(self) -> None:
        """Raises ValueError, naming the fix, where this host cannot grade it. Called before a model is loaded."""
