"""MATH-500: the two sets stay apart, equal values are equal, and no expression can hang the grader."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tasks.math500 import Math500
from tasks.maths import MAX_ANSWER_CHARS, MathsGrader, shared_grader

FIXTURES = Path(__file__).parent / "fixtures"
TASK = Math500()
GRADER = shared_grader(TASK.timeout_s)


def test_hub_rows() -> None:
    samples = TASK.load(FIXTURES / "math500_hub.jsonl")
    assert [sample.id for sample in samples] == [
        "math500-hub/test/algebra/own-1.json",
        "math500-hub/test/precalculus/own-2.json",
        "math500-hub/test/prealgebra/own-3.json",
    ]
    assert samples[0].reference == "55"
    assert "first ten positive integers" in samples[0].messages[0]["content"]
    assert "Pair them" not in samples[0].messages[0]["content"]


def test_package_rows_of_other_sets_are_left_out() -> None:
    samples = TASK.load(FIXTURES / "mmath.json")
    assert [sample.id for sample in samples] == ["math500-mmath311/3", "math500-mmath311/8"]


def test_the_real_package_file(package_files: dict[str, Path]) -> None:
    samples = TASK.load(package_files["math500"])
    assert len(samples) == 311
    assert all(sample.id.startswith("math500-mmath311/") for sample in samples)
    assert [TASK.score(sample, f"It is $\\boxed{{{sample.reference}}}$.").value for sample in samples] == [1.0] * 311
    # A worker compares these: the text differs.
    assert all(TASK.score(sample, f"\\boxed{{{sample.reference}.0}}").value == 1.0 for sample in samples[:20])
    assert all(TASK.score(sample, f"\\boxed{{{sample.reference}1}}").value == 0.0 for sample in samples)


HUB = json.loads((FIXTURES / "math500_hub.jsonl").read_text().splitlines()[0])
PACKAGE = json.loads((FIXTURES / "mmath.json").read_text())[1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([HUB, PACKAGE], r"row 2: rows of the package and of the hub in one file"),
        ([PACKAGE, HUB], r"row 2: rows of the package and of the hub in one file"),
        ([{**PACKAGE, "data_source": "CNMO"}], r"has no row whose \"data_source\" is MATH500"),
        ([PACKAGE, PACKAGE], r"row 2: id 'math500-mmath311/3' occurs twice"),
        ([{**PACKAGE, "lang": "fr"}], r"row 1: \"lang\" must be en, found 'fr'"),
        ([{**PACKAGE, "data_source_id": "3"}], r"row 1: \"data_source_id\" must be a whole number"),
        ([HUB, {**HUB, "answer": 3, "unique_id": "b"}], r"row 2: field 'answer' must be a string"),
        ([{key: HUB[key] for key in ("problem", "answer")}], r"row 1: has no field 'unique_id'"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows))
    with pytest.raises(ValueError, match=message):
        TASK.load(path)


EQUAL = [
    ("5", "5.0"),
    ("\\frac{1}{2}", "0.5"),
    ("\\frac{1}{2}", "1/2"),
    ("\\frac{1}{2}", "\\dfrac12"),
    ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3, \\pi/2)"),
    ("x^2+1", "1 + x^2"),
    ("p - q", "-q + p"),
    ("1000", "1,000"),
    ("90^\\circ", "90"),
    ("\\text{Evelyn}", "Evelyn"),
    ("6 - 5i", "6-5i"),
    ("3", "\\sqrt{9}"),
    ("\\{1,2\\}", "\\{2, 1\\}"),
]
DIFFERENT = [
    ("5", "6"),
    ("\\frac{1}{2}", "0.51"),
    ("\\left( 3, \\frac{\\pi}{2} \\right)", "(\\frac{\\pi}{2}, 3)"),
    ("x^2+1", "x^2-1"),
    ("-3", "3"),
    ("\\text{Evelyn}", "Angela"),
    ("5", ""),
    ("5", "{{{{"),
    ("5", "\0"),
    ("5", "five or six"),
]


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal(gold: str, answer: str) -> None:
    assert GRADER.compare(gold, answer)[0]


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different(gold: str, answer: str) -> None:
    assert not GRADER.compare(gold, answer)[0]


def test_score_names_what_it_found() -> None:
    sample = TASK.load(FIXTURES / "math500_hub.jsonl")[2]
    right = TASK.score(sample, "So it is $\\boxed{\\frac{6}{8}}$.")
    assert (right.value, right.detail) == (1.0, {"answer": "\\frac{6}{8}", "found": "boxed", "reason": "equal"})
    none = TASK.score(sample, "<think>\\boxed{0.75}")
    assert none.value == 0.0
    assert none.detail["reason"] == "no answer, truncated reasoning"
    json.dumps([right.detail, none.detail])


MONSTERS = [
    "9^{9^{9^{9}}}",
    "10!!!!!",
    "(" * 450,
    "\\sum_{n=1}^{10^9} \\sin(n)",
    "\\frac{" * 80 + "1",
    "9^9^9^9",
    "x" * 499,
]


@pytest.mark.parametrize("monster", MONSTERS)
def test_no_expression_hangs_or_passes(monster: str) -> None:
    grader = MathsGrader(limit_s=0.5)
    assert not grader.compare("5", monster)[0]
    assert grader.compare("5", "5.0") in [(True, "equal"), (False, "grading took more than 0.5 s or too much memory")]
    grader._stop()


def test_the_grader_recovers_after_a_limit() -> None:
    grader = MathsGrader(limit_s=5.0)
    grader.compare("5", "6")
    assert grader._process is not None
    first = grader._process.pid
    os.kill(first, 9)  # what the limit does, sooner
    grader._process.wait()
    assert grader.compare("5", "5.0") == (True, "equal")
    assert grader._process.pid != first
    grader._stop()


def test_a_very_long_answer_is_not_graded() -> None:
    assert GRADER.compare("5", "1+" * MAX_ANSWER_CHARS + "1") == (False, f"longer than {MAX_ANSWER_CHARS} characters")


def test_threads_share_one_grader() -> None:
    """math-verify's own time limit raises outside the main thread."""
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda number: GRADER.compare(str(number), f"{number}.0")[0], range(20)))
    assert results == [True] * 20
