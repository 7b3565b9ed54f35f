r"""Alpaca (Taori et al. 2023): 52,002 instructions written by text-davinci-003. CC BY-NC 4.0: not for commercial use.

Version 1. Source: the hub's parquet; no package holds these rows. A row, shortened:
    {"instruction": "Identify the odd one out.", "input": "Twitter, Instagram, Telegram", "output": "Telegram",
     "text": "Below is an instruction that describes a task, paired with an input ..."}
Rows have no id; sample ids are `alpaca/N`, N counting the rows of the file from 0.

Asked as one user message: the instruction, and below it the input where there is one. `text`, the form for models
without a chat template, is not used.

Unscored without a judge; `output` is one possible answer, not a reference. With `task.judge.url` and `task.judge.model`
any OpenAI-compatible endpoint rates the answers (see `judge.py`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tasks.base import Sample, Score
from tasks.judge import Judged
from tasks.rows import Row, read_rows, text_fields


@dataclass(frozen=True, kw_only=True)
class Alpaca(Judged):
    version: ClassVar[int] = 1

    def load(self, path: Path) -> list[Sample]:
        return [
            Sample(id=f"alpaca/{number}", messages=[{"role": "user", "content": question(row)}])
            for number, row in enumerate(read_rows(path))
        ]

    def score(self, sample: Sample, completion: str) -> Score:
        return self.judge.score(sample.messages, completion, None)


def question(row: Row) -> str:
    [instruction] = text_fields(row, "instruction")
    given = row.data.get("input")
    if not isinstance(given, str):
        raise ValueError(f"{row.where}: field 'input' must be a string; it may be empty")
    return f"{instruction.strip()}\n\n{given.strip()}" if given.strip() else instruction.strip()
