"""GSM8K and its generated likeness: rows, references, grading by value, and that the shipped rows are what they say."""

import json
from pathlib import Path

import pytest

from tasks.gsm8k import Gsm8k
from tasks.gsm_symbolic import GsmSymbolic
from tasks.gsm_symbolic_rows import rows

FIXTURE = Path(__file__).parent / "fixtures" / "gsm8k.jsonl"
SHIPPED = Path(__file__).parents[2] / "assets" / "gsm_symbolic.jsonl"


def test_rows_of_gsm8k() -> None:
    samples = Gsm8k().load(FIXTURE)
    assert [(sample.id, sample.reference) for sample in samples] == [
        ("gsm8k/0", "26"),
        ("gsm8k/1", "5000"),
        ("gsm8k/2", "-5"),
    ]
    assert "12 pencils" in samples[0].messages[0]["content"]
    assert "<<" not in samples[0].messages[0]["content"]  # nothing of the worked answer


@pytest.mark.parametrize(
    ("place", "completion", "value"),
    [
        (0, "3 * 12 = 36, and 36 - 10 = \\boxed{26}.", 1.0),
        (0, "She has 26 pencils left.", 1.0),
        (0, "#### 26", 1.0),
        (0, "She has 36 - 10 = 27 pencils left.", 0.0),
        (0, "", 0.0),
        (0, "<think>36 - 10 = 26", 0.0),
        (1, "It earns $5,000 in two days.", 1.0),
        (1, "\\boxed{\\$5{,}000.00}", 1.0),
        (1, "It earns $500 in two days.", 0.0),
        (2, "It was -5 degrees.", 1.0),
        (2, "\\boxed{-5}", 1.0),
        (2, "It was 5 degrees.", 0.0),  # a scorer that drops the sign would pass it
    ],
)
def test_grading(place: int, completion: str, value: float) -> None:
    score = Gsm8k().score(Gsm8k().load(FIXTURE)[place], completion)
    assert score.value == value, score.detail
    json.dumps(score.detail)


@pytest.mark.parametrize("answer", ["26", "#### ", "#### many", "#### 26 pencils", "#### 26\nmore"])
def test_a_row_without_a_final_number_is_named(tmp_path: Path, answer: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"question": "How many?", "answer": answer}) + "\n")
    with pytest.raises(ValueError, match=r"a\.jsonl:1: field 'answer' must end in a line"):
        Gsm8k().load(path)


def test_the_shipped_rows() -> None:
    samples = GsmSymbolic().load(SHIPPED)
    assert len(samples) == 200
    assert all(sample.id.startswith("gsm_symbolic/0/") for sample in samples)
    right = [GsmSymbolic().score(sample, f"So the answer is {sample.reference}.").value for sample in samples]
    assert right == [1.0] * 200
    wrong = [GsmSymbolic().score(sample, f"So the answer is {sample.reference}1.").value for sample in samples]
    assert wrong == [0.0] * 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": "12 apples"}, r"a\.jsonl:2: field 'answer' must be a number, found '12 apples'"),
        ({"id": "one"}, r"a\.jsonl:2: id 'one' occurs twice"),
        ({"question": " "}, r"a\.jsonl:2: field 'question' must be a string that is not blank"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, change: dict[str, str], message: str) -> None:
    good = {"id": "one", "question": "What is 3 * 4?", "answer": "12"}
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (good, {**good, "id": "two", **change})))
    with pytest.raises(ValueError, match=message):
        GsmSymbolic().load(path)


def test_generated_rows_keep_their_place_and_drop_unrounded_fractions() -> None:
    problems = [{"question": "1.5 and 2?", "answer": "3.5"}, {"question": "0.6666666666 water?", "answer": "1"}]
    made = list(rows([*problems, {"question": "3.25 + 1?", "answer": 4.25}], seed=7))
    assert [(row["id"], row["answer"]) for row in made] == [("gsm_symbolic/7/0", "3.5"), ("gsm_symbolic/7/2", "4.25")]
