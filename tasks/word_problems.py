"""How GSM8K and its generated likeness are graded: by the value of the number that an answer ends in."""

from tasks.answers import extract_number
from tasks.base import Score
from tasks.competition import MAX_RECORDED_CHARS
from tasks.maths import shared_grader


def grade(reference: str, completion: str, timeout_s: float) -> Score:
    """1.0 when the number that `completion` gives has the value of `reference`, else 0.0 with the reason."""
    answer = extract_number(completion)
    if answer.text is None:
        return Score(value=0.0, detail={"answer": None, "found": answer.how, "reason": answer.how})
    equal, reason = shared_grader(timeout_s).compare(reference, answer.text)
    detail = {"answer": answer.text[:MAX_RECORDED_CHARS], "found": answer.how, "reason": reason}
    return Score(value=float(equal), detail=detail)
