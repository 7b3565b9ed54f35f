"""Program extraction: answers as models write them must give a program that computes, and only that."""

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.answers import TRUNCATED
from tasks.programs import extract_program

PROMPT = '''import math
from typing import List


def helper(x: int) -> int:
    """ Doubles x. """
    return 2 * x


def solve(xs: List[int]) -> int:
    """ Sum of doubled numbers.
    >>> solve([1, 2])
    6
    """
'''
BODY = "    total = 0\n    for x in xs:\n        total += helper(x)\n    return total\n"
FUNCTION = "def solve(xs):\n" + BODY
SELF = "def helper(x):\n    return x + x\n\n\n" + FUNCTION


def fenced(code: str, tag: str = "python") -> str:
    return f"```{tag}\n{code}```\n"


RIGHT = {
    "fenced function": fenced(FUNCTION),
    "fence without a tag": fenced(FUNCTION, ""),
    "fence py": fenced(FUNCTION, "py"),
    "fence Python 3": fenced(FUNCTION, "Python3"),
    "tilde fence": FUNCTION.join(("~~~python\n", "~~~\n")),
    "four backticks": f"````python\n{FUNCTION}````",
    "fence never closed": "```python\n" + FUNCTION,
    "indented fence": "1. Code:\n\n   ```python\n"
    + "".join(f"   {line}\n" for line in FUNCTION.split("\n"))
    + "   ```\n",
    "prose around": f"Sure! Here it is:\n\n{fenced(FUNCTION)}\nThis adds up. Let me know!",
    "echoed prompt and body": PROMPT + BODY,
    "echoed prompt in a fence": fenced(PROMPT + BODY),
    "own helper": fenced(SELF),
    "usage example in a second block": fenced(FUNCTION) + "Use it:\n" + fenced("print(solve([1, 2]))\nassert False\n"),
    "usage example in the block": fenced(FUNCTION + "\nprint(solve([1, 2]))\nassert solve([1]) == 99\n"),
    "main guard": fenced(FUNCTION + '\nif __name__ == "__main__":\n    raise SystemExit(solve([1]))\n'),
    "asks for input": fenced(FUNCTION + "\nn = int(input())\nprint(solve([n]))\n"),
    "result assigned": fenced(FUNCTION + "\nresult = solve(undefined_name)\n"),
    "second version counts": fenced("def solve(xs):\n    return 0\n") + "Better:\n" + fenced(FUNCTION),
    "bare function": FUNCTION,
    "bare function after prose": "Here is the function.\n\n" + FUNCTION,
    "bare function before prose": FUNCTION + "\nThis function adds the doubled numbers.\n",
    "bare function between prose": "Of course!\n" + SELF + "\nHope that helps.",
    "one word of prose": FUNCTION + "\nDone\n",
    "body": BODY,
    "body without the first indentation": BODY.lstrip(),
    "body without any indentation": "total = 0\nfor x in xs:\n    total += helper(x)\nreturn total\n",
    "body after empty lines": "\n\n" + BODY,
    "body in a fence": fenced(BODY),
    "body in a fence, no indentation": fenced("return sum(helper(x) for x in xs)\n"),
    "body with tabs": BODY.replace("    ", "\t"),
    "body, Windows line ends": BODY.replace("\n", "\r\n"),
    "body then prose": BODY + "\nThis works because of addition.\n",
    "body then another function": BODY + "\n\ndef other(y):\n    return y\n",
    "body then usage": BODY + "\n\nprint(solve([1, 2]))\nassert solve([1]) == 0\n",
    "body then cut-off function": BODY + "\n\ndef other(y):\n    retur",
    "body closes the prompt's fence": BODY + "```\n\nThis adds up.\n",
    "body then a fenced example": BODY + "\nExample:\n```python\nprint(solve([1, 2]))\n```\n",
    "body then the same function once more": BODY + "\n\ndef solve(xs):\n    return 0\n",
    "body then the prompt once more, cut off": BODY + "\n\n" + PROMPT,
    "function closes the prompt's fence": FUNCTION + "```\n\nThis adds up.\n",
    "body with own import": "    import functools\n    return functools.reduce(lambda a, x: a + helper(x), xs, 0)\n",
    "one line": "    return sum(map(helper, xs))",
    "one line, no indentation": "return sum(map(helper, xs))",
    "comment first": "    # add up\n" + BODY,
    "docstring again": '    """ Again. """\n' + BODY,
    "constant before": fenced("SCALE = 2\n\ndef solve(xs):\n    return SCALE * sum(xs)\n"),
    "constant after": fenced("def solve(xs):\n    return SCALE * sum(xs)\n\nSCALE = 2\n"),
    "from future": fenced("from __future__ import annotations\n\n" + FUNCTION),
    "setting before": fenced("import sys\nsys.setrecursionlimit(5000)\n\n" + FUNCTION),
    "decorated": fenced("import functools\n\n@functools.wraps(helper)\n" + FUNCTION),
    "typed signature needs the prompt's import": fenced("def solve(xs: List[int]) -> int:\n" + BODY),
    "nested function": fenced(
        "def solve(xs):\n    def twice(x):\n        return 2 * x\n    return sum(map(twice, xs))\n"
    ),
    "reasoning first": "<think>def solve(xs): return 0</think>" + fenced(FUNCTION),
    "reasoning opened by the template": "so ```python\ndef solve(xs):\n    return 0\n``` hm</think>\n" + FUNCTION,
    "uses the prompt's math": fenced("def solve(xs):\n    return int(math.fsum(xs)) * 2\n"),
    "line separator in a string": fenced("def solve(xs):\n    s = '\u2028'\n    return 2 * sum(xs)\n"),
}


def run(program: str) -> dict:
    scope: dict = {"__name__": "__main__"}
    exec(compile(program, "program", "exec"), scope)
    return scope


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_compute(name: str) -> None:
    answer = extract_program(PROMPT, RIGHT[name], "solve")
    assert answer.text is not None, answer.how
    assert run(answer.text)["solve"]([1, 2]) == 6
    assert run(answer.text)["solve"]([]) == 0


NONE = {
    "empty": "",
    "blank": " \n\n",
    "prose": "I cannot help with that.",
    "only a docstring": fenced('def solve(xs):\n    """ Sum. """\n'),
    "another language": "```\nfunction solve(xs) { return 1; }\n```",
    "open reasoning": "<think>" + fenced(FUNCTION),
    "nothing after reasoning": "<think>" + fenced(FUNCTION) + "</think>",
    "null bytes": "\0\0",
}


@pytest.mark.parametrize("name", NONE)
def test_no_code_is_no_answer(name: str) -> None:
    answer = extract_program(PROMPT, NONE[name], "solve")
    assert answer.text is None
    assert answer.how == (TRUNCATED if name == "open reasoning" else "no code")


WRONG = {
    "wrong body": "    return 1\n",
    "wrong function": fenced("def solve(xs):\n    return 1\n"),
    "cut off in the middle": "    total = 0\n    for x in xs:\n        total += hel",
    "pass": "    pass\n",
    "right function under another name": fenced("def sove(xs):\n    return 2 * sum(xs)\n"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_stay_wrong(name: str) -> None:
    """Extraction must not repair: what it gives for a wrong answer does not compute the right value."""
    answer = extract_program(PROMPT, WRONG[name], "solve")
    if answer.text is not None:
        try:
            value = run(answer.text)["solve"]([1, 2])
        except NameError:
            return
        assert value != 6


FRAGMENTS = [
    "```",
    "```python\n",
    "\n",
    "def solve(xs):\n",
    "    return 1\n",
    "\t",
    "'''",
    '"""',
    "(",
    "<think>",
    "\\",
    "\0",
]


@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=6)), max_size=12).map("".join))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_text_gives_a_program_that_parses_or_none(text: str) -> None:
    answer = extract_program(PROMPT, text, "solve")
    if answer.text is not None:
        names = [node.name for node in ast.parse(answer.text).body if isinstance(node, ast.FunctionDef)]
        assert "solve" in names
        assert "helper" in names


VALUES = st.recursive(
    st.one_of(st.integers(-99, 99), st.text("abc\n '\"\\#`", max_size=6)),
    lambda v: st.lists(v, max_size=3),
    max_leaves=5,
)
PROSE = st.text("abcdefg ,.!", max_size=30).map(lambda words: words.strip())


@given(VALUES, PROSE, PROSE, st.sampled_from(["fenced", "bare", "body", "unindented body"]))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_prose_around_code_never_changes_the_result(value: object, before: str, after: str, form: str) -> None:
    """Oracle: the value that was written into the code."""
    body = f"    answer = {value!r}\n    return answer\n"
    text = {
        "fenced": f"{before}\n{fenced('def solve(xs):' + chr(10) + body)}{after}",
        "bare": f"def solve(xs):\n{body}\n{after}",
        "body": f"{body}\n{after}",
        "unindented body": f"{body.replace('    ', '')}",
    }[form]
    answer = extract_program(PROMPT, text, "solve")
    assert answer.text is not None
    assert run(answer.text)["solve"]([]) == value


def test_long_rubbish_takes_no_time() -> None:
    for text in ("(" * 90_000, "x\n" * 40_000, "```\n" * 20_000, "    if x:\n" * 3_000, "def solve(xs):\n" * 3_000):
        extract_program(PROMPT, text, "solve")
