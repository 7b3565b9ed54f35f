"""Runs an answer to a LiveCodeBench problem against its tests, one after the other; the first failure ends it.

The answer never shares a process with an expected value:
- a method is called by `CHECK`, which runs in another process (`Sandbox.run_checked`) and gets plain values back. The
  answer is executed anew for every test.
- a script runs once for each test (`Sandbox.run_script`), with that test's input alone; what it printed is compared
  here. Texts that a program printed are parsed in time and memory that grow with their length and no faster. A run costs
  about 0.1 s beside what the answer itself takes: an interpreter and its namespaces start for each test.

Compared is as LiveCodeBench does: returned values with ==, a tuple counting as a list; printed output line by line without
outer blanks, and where two lines differ as text, word by word as exact decimals. A script may end by `sys.exit` with any
value; one that ends by an exception or in another way with an exit code other than 0 fails, whatever it printed.
"""

from decimal import Decimal, InvalidOperation

from tasks.sandbox import Outcome, Sandbox

# What contest answers use without importing it; starter code uses `List` without importing it.
PRELUDE = """
from typing import *
from collections import *
from itertools import *
from functools import *
from heapq import *
from bisect import *
from math import *
from builtins import *
import collections, itertools, functools, heapq, bisect, math, string, re, random, sys
exit = quit = sys.exit
"""  # builtins last: math has a pow of its own. The sandbox leaves out the module that has exit and quit.

# Arguments are a JSON value a line.
METHOD = """
import json, sys
sys.setrecursionlimit(50_000)
codes = [compile(text, "answer", "exec") for text in ({prelude!r}, {answer!r})]
def call_answer(given):
    args = [json.loads(line) for line in given.split("\\n")]
    module = sys.modules["answer"] = type(sys)("answer")
    for code in codes:
        exec(code, module.__dict__)
    owner = module.Solution() if hasattr(module, "Solution") else module
    return getattr(owner, {function!r})(*args)
"""
CHECK = """
import json
for number, (given, expected) in enumerate(data, start=1):
    try:
        got = call_answer(given)
    except BaseException as error:
        kind = f"{type(error).__name__}: " if isinstance(error, Exception) else ""
        raise AssertionError(f"test {number}: {kind}{error}") from None
    got, wanted = list(got) if isinstance(got, tuple) else got, json.loads(expected)
    assert got == wanted, f"test {number}: returned {got!r:.60}, not {wanted!r:.60}"
"""
SCRIPT = """
import sys
sys.setrecursionlimit(50_000)
exec({prelude!r})
exec(compile({answer!r}, "answer", "exec"))
"""
MIN_OUTPUT_BYTES = 8 << 20


def grade(
    sandbox: Sandbox,
    answer: str,
    tests: list[list[str]],
    function: str | None,
    *,
    timeout_s: float,
    total_s: float,
    memory_mb: int,
) -> Outcome:
    """Whether `answer` passes all `tests`, [input, output] of each. `function` is the method to call; None for a script.

    `timeout_s` of wall time a test, `total_s` for all; `memory_mb` (2**20 bytes) a process. Raises GraderError.
    """
    if function is None:
        return grade_script(sandbox, answer, tests, timeout_s, total_s, memory_mb)
    program = METHOD.format(prelude=PRELUDE, answer=answer, function=function)
    # A second more, so that a single test that is late is told as such.
    limit_s = min(total_s, timeout_s * len(tests) + 1.0)
    return sandbox.run_checked(
        program, CHECK, ["call_answer"], data=tests, call_s=timeout_s, timeout_s=limit_s, memory_mb=memory_mb
    )


def grade_script(
    sandbox: Sandbox, answer: str, tests: list[list[str]], timeout_s: float, total_s: float, memory_mb: int
) -> Outcome:
    program, seconds = SCRIPT.format(prelude=PRELUDE, answer=answer), 0.0
    for number, (given, expected) in enumerate(tests, start=1):
        if seconds >= total_s:
            reason = f"test {number}: the tests before it took all of the {total_s} s"
            return Outcome(passed=False, reason=reason, seconds=seconds)
        outcome = sandbox.run_script(
            program,
            given.encode("utf-8", "surrogatepass"),
            timeout_s=min(timeout_s, total_s - seconds),
            memory_mb=memory_mb,
            max_output_bytes=max(MIN_OUTPUT_BYTES, 2 * len(expected)),
        )
        seconds += outcome.seconds
        failure = difference(outcome.output.decode("utf-8", "replace"), expected) if outcome.passed else outcome.reason
        if failure is not None:
            return Outcome(passed=False, reason=f"test {number}: {failure}", seconds=seconds)
    return Outcome(passed=True, reason="passed", seconds=seconds)


def difference(printed: str, expected: str) -> str | None:
    """What `printed` has wrong, in a line; None when it is right. `expected` is trusted, `printed` is not."""
    printed, expected = printed.strip(), expected.strip()
    num_lines, num_wanted = printed.count("\n") + 1, expected.count("\n") + 1
    if num_lines != num_wanted:  # counted first: a list of millions of lines would take a hundred times their bytes
        return f"printed {num_lines} lines, not {num_wanted}"
    for number, (line, right) in enumerate(zip(printed.split("\n"), expected.split("\n"), strict=True), start=1):
        line, right = line.strip(), right.strip()
        if line != right and not same_numbers(line, right):
            return f"line {number} is {short(line)}, not {short(right)}"
    return None


def same_numbers(line: str, right: str) -> bool:
    wanted = right.split()
    words = line.split(maxsplit=len(wanted))  # one more than wanted at most, for the same reason
    try:
        # Decimal takes time linear in the digits, and compares numbers of unlike size by their exponents.
        return len(words) == len(wanted) and all(Decimal(a) == Decimal(b) for a, b in zip(words, wanted, strict=True))
    except InvalidOperation:
        return False


def short(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}..."
