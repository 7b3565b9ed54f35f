"""Cuts the reasoning off an answer. An answer is what a model says after it has thought, or nothing.

Known marks: `<think>` (Qwen3, DeepSeek-R1), `<seed:think>`, `[THINK]` (Magistral), `◁think▷` (Kimi) anywhere;
`<thinking>`, `<reasoning>` and `<thought>` where a line begins with them, for they are ordinary words in ordinary code.
"""

import re

TRUNCATED = "no answer, truncated reasoning"
ANYWHERE = r"<(?:seed:)?think>|\[THINK\]|◁think▷"
AT_LINE_START = r"^[ \t]*<(?:thinking|reasoning|thought)>"
OPENS = re.compile(f"{ANYWHERE}|{AT_LINE_START}", re.MULTILINE)
CLOSES = re.compile(r"</(?:seed:)?think>|\[/THINK\]|◁/think▷|</(?:thinking|reasoning|thought)>")

CERTAIN = re.compile(r"/(?:seed:)?think[>▷]|/THINK")


def strip_reasoning(text: str) -> str | None:
    """What follows the last closed block; None when a block is still open, so no answer was reached.

    A chat template may open the block itself, so a lone closing mark ends one too.
    """
    rest, first = text, OPENS.search(text)
    for closed in CLOSES.finditer(text):
        # `</reasoning>` in an answer's own XML closes nothing that was not opened.
        if CERTAIN.search(closed.group()) or (first and first.start() < closed.start()):
            rest = text[closed.end() :]
    return None if OPENS.search(rest) else rest


def opened_reasoning(prompt: str) -> str:
    """The mark of a reasoning block that a rendered prompt leaves open at its end; empty when there is none."""
    opened = list(OPENS.finditer(prompt))
    if not opened or prompt[opened[-1].end() :].strip():
        return ""
    return opened[-1].group().strip()


def with_opened(mark: str, text: str) -> str:
    """An answer with the mark that its prompt ended in, for cut-off reasoning looks like an answer without it."""
    return f"{mark}\n{text}" if mark else text
