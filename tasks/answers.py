"""Finds the result in a maths answer, and cuts off the reasoning. Never raises for what a model wrote."""

import re
from dataclasses import dataclass

TRUNCATED = "no answer, truncated reasoning"
PHRASE = re.compile(
    r"""(?:final\ answer|answer|result)\**
    (?:\ (?:to|of|for)\b[^.\n]{0,80}?)?  # "the answer to the question"
    \s*(?::|=|\bis\b|\bare\b|\bequals\b)\s*:?\**[ \t]*
    \n?[ \t]*(?P<answer>[^\n]+)""",
    re.IGNORECASE | re.VERBOSE,
)
HASHES = re.compile(r"^#{4}[ \t]*(?P<answer>[^\n]+)$", re.MULTILINE)
MATHS = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<!\\)\$(.+?)(?<!\\)\$", re.DOTALL)
NUMBER = re.compile(r"[-+−]?\$?\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?(?:[eE][-+]?\d+)?%?")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """`text` is None where there is no answer. `how` says where it was found, or why there is none."""

    text: str | None
    how: str


def strip_reasoning(text: str) -> str | None:
    """What follows the last closed `<think>` block; None when a block is still open, so no answer was reached.

    A chat template may open the block itself, so a lone `</think>` closes one too.
    """
    _, closed, after = text.rpartition("</think>")
    rest = after if closed else text
    return None if "<think>" in rest else rest


def extract_maths(completion: str) -> Answer:
    """The result in a maths answer: the last complete `\\boxed{}`, else `#### x`, else "the answer is x", else the last
    formula or number of the last line."""
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
    last_line = rest.rstrip().rpartition("\n")[2]
    if formulas := MATHS.findall(last_line):
        return Answer(text=right_side("".join(formulas[-1]).strip()), how="last formula")
    if numbers := NUMBER.findall(last_line):
        return Answer(text=numbers[-1].replace("−", "-").strip(), how="last number")
    return Answer(text=None, how="no answer")


def last_boxed(text: str) -> str | None:
    """Content of the last `\\boxed{...}` or `\\fbox{...}` whose braces are closed, or of `\\boxed x`."""
    for match in reversed(list(re.finditer(r"\\f?box(?:ed)?(?![a-zA-Z])\s*", text))):
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
