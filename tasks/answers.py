"""Finds where an answer states its result, a formula or a number. Never raises for what a model wrote."""

import re
from dataclasses import dataclass

from tasks.numbers import MAX_LINE_CHARS, stated_number, values
from tasks.reasoning import TRUNCATED, strip_reasoning

ASKED = r"""(?:\ (?:to|of|for)\b[^.\n]{0,80}?)?  # "the answer to the question"
    \s*(?::|=|\bis\b|\bare\b|\bequals\b|\bcomes\ to\b)\s*:?\**[ \t]*
    \n?[ \t]*(?P<answer>[^\n]+)"""
PHRASE = re.compile(rf"(?:final\ answer|answer)\**{ASKED}", re.IGNORECASE | re.VERBOSE)
RESULT = re.compile(rf"(?:result|total|solution)\**{ASKED}", re.IGNORECASE | re.VERBOSE)  # steps have results too
HASHES = re.compile(r"^#{4}[ \t]*(?P<answer>[^\n]+)$", re.MULTILINE)
MATHS = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<!\\)\$(.+?)(?<!\\)\$", re.DOTALL)
DISPLAY = re.compile(r"(?:\$\$(.+?)\$\$|\\\[(.+?)\\\])[.\s]*\Z", re.DOTALL)
LIST_PLACE = re.compile(r"^\s*(?:\d{1,2}[.)]|[-*•–])\s+(?=\S)")
MAX_BOXES = 50  # looked at, from the end: an answer caught in a loop opens thousands
LAST_LINES = 3  # in which a result may stand that nothing announces; what follows is "Let me know ..."


@dataclass(frozen=True, kw_only=True)
class Answer:
    """`text` is None where there is no answer. `how` says where it was found, or why there is none."""

    text: str | None
    how: str


def extract_maths(completion: str) -> Answer:
    """The result in a maths answer: the last complete `\\boxed{}`, else `#### x`, else "the answer is x", else "the result
    is x", the last formula or the last number of the last line that has one."""
    rest = strip_reasoning(completion)
    if rest is None:
        return Answer(text=None, how=TRUNCATED)
    boxed = last_boxed(rest)
    if boxed is not None:
        return Answer(text=boxed, how="boxed")
    for how, pattern in (("hashes", HASHES), ("phrase", PHRASE)):
        for match in reversed(list(pattern.finditer(rest))):
            if answer := tidy(match["answer"]):
                return Answer(text=answer, how=how)
    display = DISPLAY.search(rest[-MAX_LINE_CHARS:])
    if display and (formula := (display[1] or display[2]).strip()):
        return Answer(text=right_side(formula), how="last formula")
    for line in last_lines(rest)[:LAST_LINES]:
        for match in reversed(list(RESULT.finditer(line))):
            if answer := tidy(match["answer"]):
                return Answer(text=answer, how="phrase")
        if (formulas := MATHS.findall(line)) and (formula := "".join(formulas[-1]).strip()):
            return Answer(text=right_side(formula), how="last formula")
        if numbers := list(values(line)):
            return Answer(text=numbers[-1], how="last number")
    return Answer(text=None, how="no answer")


def extract_number(completion: str) -> Answer:
    """The number that an answer in prose comes to, in plain form: `-1234.5` or `3/4`.

    The last complete `\\boxed{}`, else `#### x`, else "the answer is x", else of the last line that has numbers "the result
    is x", the last bold number or the last number.
    """
    rest = strip_reasoning(completion)
    if rest is None:
        return Answer(text=None, how=TRUNCATED)
    boxed = last_boxed(rest)
    if boxed is not None:
        plain = re.sub(r"\\(?:text|mathrm|textbf|mathbf)\s?\{([^{}]*)\}", r" \1 ", boxed)
        return Answer(text=stated_number(plain) or boxed, how="boxed")  # a formula is for the grader to read
    for how, pattern in (("hashes", HASHES), ("phrase", PHRASE)):
        for match in reversed(list(pattern.finditer(rest))):
            if found := stated_number(match["answer"]):
                return Answer(text=found, how=how)
    for line in last_lines(rest):
        if numbers := list(values(line)):
            for match in reversed(list(RESULT.finditer(line))):
                if found := stated_number(match["answer"]):
                    return Answer(text=found, how="phrase")
            bold = [number for part in re.findall(r"\*\*(.+?)\*\*", line) for number in values(part)]
            return Answer(text=(bold or numbers)[-1], how="last number")
    return Answer(text=None, how="no answer")


def last_lines(text: str) -> list[str]:
    """Lines that are not blank, the last first, each without its place in a list and without what precedes its end."""
    return [LIST_PLACE.sub("", line)[-MAX_LINE_CHARS:] for line in reversed(text.split("\n")) if line.strip()]


def last_boxed(text: str) -> str | None:
    """Content of the last `\\boxed{...}` or `\\fbox{...}` whose braces are closed, or of `\\boxed x`."""
    for match in list(re.finditer(r"\\f?box(?:ed)?(?![a-zA-Z])\s*", text))[: -MAX_BOXES - 1 : -1]:
        place = match.end()
        if place >= len(text):
            continue
        if text[place] != "{":
            token = re.match(r"[^\s$.,;\\{}]+", text[place:])
            if token:
                return token[0]
            continue
        content = braced(text, place)
        if content is not None and content.strip():
            return content.strip()
    return None


def braced(text: str, start: int) -> str | None:
    """What stands between the brace at `start` and its partner; `\\{` and `\\}` do not count. None if unclosed."""
    depth, place = 0, start
    while place < len(text):
        char = text[place]
        if char == "\\":
            place += 1
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : place]
        place += 1
    return None


def tidy(answer: str) -> str | None:
    """An answer taken from a line of prose: its formula if there is one, else without emphasis and full stop."""
    formulas = MATHS.findall(answer)
    if formulas:
        return right_side("".join(formulas[0]).strip())
    plain = re.sub(r"\*\*|__|`", "", answer).strip()
    plain = re.split(r"[.!;](?:\s|$)|,\s+(?:so|because|since|which|and)\b", plain)[0].strip()
    return right_side(plain) or None


def right_side(formula: str) -> str:
    """`y` of `x = y`; the formula itself where there is no single equals sign to cut at."""
    parts = re.split(r"(?<![<>!\\:])=(?!=)", formula)
    return parts[-1].strip() if len(parts) > 1 and parts[-1].strip() else formula
