r"""MBPP, sanitized (Austin et al. 2021, arXiv:2108.07732): the 257 Python problems of the test split. CC BY 4.0.

Version 1. Source: the hub's parquet; no package holds these rows. A row, shortened:
    {"source_file": "Benchmark Questions Verification V2.ipynb", "task_id": 11,
     "prompt": "Write a python function to remove first and last occurrence of a given character from the string.",
     "code": "def remove_Occ(s,ch): \n    for i in range(len(s)): ...", "test_imports": [],
     "test_list": ["assert remove_Occ(\"hello\",\"l\") == \"heo\"", ...]}

Asked as one user message: the problem, then its tests, which alone give the function's name and signature. What counts
as the answer is described in `programs.extract_script`. `test_imports` and the tests run in one process of the sandbox
and the program in another (see `Sandbox.run_checked`). The function's name is the first one that the tests call and `code`
defines. All 257 problems need nothing of the answer but the plain values of that function. Of the 427 of all splits one
does (596 names `sys`, which is imported for it); of the 974 that are not sanitized three do, by classes of the answer's own
(367, 601, 927). A row like these is an error: its test would have to run in the answer's interpreter, which an answer can
rewrite.
"""

import ast
import builtins
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Gt

from tasks.base import Sample, Score
from tasks.programs import extract_script
from tasks.rows import Row, integer_field, read_rows, text_fields, text_list, unique_ids
from tasks.runs_programs import RunsPrograms

INSTRUCTION = "Your code must pass these tests. Answer with the code in one ```python block and nothing else."


@dataclass(frozen=True, kw_only=True)
class Mbpp(RunsPrograms):
    """`timeout_s` of wall time for each program; other keys in `RunsPrograms`."""

    timeout_s: Annotated[float, Gt(0)] = 3.0

    version: ClassVar[int] = 1
    metric: ClassVar[str | None] = "pass@1"

    def load(self, path: Path) -> list[Sample]:
        rows = read_rows(path)
        ids = unique_ids(rows, [f"mbpp/{integer_field(row, 'task_id')}" for row in rows])
        samples = []
        for name, row in zip(ids, rows, strict=True):
            problem, code = text_fields(row, "prompt", "code")
            imports, tests = text_list(row, "test_imports"), text_list(row, "test_list")
            called = entry_point(row, code, tests)
            check = tests_apart(row, "\n".join([*imports, *tests]), called)
            reference = {"entry_point": called, "tests": check, "code": code}
            shown = "\n".join(tests)
            content = f"{problem.strip()}\n\n{INSTRUCTION}\n\n```python\n{shown}\n```"
            samples.append(Sample(id=name, messages=[{"role": "user", "content": content}], reference=reference))
        return samples

    def score(self, sample: Sample, completion: str) -> Score:
        """1.0 when all tests passed, else 0.0 with the reason. `detail` records the sandbox's isolation."""
        problem = sample.reference
        answer = extract_script(completion, problem["entry_point"])
        if answer.text is None:
            return Score(value=0.0, detail={"answer": answer.how, "reason": answer.how})
        sandbox = self.sandbox()
        limits: dict[str, Any] = {"timeout_s": self.timeout_s, "memory_mb": self.memory_mb}
        outcome = sandbox.run_checked(answer.text, problem["tests"], [problem["entry_point"]], **limits)
        detail = {"answer": answer.how, "reason": outcome.reason, "run_s": round(outcome.seconds, 4)}
        return Score(value=float(outcome.passed), detail={**detail, "sandbox": sandbox.isolation})


def tests_apart(row: Row, tests: str, name: str) -> str:
    """`tests` with the modules of the standard library that they name. ValueError where they need more of the answer than
    what its function `name` returns: a class, another function, or `name` itself as a value."""
    nodes = list(ast.walk(ast.parse(tests)))
    imported = {
        (alias.asname or alias.name).split(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    names = [node for node in nodes if isinstance(node, ast.Name)]
    used, set_here = {node.id for node in names}, {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    unknown = used - imported - set_here - {name} - set(dir(builtins))
    modules = sorted(unknown & sys.stdlib_module_names)
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    needed = unknown.difference(modules) | {node.id for node in names if node.id == name and id(node) not in called}
    has_lambda = any(isinstance(node, ast.Lambda) for node in nodes)
    if needed or has_lambda:
        what = "a lambda" if has_lambda else ", ".join(sorted(needed))
        raise ValueError(
            f"{row.where}: 'test_list' needs more than what {name} returns ({what}), so it cannot be graded"
        )
    return "".join(f"import {module}\n" for module in modules) + tests


def entry_point(row: Row, code: str, tests: list[str]) -> str:
    try:
        defined = {node.name for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        calls = [node.func for node in ast.walk(ast.parse("\n".join(tests))) if isinstance(node, ast.Call)]
    except SyntaxError as error:
        raise ValueError(f"{row.where}: 'code' or 'test_list' does not parse ({error.msg})") from None
    called = [call.id for call in calls if isinstance(call, ast.Name) and call.id in defined]
    if not called:
        raise ValueError(f"{row.where}: no test calls a function that 'code' defines")
    return called[0]
