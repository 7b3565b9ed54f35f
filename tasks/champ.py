r"""CHAMP (Mao, Kim and Zhou 2024, arXiv:2401.06961): 270 competition problems out of a handbook, with answers. MIT licence.

Version 1. Source: the file of the package `champ-dataset` 1.0.0 (v0.json), one JSON object. A row of its "problems",
shortened:
    "P_Number-Theory_19": {"identifier": "P_Number-Theory_19", "category": "Number-Theory",
      "_text": "Find all possible values of n^5-5*n^3+4n mod 120 for integer n.",
      "_answer": "0 is the only possible value", "solution": {...}, "ch_list": [...], "conversations": {...}}
Concepts, hints, worked solutions and the recorded conversations of other models are not used.

Asked as one user message: the problem, then `competition.INSTRUCTION`. Answers are written for people ("0 (i.e., no
such values)", "x=2, y=1"). Those that come to one number or to yes or no are graded (`key_of`): 181 of the 270. The
others are decoded and measured but unscored, not wrong. A question of yes or no has a chance level of one half.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Gt

from tasks.answers import extract_maths
from tasks.base import Sample, Score
from tasks.competition import MAX_RECORDED_CHARS, grade, question
from tasks.rows import read_mapping, text_fields, unique_ids

FRAME = re.compile(
    r"""(?:At\ (?:most|least)|Exactly
       |The\ limit\ exists\ and\ is\ equal\ to|The\ only\ possible\ value\ for\ the\ limit\ is)?
    \s*(?P<number>one|-?\d+(?:/\d+)?|\d+\^\d+|sqrt\(\d+\)(?:/\d+)?)
    (?:\ is\ the\ only\ possible\ value|(?:\ [a-z-]+){1,2})?  # "2 inequalities", "0 integer-valued zeros"
    (?:\ \((?:i\.e\.|no|all)[^()]*\))?""",
    re.VERBOSE,
)
ALTERNATIVES = re.compile(r", or (?:equivalently|approximately) ")
YES_OR_NO = re.compile(r"(?:\\(?:text|textbf|mathrm)\s*\{)?\W*(yes|no)\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Champ:
    """`timeout_s` of wall time to compare one answer."""

    timeout_s: Annotated[float, Gt(0)] = 5.0

    version: ClassVar[int] = 1
    metric: ClassVar[str | None] = "accuracy"

    def load(self, path: Path) -> list[Sample]:
        rows = read_mapping(path, "problems")
        fields = [text_fields(row, "identifier", "_text", "_answer") for row in rows]
        unique_ids(rows, [name for name, _, _ in fields])
        return [
            Sample(id=f"champ/{name}", messages=question(text), reference=key_of(answer))
            for name, text, answer in fields
        ]

    def score(self, sample: Sample, completion: str) -> Score:
        key = sample.reference
        if key is None:
            return Score(value=None, detail={"reason": "unscored: the answer is neither one number nor yes or no"})
        if key not in ("yes", "no"):
            return grade(key, completion, self.timeout_s)
        answer = extract_maths(completion)
        said = YES_OR_NO.match(answer.text or "")
        detail = {"answer": answer.text and answer.text[:MAX_RECORDED_CHARS], "found": answer.how}
        if said is None:
            reason = answer.how if answer.text is None else "neither yes nor no"
            return Score(value=0.0, detail={**detail, "reason": reason})
        equal = said[1].lower() == key
        return Score(value=float(equal), detail={**detail, "reason": "equal" if equal else "not equal"})


def key_of(answer: str) -> str | None:
    """An answer as LaTeX of one number, "yes" or "no"; None where it comes to none of these."""
    if answer in ("Yes", "No"):
        return answer.lower()
    forms = [FRAME.fullmatch(form) for form in ALTERNATIVES.split(answer)]
    numbers = [form["number"] for form in forms if form]
    if not numbers:
        return None
    number = "1" if numbers[0] == "one" else numbers[0]
    number = re.sub(r"sqrt\((\d+)\)", r"\\sqrt{\1}", number)
    return re.sub(r"\^(\d+)", r"^{\1}", number)
