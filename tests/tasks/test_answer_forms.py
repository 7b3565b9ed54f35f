"""Sixty and more real-looking answers a family (fenced, bare, body-only, echoed, scripts): each must give the program."""

import contextlib
import io
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from tasks.programs import extract_program, extract_script

# prompt, body, entry point, arguments, value
PROBLEMS: list[tuple[str, str, str, tuple[Any, ...], Any]] = [
    (
        "from typing import List\n\n\ndef has_close(numbers: List[float], threshold: float) -> bool:\n"
        '    """ Are two numbers closer than threshold?\n    >>> has_close([1.0, 2.0], 0.5)\n    False\n    """\n',
        "    for i, a in enumerate(numbers):\n        for b in numbers[i + 1:]:\n            if abs(a - b) < threshold:\n"
        "                return True\n\n    return False\n",
        "has_close",
        ([1.0, 2.0, 2.1], 0.5),
        True,
    ),
    (
        "import math\n\n\ndef poly(xs: list, x: float):\n    return sum(c * math.pow(x, i) for i, c in enumerate(xs))\n\n\n"
        "def at_two(xs: list):\n    '''Value of the polynomial at 2, rounded.'''\n",
        "    value = poly(xs, 2)\n    # floats are rounded to the nearest\n    return int(math.floor(value + 0.5))\n",
        "at_two",
        ([1, 2, 3],),
        17,
    ),
    (
        "\n\ndef is_mirror(text: str) -> bool:\n    return text == text[::-1]\n\n\ndef longest(words):\n"
        '    """\n    Longest word that reads the same from both ends, "" if none.\n    """\n',
        '    best = ""\n    for word in words:\n        if is_mirror(word) and len(word) > len(best):\n'
        "            best = word\n"
        "    return best\n",
        "longest",
        (["ab", "aba", "abba"],),
        "abba",
    ),
    (
        'def fix_spaces(text):\n    """\n    Replace blanks by _, more than 2 in a row by -\n    """\n',
        "    import re\n\n    def swap(match):\n        return '-' if len(match[0]) > 2 else '_' * len(match[0])\n\n"
        '    return re.sub(r"[ ]+", swap, text)\n',
        "fix_spaces",
        ("a  b   c",),
        "a__b-c",
    ),
    (
        'def count_up(n: int) -> list:\n    """Primes below n.\n    count_up(11) => [2,3,5,7]\n    """\n',
        "    primes = []\n    for k in range(2, n):\n        if all(k % p != 0 for p in primes):\n"
        "            primes.append(k)\n"
        "    return primes\n",
        "count_up",
        (11,),
        [2, 3, 5, 7],
    ),
    (
        'def histogram(text):\n    """ Letters that occur most often, with their counts.\n    """\n',
        "    counts = {}\n    for letter in text.split():\n        counts[letter] = counts.get(letter, 0) + 1\n"
        "    if not counts:\n        return {}\n    most = max(counts.values())\n"
        "    return {letter: n for letter, n in counts.items() if n == most}\n",
        "histogram",
        ("a b b a c",),
        {"a": 2, "b": 2},
    ),
]

Style = Callable[[str, str, str], str]


def signature(prompt: str, name: str) -> str:
    return next(line for line in prompt.split("\n") if line.startswith(f"def {name}"))


def whole(prompt: str, body: str, name: str) -> str:
    return f"{signature(prompt, name)}\n{body}"


def imports(prompt: str) -> str:
    return "".join(f"{line}\n" for line in prompt.split("\n") if line.startswith(("import", "from")))


def fence(code: str, tag: str = "python") -> str:
    return f"```{tag}\n{code.rstrip()}\n```"


FENCED: list[Style] = [
    lambda p, b, n: fence(whole(p, b, n)),
    lambda p, b, n: f"Here's the completed function:\n\n{fence(whole(p, b, n))}",
    lambda p, b, n: f"{fence(whole(p, b, n), '')}\n\nThis solution runs in O(n) time.",
    lambda p, b, n: (
        f"Sure! Here is one way.\n\n{fence(whole(p, b, n), 'py')}\n\n**Explanation:**\n1. We loop.\n2. Done."
    ),
    lambda p, b, n: f"{fence(imports(p) + whole(p, b, n))}\n\nExample usage:\n\n{fence(f'print({n}(None))')}",
    lambda p, b, n: fence(whole(p, b, n) + f"\n\n# Test\nassert {n}('no') == 'such value'\nprint('ok')"),
    lambda p, b, n: fence(whole(p, b, n) + f"\nif __name__ == '__main__':\n    print({n}(input()))"),
    lambda p, b, n: (
        f"First try:\n{fence(f'def {n}(*a):{chr(10)}    return None')}\nThat is wrong. Fixed:\n{fence(whole(p, b, n))}"
    ),
    lambda p, b, n: f"```python\n{whole(p, b, n)}",
    lambda p, b, n: f"<think>\nMaybe {fence('def f(): pass')}\n</think>\n\n{fence(whole(p, b, n))}",
    lambda p, b, n: "1. The code:\n\n" + textwrap.indent(fence(whole(p, b, n)), "   ") + "\n\n2. Why: see above.",
    lambda p, b, n: fence(b),
    lambda p, b, n: f"The body is:\n{fence(textwrap.dedent(b))}",
    lambda p, b, n: f"~~~python\n{whole(p, b, n)}~~~\n",
    lambda p, b, n: fence(f"{whole(p, b, n)}").replace("\n", "\r\n"),
]
BARE: list[Style] = [
    lambda p, b, n: whole(p, b, n),
    lambda p, b, n: f"{imports(p)}\n{whole(p, b, n)}",
    lambda p, b, n: f"Here is the function:\n\n{whole(p, b, n)}",
    lambda p, b, n: f"{whole(p, b, n)}\nThis function returns the wanted value.",
    lambda p, b, n: f"{whole(p, b, n)}\n\nprint({n}(None))\n",
    lambda p, b, n: f"{whole(p, b, n)}\n\nassert {n}('no') == 'such value'\n",
    lambda p, b, n: f"def unused(x):\n    return x\n\n\n{whole(p, b, n)}",
    lambda p, b, n: (
        f"{whole(p, b, n)}\n\ndef main():\n    print({n}(None))\n\nif __name__ == '__main__':\n    main()\n"
    ),
    lambda p, b, n: f"\n\n{whole(p, b, n)}\n\n",
    lambda p, b, n: f"</think>\n{whole(p, b, n)}",
    lambda p, b, n: whole(p, b, n) + "```\n",
    lambda p, b, n: f"{whole(p, b, n)}\n\n\ndef {n}_again(x):\n    retu",
]
BODY: list[Style] = [
    lambda p, b, n: b,
    lambda p, b, n: b.rstrip(),
    lambda p, b, n: f"\n{b}",
    lambda p, b, n: b.lstrip(),
    lambda p, b, n: textwrap.dedent(b),
    lambda p, b, n: f"{b}\n\n# Example\nprint({n}(None))\n",
    lambda p, b, n: f"{b}\n\nThe function is now complete.",
    lambda p, b, n: f"{b}```\n\nI hope this helps!",
    lambda p, b, n: f"{b}\n\ndef check(candidate):\n    assert candidate(None)\n\ncheck({n})\n",
    lambda p, b, n: f"{b}\n\nif __name__ == '__main__':\n    import doctest\n    doctest.testmod()\n",
    lambda p, b, n: f"    # complete the function\n{b}",
    lambda p, b, n: b.replace("    ", "\t"),
]
ECHOED: list[Style] = [
    lambda p, b, n: p + b,
    lambda p, b, n: fence(p + b),
    lambda p, b, n: f"Here is the complete code:\n\n{fence(p + b)}\n",
    lambda p, b, n: f"{p}{b}\n\nThis is the whole program.",
    lambda p, b, n: f"{fence(p)}\n\nThe answer:\n\n{fence(p + b)}",
    lambda p, b, n: fence(p + b + f"\n\nprint({n}(None))"),
    lambda p, b, n: f"```python\n{p}{b}",
    lambda p, b, n: fence(p + b, "") + "\n\nLet me know if you need tests.",
    lambda p, b, n: p.lstrip() + b,
    lambda p, b, n: f"<think>\nLoop over it.\n</think>\n{p}{b}",
    lambda p, b, n: f"{p}{b}\n\n{p}{b}",
    lambda p, b, n: f"{p}{b}\n\n\ndef test():\n    assert {n}(None)\n\ntest()\n",
]
FAMILIES = {"fenced": FENCED, "bare": BARE, "body-only": BODY, "echoed": ECHOED}
CASES = [
    (name, number, problem)
    for name, styles in FAMILIES.items()
    for number in range(len(styles))
    for problem in range(6)
]


@pytest.mark.parametrize(("family", "style", "problem"), CASES)
def test_the_answer_computes(family: str, style: int, problem: int) -> None:
    prompt, body, name, arguments, value = PROBLEMS[problem]
    answer = extract_program(prompt, FAMILIES[family][style](prompt, body, name), name)
    assert answer.text is not None, answer.how
    scope: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(answer.text, "answer", "exec"), scope)
    assert scope[name](*arguments) == value


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_sixty_answers(family: str) -> None:
    texts = {style(p, b, n) for style in FAMILIES[family] for p, b, n, _, _ in PROBLEMS}
    assert len(texts) >= 60


@pytest.mark.parametrize("style", range(len(FENCED)))
def test_a_named_function_without_a_prompt(style: int) -> None:
    """The forms of an answer to a task that shows no code: what the prompt would have brought is not there."""
    for prompt, body, name, arguments, value in PROBLEMS[3:]:
        text = FENCED[style](prompt, body, name)
        answer = extract_script(text, name)
        if f"def {name}" not in text:
            assert (answer.text, answer.how) == (None, "no code")
            continue
        assert answer.text is not None, answer.how
        scope: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(answer.text, "answer", "exec"), scope)
        assert scope[name](*arguments) == value


PLUS_ONE = "class Solution:\n    def f(self, x):\n        return x + 1"
NAMED = {
    "class": fence("class Solution:\n    def f(self, x):\n        return x + 1\n\nprint(Solution().f(1))"),
    "bare class": "Here:\n\nclass Solution:\n    def f(self, x):\n        return x + 1\n\nIt adds one.",
    "lambda": fence("Solution = lambda: None\n"),
    "with imports and helpers": fence(
        "import math\nONE = 1\ndef g(x):\n    return x + ONE\nclass Solution:\n    def f(self, x):\n        return g(x)\n"
    ),
    "two blocks": fence("class Solution:\n    pass") + "\nBetter:\n" + fence(PLUS_ONE),
    "other languages first": fence("int main() {}", "cpp") + "\n" + fence(PLUS_ONE),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_a_named_class(name: str) -> None:
    answer = extract_script(NAMED[name], "Solution")
    assert answer.text is not None, answer.how
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(answer.text, "answer", "exec"), scope)
    made = scope["Solution"]()
    assert made is None or made.f(1) == 2


DOUBLE = "n = int(input())\nprint(2 * n)\n"
MAIN = "import sys\n\n\ndef main():\n    print(2 * int(sys.stdin.readline()))\n\n\nif __name__ == '__main__':\n    main()\n"
SCRIPTS: list[Callable[[str], str]] = [
    lambda c: fence(c),
    lambda c: fence(c, ""),
    lambda c: fence(c, "python3"),
    lambda c: f"```python\n{c}",
    lambda c: f"The program:\n\n{fence(c)}\n\nIt doubles.",
    lambda c: f"{fence(c)}\n\nSample:\n\n{fence('4', '')}\n\nprints\n\n{fence('8', '')}",
    lambda c: f"{fence(c)}\n\nRun it:\n\n{fence('echo 4 | python a.py', 'bash')}",
    lambda c: f"{fence(c)}\n\nTo try it:\n\n{fence('print(2 * 4)')}",
    lambda c: f"Wrong:\n{fence('print(input())')}\nRight:\n{fence(c)}",
    lambda c: f"<think>\n{fence('print(0)')}\n</think>\n{fence(c)}",
    lambda c: f"In C++:\n{fence('int main() { }', 'cpp')}\nIn Python:\n{fence(c)}",
    lambda c: c,
    lambda c: f"{c}\nThis doubles the number.",
    lambda c: f"Here it is:\n\n{c}",
    lambda c: f"{fence(c)}\n".replace("\n", "\r\n"),
]


@pytest.mark.parametrize("style", range(len(SCRIPTS)))
@pytest.mark.parametrize("code", [DOUBLE, MAIN], ids=["plain", "main"])
def test_a_script_runs(style: int, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = extract_script(SCRIPTS[style](code))
    assert answer.text is not None, answer.how
    monkeypatch.setattr(sys, "stdin", io.StringIO("21\n"))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(answer.text, "answer", "exec"), {"__name__": "__main__"})
    assert out.getvalue() == "42\n"


@pytest.mark.parametrize(
    "text", ["", "I cannot.", "It is 42.", fence("42", ""), fence("int main() {}", "cpp"), "<think>" + fence(DOUBLE)]
)
def test_no_script(text: str) -> None:
    assert extract_script(text).text is None


def test_long_rubbish_takes_no_time() -> None:
    blocks = "```python\nprint(\n```\n" * 4_000
    nested = ["(" * 90_000, "-" * 90_000 + "1", "x" + "[0]" * 30_000, "f" + "()" * 40_000, "a = " * 20_000 + "1"]
    lines = ["x\n" * 40_000, "```\n" * 20_000, "if x:\n" * 3_000, "print(\n" * 9_000]
    for text in (*nested, *lines, blocks):
        extract_script(text)
        extract_script(text, "solve")
        extract_program("def solve():\n", "    return " + text, "solve")
