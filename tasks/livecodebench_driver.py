"""Runs inside the sandbox, in front of an answer to a LiveCodeBench problem: every test in turn, the first failure ends it.

Not imported: its text becomes part of the program (see `livecodebench.program`). Answers are compared as LiveCodeBench
does: returned values with ==, a tuple counting as a list; printed output line by line without outer blanks, and where
two lines differ as text, word by word as exact decimals. A pipe and a file stand in for standard input and output, so
that an answer may read and write in any way, `sys.stdin.buffer` and descriptor 0 among them.
"""

import decimal
import json
import os
import signal
import sys
import threading

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
"""  # builtins last: math has a pow of its own


class OutOfTime(BaseException):
    """No Exception, so that `except Exception` in an answer does not swallow it."""


def stop(*_):
    raise OutOfTime


def run(problem):
    signal.signal(signal.SIGALRM, stop)
    sys.setrecursionlimit(50_000)
    code = compile(problem["answer"], "answer", "exec")
    for number, (given, expected) in enumerate(problem["tests"], start=1):
        signal.setitimer(signal.ITIMER_REAL, problem["limit_s"])
        try:
            if problem["function"]:
                check_call(code, problem["function"], given, expected)
            else:
                check_output(code, given, expected)
        except OutOfTime:
            raise AssertionError(f"test {number}: took more than {problem['limit_s']} s") from None
        except AssertionError as error:
            raise AssertionError(f"test {number}: {error}") from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def namespace(name):
    made = {"__name__": name, "exit": sys.exit, "quit": sys.exit}  # the sandbox leaves out the module that has these
    exec(PRELUDE, made)
    return made


def check_call(code, function, given, expected):
    """Arguments are a JSON value a line, the expected value is JSON."""
    module = namespace("answer")
    exec(code, module)
    owner = module["Solution"]() if "Solution" in module else None
    method = getattr(owner, function) if owner is not None else module[function]
    got = method(*[json.loads(line) for line in given.split("\n")])
    got = list(got) if isinstance(got, tuple) else got
    wanted = json.loads(expected)
    assert got == wanted, f"returned {short(got)}, not {short(wanted)}"


def check_output(code, given, expected):
    inner, outer = os.pipe()
    stand_in(inner, 0)
    threading.Thread(target=feed, args=(outer, given.encode()), daemon=True).start()
    stand_in(os.open("output", os.O_RDWR | os.O_CREAT | os.O_TRUNC), 1)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    try:
        exec(code, namespace("__main__"))
        for thread in threading.enumerate():  # answers recurse in a thread with a larger stack, and do not wait for it
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
    except SystemExit:
        pass  # a usual way to end early
    sys.stdout.flush()
    with open("output", errors="replace") as file:
        compare_lines(file.read(), expected)


def feed(descriptor, data):
    try:
        with os.fdopen(descriptor, "wb") as pipe:
            pipe.write(data)
    except BrokenPipeError:
        pass  # the answer did not read all of it


def stand_in(descriptor, place):
    """Make `descriptor` the one at `place`, which the answer before may have closed."""
    if descriptor != place:
        os.dup2(descriptor, place)
        os.close(descriptor)


def compare_lines(printed, expected):
    got, wanted = ([line.strip() for line in text.strip().split("\n")] for text in (printed, expected))
    assert len(got) == len(wanted), f"printed {len(got)} lines, not {len(wanted)}"
    for number, (line, right) in enumerate(zip(got, wanted, strict=True), start=1):
        assert line == right or same_numbers(line, right), f"line {number} is {short(line)}, not {short(right)}"


def same_numbers(line, right):
    try:
        return [decimal.Decimal(word) for word in line.split()] == [decimal.Decimal(word) for word in right.split()]
    except decimal.InvalidOperation:
        return False


def short(value):
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
