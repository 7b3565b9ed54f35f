r"""Generated word problems in the manner of GSM8K: 200 rows out of the `gsm_symbolic` generator of reasoning-gym 0.1.25
(Stojanovski et al. 2025, arXiv:2505.24760; after GSM-Symbolic, Mirzadeh et al. 2024, arXiv:2410.05229). Apache-2.0.

Version 1. Source: `assets/gsm_symbolic.jsonl`, which ships; `python -m tasks.gsm_symbolic_rows` wrote it with seed 0 and
writes others (it needs `pip install -e '.[generate]'`, some 350 MB). A row, shortened:
    {"id": "gsm_symbolic/0/3", "question": "Ms. Johnson is looking for a apartment that will not go beyond her
     $410,000 budget. ... Give the result as your final answer. Do not include units.", "answer": "78000"}
The id holds seed and place. These are not GSM8K's problems: a score here is not a score there.

Asked as one user message: the problem, then `competition.INSTRUCTION`; graded as GSM8K is. The scorer of reasoning-gym
is not used: it takes the first number, drops minus signs and gives 0.01 for wrong answers.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Gt

from tasks.base import Sample, Score
from tasks.competition import question
from tasks.rows import read_rows, text_fields, unique_ids
from tasks.word_problems import grade

NUMBER = re.compile(r"-?\d+(\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class GsmSymbolic:
    """`timeout_s` of wall time to compare one answer."""

    timeout_s: Annotated[float, Gt(0)] = 5.0

    version: ClassVar[int] = 1
    metric: ClassVar[str | None] = "accuracy"

    def load(self, path: Path) -> list[Sample]:
        rows = read_rows(path)
        fields = [text_fields(row, "id", "question", "answer") for row in rows]
        unique_ids(rows, [name for name, _, _ in fields])
        for row, (_, _, answer) in zip(rows, fields, strict=True):
            if not NUMBER.fullmatch(answer):
                raise ValueError(f"{row.where}: field 'answer' must be a number, found {answer!r}")
        return [Sample(id=name, messages=question(problem), reference=answer) for name, problem, answer in fields]

    def score(self, sample: Sample, completion: str) -> Score:
        return grade(sample.reference, completion, self.timeout_s)
