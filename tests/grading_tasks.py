"""A task for tests of grading: what it does to an answer is set by its own fields. Importable in grading processes."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tasks.base import Sample, Score
from tasks.reasoning import strip_reasoning
from tasks.rows import read_rows


@dataclass(frozen=True, kw_only=True)
class Toy:
    """Rows {"id", "turns"}. Scores whether an answer has `letter`; waits for the file `gate` to exist first."""

    letter: str = "a"
    gate: str = ""
    fail: bool = False
    hang_s: float = 0.0  # also the limit from which the grader's own is made

    version: ClassVar[int] = 3
    metric: ClassVar[str | None] = "letters"

    def load(self, path: Path) -> list[Sample]:
        return [
            Sample(
                id=str(row.data["id"]),
                messages=[{"role": "user", "content": row.data["turns"][0]}],
                follow_ups=tuple(row.data["turns"][1:]),
            )
            for row in read_rows(path)
        ]

    def score(self, sample: Sample, completion: str) -> Score:
        if completion == "crash":
            os._exit(3)
        if completion == "hang":
            time.sleep(3600)
        if completion == "not a number":
            return Score(value=float("nan"))
        if completion == "print":
            os.write(1, b'{"value": 1.0, "detail": {}}\n')
            print('{"value": 1.0, "detail": {}}', flush=True)
        if self.fail or completion == "raise":
            raise RuntimeError("no grader today")
        while self.gate and not Path(self.gate).exists():
            time.sleep(0.01)
        history = [message["content"] for message in sample.messages]
        return Score(
            value=float(self.letter in completion), detail={"history": history, "nice": os.nice(0), "pid": os.getpid()}
        )


@dataclass(frozen=True, kw_only=True)
class Unmarked:
    """Rows {"id", "prompt"}. Scores 1 for what stands after the reasoning, 0 where it is not over."""

    version: ClassVar[int] = 1
    metric: ClassVar[str | None] = "answered"

    def load(self, path: Path) -> list[Sample]:
        rows = read_rows(path)
        return [Sample(id=r.data["id"], messages=[{"role": "user", "content": r.data["prompt"]}]) for r in rows]

    def score(self, sample: Sample, completion: str) -> Score:
        return Score(value=float(strip_reasoning(completion) is not None))
