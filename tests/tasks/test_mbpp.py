"""MBPP: the function's name comes out of the tests, and answers run against all of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.base import Sample, Score
from tasks.mbpp import Mbpp

FIXTURE = Path(__file__).parent / "fixtures" / "mbpp.jsonl"
ROWS = [json.loads(line) for line in FIXTURE.read_text().splitlines()]
TASK = Mbpp(timeout_s=10.0)


def score(sample: Sample, completion: str) -> Score:
    result = TASK.score(sample, completion)
    json.dumps(result.detail)
    return result


def test_rows() -> None:
    samples = TASK.load(FIXTURE)
    assert [sample.id for sample in samples] == ["mbpp/11", "mbpp/12", "mbpp/14"]
    names = [sample.reference["entry_point"] for sample in samples]
    assert names == ["count_vowels", "circle_area", "by_length"]  # and not `list`, `square` or `math.isclose`
    for sample, row in zip(samples, ROWS, strict=True):
        assert all(test in sample.messages[0]["content"] for test in row["test_list"])
        assert row["code"] not in sample.messages[0]["content"]


def test_reference_code_passes_and_wrong_code_fails() -> None:
    for sample, row in zip(TASK.load(FIXTURE), ROWS, strict=True):
        right = score(sample, f"Here it is.\n\n```python\n{row['code']}\n```\nIt works.")
        assert (right.value, right.detail["reason"]) == (1.0, "passed")
        assert right.detail["sandbox"]["holds"]
        assert score(sample, row["code"]).value == 1.0
        name = sample.reference["entry_point"]
        wrong = score(sample, f"```python\ndef {name}(*_):\n    return None\n```")
        assert wrong.value == 0.0
        assert "Error" in wrong.detail["reason"]


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("", "no code"),
        ("```python\ndef vowels(text):\n    return 3\n```", "no code"),  # another name than the tests call
        ("<think>```python\ndef count_vowels(text): return 3\n```", "no answer, truncated reasoning"),
        ("```python\ndef count_vowels(text):\n    return 3\n```", "AssertionError"),
        ("```python\ndef count_vowels(text):\n    raise SystemExit(0)\n```", "called sys.exit"),
    ],
)
def test_what_is_no_right_answer(completion: str, reason: str) -> None:
    result = score(TASK.load(FIXTURE)[0], completion)
    assert result.value == 0.0
    assert reason in result.detail["reason"]


@pytest.mark.parametrize(
    "tests",
    [
        ["assert count_vowels('a') == 1"],
        ["words = ['a', 'e']", "assert [count_vowels(word) for word in words] == [1, 1]"],
        ["assert count_vowels('a') < sys.getsizeof('a')"],  # task 596 of another split imports no sys
    ],
)
def test_what_tests_may_use(tmp_path: Path, tests: list[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({**ROWS[0], "test_list": tests}) + "\n")
    result = score(TASK.load(path)[0], ROWS[0]["code"])
    assert (result.value, result.detail["reason"]) == (1.0, "passed")


def test_an_answer_that_equals_everything_fails() -> None:
    trick = "class A:\n    __eq__ = lambda s, o: True\n\ndef count_vowels(text):\n    return A()"
    assert score(TASK.load(FIXTURE)[0], f"```python\n{trick}\n```").value == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task_id": "11"}, r'a\.jsonl:1: "task_id" must be a whole number'),
        ({"test_list": "assert f() == 1"}, r"a\.jsonl:1: field 'test_list' must be a list of strings"),
        ({"test_imports": None}, r"a\.jsonl:1: field 'test_imports' must be a list of strings"),
        ({"test_list": ["assert len('') == 0"]}, r"a\.jsonl:1: no test calls a function that 'code' defines"),
        (
            {"test_list": ["assert count_vowels([Pair(1, 2)]) == 3"]},
            r"a\.jsonl:1: 'test_list' needs more than what count_vowels returns \(Pair\), so it cannot be graded",
        ),
        ({"test_list": ["assert count_vowels(lambda x: x) == 3"]}, r"returns \(a lambda\)"),
        ({"test_list": ["assert count_vowels(1) == list(map(count_vowels, [1]))"]}, r"returns \(count_vowels\)"),
        ({"code": "def f(:"}, r"a\.jsonl:1: 'code' or 'test_list' does not parse"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({**ROWS[0], **change}) + "\n")
    with pytest.raises(ValueError, match=message):
        TASK.load(path)
