"""What the sets of competition maths share: how a problem is asked, the rows of MMATH, and grading."""

from collections.abc import Callable
from pathlib import Path

from tasks.answers import extract_maths
from tasks.base import Sample, Score
from tasks.maths import shared_grader
from tasks.rows import Row, integer_field, read_rows, text_fields, unique_ids

INSTRUCTION = "Solve this problem step by step. Put the final answer, and nothing else, in \\boxed{}."
MAX_RECORDED_CHARS = 200


def load_problems(path: Path, *, mmath: str, package: str, hub: Callable[[Row], tuple[str, str, str]]) -> list[Sample]:
    """Samples of the hub's file or of MMATH's, which holds several sets: rows of others than `mmath` are left out.

    The two are different texts of a set, or even different sets, so ids say which one it is: `package` is the prefix of
    MMATH's, `hub` turns a row of the hub into (id, problem, answer). A file that mixes both is refused.
    """
    rows = read_rows(path)
    kinds = ["data_source" in row.data for row in rows]
    for row, kind in zip(rows, kinds, strict=True):
        if kind != kinds[0]:
            raise ValueError(f"{row.where}: rows of the package and of the hub in one file; keep them apart")
    if kinds[0]:
        rows = [row for row in rows if row.data["data_source"] == mmath]
        if not rows:
            raise ValueError(f'{path}: has no row whose "data_source" is {mmath}')
    found = [package_problem(row, package) if kinds[0] else hub(row) for row in rows]
    unique_ids(rows, [name for name, _, _ in found])
    return [Sample(id=name, messages=question(problem), reference=answer) for name, problem, answer in found]


def package_problem(row: Row, prefix: str) -> tuple[str, str, str]:
    number, language = integer_field(row, "data_source_id"), row.data.get("lang")
    if language != "en":
        raise ValueError(f'{row.where}: "lang" must be en, found {language!r}')
    problem, answer = text_fields(row, "question", "answer")
    return f"{prefix}/{number}", problem, answer


def question(problem: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{problem.strip()}\n\n{INSTRUCTION}"}]


def grade(reference: str, completion: str, timeout_s: float) -> Score:
    """1.0 when the answer that `completion` gives has the value of `reference`, else 0.0 with the reason."""
    answer = extract_maths(completion)
    if answer.text is None:
        return Score(value=0.0, detail={"answer": None, "found": answer.how, "reason": answer.how})
    equal, reason = shared_grader(timeout_s).compare(reference, answer.text)
    detail = {"answer": answer.text[:MAX_RECORDED_CHARS], "found": answer.how, "reason": reason}
    return Score(value=float(equal), detail=detail)
