r"""GSM8K (Cobbe et al. 2021, arXiv:2110.14168): 1,319 word problems of primary school, the test split. MIT licence.

Version 1. Source: the hub's parquet; no package holds these rows (`gsm_symbolic` is the likeness that needs no hub).
A row, shortened:
    {"question": "Janet’s ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes ...",
     "answer": "Janet sells 16 - 3 - 4 = <<16-3-4=9>>9 duck eggs a day.\nShe makes 9 * 2 = $<<9*2=18>>18 ...\n#### 18"}
Rows have no id; sample ids are `gsm8k/N`, N counting the rows of the file from 0.

Asked as one user message: the problem, then `competition.INSTRUCTION`. The number after `####` of the row is the
reference; `answers.extract_number` finds the number of the completion, which is compared by value.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Gt

from tasks.base import Sample, Score
from tasks.competition import question
from tasks.rows import Row, read_rows, text_fields
from tasks.word_problems import grade

FINAL = re.compile(r"####\s*(-?[\d,]+(?:\.\d+)?)\s*\Z")


@dataclass(frozen=True, kw_only=True)
class Gsm8k:
    """`timeout_s` of wall time to compare one answer."""

    timeout_s: Annotated[float, Gt(0)] = 5.0

    version: ClassVar[int] = 1
    metric: ClassVar[str | None] = "accuracy"

    def load(self, path: Path) -> list[Sample]:
        samples = []
        for number, row in enumerate(read_rows(path)):
            problem, solution = text_fields(row, "question", "answer")
            reference = final_number(row, solution)
            samples.append(Sample(id=f"gsm8k/{number}", messages=question(problem), reference=reference))
        return samples

    def score(self, sample: Sample, completion: str) -> Score:
        return grade(sample.reference, completion, self.timeout_s)


def final_number(row: Row, solution: str) -> str:
    found = FINAL.search(solution)
    if found is None:
        raise ValueError(f"{row.where}: field 'answer' must end in a line \"#### NUMBER\"")
    return found[1].replace(",", "")
