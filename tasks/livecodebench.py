r"""LiveCodeBench, code generation (Jain et al. 2024, arXiv:2403.07974): problems of programming contests. The hub's
card says "cc" and no more of the licence.

Version 2. Source: the hub's `test6.jsonl`, 134 MB: the 175 problems that release 6 added (January to April 2025). The
hub's loading script is not run; the file is read as it is. The older problems are in test.jsonl and test2.jsonl to
test5.jsonl (1,055 in all, 4.5 GB): `task.sources.hub.file=test5.jsonl`. No package holds these rows. A row, shortened:
    {"question_title": "9x9 Sum", "question_content": "Among the 81 integers that appear ...", "platform": "atcoder",
     "question_id": "abc387_b", "contest_id": "abc387", "contest_date": "2025-01-04T00:00:00", "starter_code": "",
     "difficulty": "easy", "public_test_cases": "[{\"input\": \"1\", \"output\": \"2024\", \"testtype\": \"stdin\"}, ...]",
     "private_test_cases": "eJ...", "metadata": "{}"}
Private tests are JSON, or JSON in a pickled string, packed by zlib, in base64; the pickle is read by a reader that makes
strings only, so that no data file can run code here.

Asked as one user message: the problem, then its starter code where it has one, else how input and output go. What counts
as the answer is described in `programs.extract_script`. All public and private tests run in the sandbox, one after the
other, see `livecodebench_grade.py`; programs have the standard library alone. Version 1 ran the tests in the answer's own
interpreter, where an answer could forge a pass.
"""

import base64
import binascii
import io
import json
import pickle
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Gt

from tasks.base import Sample, Score
from tasks.livecodebench_grade import grade
from tasks.programs import extract_script
from tasks.rows import Row, parse_json, read_rows, text_fields, unique_ids
from tasks.runs_programs import RunsPrograms

STARTER = "Complete this code. Answer with the whole code in one ```python block and nothing else."
WHOLE = (
    "Write a Python program that reads the input from standard input and writes the output to standard output. Answer "
    "with the program in one ```python block and nothing else."
)
MAX_TEST_BYTES = 1 << 28  # unpacked tests of one problem; the largest of the set have tens of megabytes


@dataclass(frozen=True, kw_only=True)
class LiveCodeBench(RunsPrograms):
    """`timeout_s` of wall time for each test, `total_s` for all tests of an answer; other keys in `RunsPrograms`."""

    timeout_s: Annotated[float, Gt(0)] = 6.0
    total_s: Annotated[float, Gt(0)] = 60.0

    version: ClassVar[int] = 2
    metric: ClassVar[str | None] = "pass@1"

    def load(self, path: Path) -> list[Sample]:
        rows = read_rows(path)
        ids = unique_ids(rows, [f"livecodebench/{text_fields(row, 'question_id')[0]}" for row in rows])
        return [
            Sample(id=name, messages=question(row), reference=reference(row))
            for name, row in zip(ids, rows, strict=True)
        ]

    def score(self, sample: Sample, completion: str) -> Score:
        """1.0 when every test passed, else 0.0 with the first failure. None when the row's tests cannot be read."""
        problem = sample.reference
        answer = extract_script(completion, "Solution" if problem["function"] else None)
        if answer.text is None:
            return Score(value=0.0, detail={"answer": answer.how, "reason": answer.how})
        try:
            tests = [*problem["public"], *unpack(problem["private"])]
        except ValueError as error:
            return Score(value=None, detail={"answer": answer.how, "reason": f"unscored: private tests: {error}"})
        sandbox = self.sandbox()
        limits: dict[str, Any] = {"timeout_s": self.timeout_s, "total_s": self.total_s, "memory_mb": self.memory_mb}
        outcome = grade(sandbox, answer.text, tests, problem["function"], **limits)
        detail = {"answer": answer.how, "reason": outcome.reason, "run_s": round(outcome.seconds, 4)}
        return Score(value=float(outcome.passed), detail={**detail, "tests": len(tests), "sandbox": sandbox.isolation})


def question(row: Row) -> list[dict[str, str]]:
    [problem] = text_fields(row, "question_content")
    starter = row.data.get("starter_code")
    if not isinstance(starter, str):
        raise ValueError(f"{row.where}: field 'starter_code' must be a string; it may be empty")
    end = f"{STARTER}\n\n```python\n{starter.strip()}\n```" if starter.strip() else WHOLE
    return [{"role": "user", "content": f"{problem.strip()}\n\n{end}"}]


def reference(row: Row) -> dict[str, Any]:
    """Public tests as they are; private ones stay packed, because unpacked they fill the memory."""
    public, private, metadata = text_fields(row, "public_test_cases", "private_test_cases", "metadata")
    about = parse_json(metadata.encode(), f"{row.where}: metadata")
    function = about.get("func_name") if isinstance(about, dict) else None
    if bool(row.data["starter_code"].strip()) != bool(function):
        raise ValueError(f'{row.where}: a row with starter code needs "func_name" in its metadata, others none')
    try:
        tests = checked_tests(parse_json(public.encode(), f"{row.where}: public_test_cases"))
    except ValueError as error:
        raise ValueError(f"{row.where}: public_test_cases: {error}") from None
    return {"function": function, "public": tests, "private": private}


def checked_tests(value: Any) -> list[list[str]]:
    """[input, output] of each test."""
    if not isinstance(value, list):
        raise ValueError("expected a list of tests")
    for test in value:
        if not isinstance(test, dict) or not all(isinstance(test.get(key), str) for key in ("input", "output")):
            raise ValueError('each test must have "input" and "output", both strings')
    return [[test["input"], test["output"]] for test in value]


def unpack(packed: str) -> list[list[str]]:
    """The private tests. ValueError for what is not in one of the two forms."""
    if packed.lstrip().startswith("["):
        return checked_tests(json.loads(packed))
    try:
        stream = zlib.decompressobj()
        raw = stream.decompress(base64.b64decode(packed, validate=True), MAX_TEST_BYTES)
        if stream.unconsumed_tail:
            raise ValueError(f"more than {MAX_TEST_BYTES} bytes")
        return checked_tests(json.loads(OnlyText(io.BytesIO(raw)).load()))
    except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, TypeError, IndexError, KeyError) as error:
        raise ValueError(f"not JSON in pickle in zlib in base64 ({error})") from None


class OnlyText(pickle.Unpickler):
    """Reads strings, numbers and containers; anything that names a class or a function is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"names {module}.{name}")

    def persistent_load(self, identity: Any) -> Any:
        raise pickle.UnpicklingError("has persistent ids")
