"""CHAMP: answers for people become one number, yes or no, or stay unscored."""

import json
from pathlib import Path

import pytest

from tasks.champ import Champ, key_of

FIXTURE = Path(__file__).parent / "fixtures" / "champ.json"
TASK = Champ()


@pytest.mark.parametrize(
    ("answer", "key"),
    [
        ("239", "239"),
        ("-3", "-3"),
        ("5/14, or approximately 35.7%", "5/14"),
        ("C(10, 5), or equivalently 252", "252"),
        ("0 is the only possible value", "0"),
        ("-3 is the only possible value", "-3"),
        ("100 (i.e., all values)", "100"),
        ("0 (none of the values)", "0"),
        ("At most 0 integer-valued zeros (i.e., no integer zeros)", "0"),
        ("At least 1 number", "1"),
        ("2 inequalities", "2"),
        ("Exactly one sequence", "1"),
        ("The limit exists and is equal to 2/3", "2/3"),
        ("sqrt(3)/3, or equivalently 1/sqrt(3)", r"\sqrt{3}/3"),
        ("2^997", "2^{997}"),
        ("Yes", "yes"),
        ("No", "no"),
        ("No integer solutions", None),
        ("x=2, y=1", None),
        ("1 and 19", None),
        ("2^(n-1)", None),
        ("n times", None),
        ("[-1, 1]", None),
        ("The limit exists and is equal to (a+3b)/2", None),
        ("The limit does not exist", None),
        ("sum_(i=1)^n i^3, or equivalently (n(n+1)/2)^2", None),
        ("k-2 (i.e., all of them)", None),
    ],
)
def test_keys(answer: str, key: str | None) -> None:
    assert key_of(answer) == key


@pytest.mark.parametrize(
    ("place", "completion", "value"),
    [
        (0, r"$2^5$, so \boxed{32}", 1.0),
        (0, r"\boxed{2^5}", 1.0),
        (0, r"\boxed{31}", 0.0),
        (1, r"91 = 7 * 13, so \boxed{\text{No}}", 1.0),
        (1, r"\boxed{No}", 1.0),
        (1, r"\boxed{\textbf{no, because } 91 = 7 \cdot 13}", 1.0),
        (1, "**Final answer:** no", 1.0),
        (1, r"\boxed{\text{Yes}}", 0.0),
        (1, r"\boxed{91}", 0.0),
        (1, r"\boxed{\text{Nothing}}", 0.0),
        (1, "", 0.0),
        (2, r"\boxed{\pm 2}", None),
        (2, "", None),
    ],
)
def test_grading(place: int, completion: str, value: float | None) -> None:
    score = TASK.score(TASK.load(FIXTURE)[place], completion)
    assert score.value == value, score.detail
    assert score.detail["reason"]
    json.dumps(score.detail)


def test_the_real_file(package_files: dict[str, Path]) -> None:
    samples = TASK.load(package_files["champ"])
    assert len(samples) == 270
    graded = [sample for sample in samples if sample.reference is not None]
    assert len(graded) == 181
    assert sum(sample.reference in ("yes", "no") for sample in graded) == 33
    for sample in graded:
        boxed = rf"\text{{{sample.reference}}}" if sample.reference in ("yes", "no") else sample.reference
        assert TASK.score(sample, rf"\boxed{{{boxed}}}").value == 1.0
        assert TASK.score(sample, r"\boxed{-17.25}").value == 0.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", r"a\.json: expected a JSON object, found list"),
        ("{}", r"a\.json: has no 'problems'"),
        ('{"problems": {}}', r"a\.json: 'problems' holds no rows"),
        ('{"problems": {"P": 3}}', r"a\.json: problems\['P'\]: expected a JSON object, found int"),
        ('{"problems": {"P": {"identifier": "P"}}}', r"problems\['P'\]: has no field '_text'"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        TASK.load(tmp_path / "a.json")
    with pytest.raises(ValueError, match="no such file"):
        TASK.load(tmp_path / "none.json")
