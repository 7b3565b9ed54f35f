"""Programs graded by a test in another process: values cross, tricks do not."""

import decimal
import fractions
import json
import math
import os
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.check_values import Foreign, decode, encode
from tasks.sandbox import GraderError, Outcome, Sandbox, source_of
from tasks.sandbox_levels import levels

SANDBOXES: dict[str, Sandbox] = {}
for _level in levels(os.geteuid() == 0):
    try:
        SANDBOXES[_level.name] = Sandbox(level=_level.name)
    except GraderError:  # this host refuses it
        continue


@pytest.fixture(params=SANDBOXES)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return SANDBOXES[request.param]


def checked(sandbox: Sandbox, program: str, check: str = "assert f(2) == 5", timeout_s: float = 20.0) -> Outcome:
    return sandbox.run_checked(program, check, ["f"], timeout_s=timeout_s, memory_mb=256)


def test_right_and_wrong(sandbox: Sandbox) -> None:
    assert checked(sandbox, "def f(x): return x + 3").passed
    wrong = checked(sandbox, "def f(x): return x")
    assert (wrong.passed, wrong.reason) == (False, "AssertionError: ")


# What a program may do to the interpreter of its test when both share one; the mark and the check are elsewhere here.
TRICKS = {
    "equals everything": "class A:\n    __eq__ = lambda s, o: True\n    __hash__ = None\ndef f(x): return A()",
    "an int that equals everything": "class A(int):\n    __eq__ = lambda s, o: True\n    __hash__ = int.__hash__\n"
    "def f(x): return A(7)",
    "a list that equals everything": "class A(list):\n    __eq__ = lambda s, o: True\n    __iter__ = lambda s: iter([])\n"
    "def f(x): return A()",
    "patched builtins": "import builtins\nbuiltins.AssertionError = Exception\n"
    "builtins.abs = lambda x: 0\ndef f(x): return 1",
    "a test of its own": "def check(c): pass\nf = None",
    "leaves well": "import os\ndef f(x): os._exit(0)",
    "leaves at once": "import os\nos._exit(0)",
    "SystemExit": "import sys\ndef f(x): sys.exit(0)",
    "exits at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): return 1",
    "signals": "import os, signal\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\n"
    "signal.setitimer(signal.ITIMER_REAL, 0.01)\ndef f(x):\n    while True: pass",
    "kills its parent": "import os\ndef f(x):\n    try: os.kill(os.getppid(), 9)\n    except OSError: pass\n    return 1",
    "writes on all descriptors": "import os\ndef f(x):\n    for fd in range(64):\n"
    "        try: os.write(fd, b'S' + b'0' * 64 + b'\\n')\n        except OSError: pass\n    os._exit(0)",
    "replies by itself": "import os, sys\nfd = int(sys.argv[1]) if len(sys.argv) > 2 else 0\n"
    "for fd in range(3, 64):\n    try: os.write(fd, b'{\"value\": null}\\n' * 9)\n    except OSError: pass\n"
    "def f(x): return 1",
    "reads all descriptors": "import os\ndef f(x):\n    for fd in range(64):\n        try:\n            os.lseek(fd, 0, 0)\n"
    "            if b'assert' in os.read(fd, 9999): return 5\n        except OSError: pass\n    return 1",
    "looks for the test in memory": "import gc\nword = ''.join(['== ', '5'])\ndef f(x):\n"
    "    return 5 if any(word in repr(one) for one in gc.get_objects() if type(one) in (tuple, list)) else 1",
    "becomes another program": "import os\ndef f(x): os.execv('/bin/true', ['true'])",
    "a child answers": "import os\ndef f(x):\n    if os.fork():\n        os.wait()\n        return 1\n"
    "    for fd in range(3, 64):\n        try: os.write(fd, b'{\"value\": 1}\\n')\n        except OSError: pass\n"
    "    os._exit(0)",
    "traces": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\ndef f(x): return 1",
    "an audit hook": "import os, sys\nsys.addaudithook(lambda *a: None)\ndef f(x): return 1",
    "says it raised": "def f(x): raise AssertionError",
    "replies rubbish": "import os\ndef f(x):\n    for fd in range(3, 64):\n        try: os.write(fd, b'rubbish\\n')\n"
    "        except OSError: pass\n    return 1",
    "hostile text": "class E(Exception):\n    def __str__(self): raise self\ndef f(x): raise E",
    "hostile repr": "class A:\n    def __repr__(self): raise KeyError\ndef f(x): return A()",
    "cyclic": "def f(x):\n    a = []\n    a.append(a)\n    return a",
    "does not parse": "def f(:",
    "no function": "g = 1",
}  # fmt: skip


@pytest.mark.parametrize("name", TRICKS)
def test_no_trick_passes(sandbox: Sandbox, name: str) -> None:
    outcome = checked(sandbox, TRICKS[name], timeout_s=5.0)
    assert not outcome.passed
    assert outcome.reason


def test_the_tricks_would_pass_in_one_process() -> None:
    """Negative control: some of them do fool a test in the same interpreter."""
    sandbox = next(iter(SANDBOXES.values()))
    for name in ("equals everything", "an int that equals everything"):
        assert sandbox.run_script(TRICKS[name] + "\nassert f(2) == 5", timeout_s=20.0).passed


MEMORY = """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def f(x):
    read = 0
    for pid in range(2, 400):
        if pid == os.getpid(): continue
        if libc.ptrace(16, pid, 0, 0) == 0:  # PTRACE_ATTACH
            read += 1
        try: open(f'/proc/{pid}/mem', 'rb').read(1); read += 1
        except OSError: pass
    return 5 if read else 1
"""


def test_the_memory_of_the_test_is_closed() -> None:
    for sandbox in SANDBOXES.values():
        if sandbox.level.unshare:  # else the numbers are those of the whole machine
            assert not checked(sandbox, MEMORY).passed


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f(x):\n    while True: pass", "timed out after 1.0 s"),
        ("while True: pass", "timed out after 1.0 s"),
        ("def f(x):\n    while True: print('x' * 1000)", "printed more than"),
        ("def f(x): return 'x' * 10**10", "MemoryError"),
        ("import os\ndef f(x):\n    os.close(1)\n    while True: pass", "timed out after 1.0 s"),
    ],
)
def test_limits_hold(sandbox: Sandbox, source: str, reason: str) -> None:
    outcome = checked(sandbox, source, timeout_s=1.0)
    assert not outcome.passed
    assert reason in outcome.reason


def test_errors_arrive_as_they_were(sandbox: Sandbox) -> None:
    program = (
        "def f(x):\n    if x == 1: raise ValueError('one')\n    if x == 2: raise type('Own', (Exception,), {})('two')\n"
    )
    check = "try:\n    f(1); assert False\nexcept ValueError as e:\n    assert str(e) == 'one'\n"
    check += "try:\n    f(2); assert False\nexcept RuntimeError as e:\n    assert str(e) == 'Own: two'\n"
    assert checked(sandbox, program, check).passed


def test_state_lives_on_between_calls(sandbox: Sandbox) -> None:
    program = "seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)"
    assert checked(sandbox, program, "assert [f(1), f(x=1), f(1)] == [1, 2, 3]").passed


Point = namedtuple("Point", "x y")
PLAIN = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(allow_nan=False), st.text(max_size=5),
        st.binary(max_size=4), st.complex_numbers(allow_nan=False), st.fractions(), st.decimals(allow_nan=False),
        st.builds(range, st.integers(-9, 9), st.integers(-9, 9)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=8,
)  # fmt: skip


@given(PLAIN)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_plain_values_cross_unchanged(value: Any) -> None:
    crossed = decode(json.loads(json.dumps(encode(value))))
    assert crossed == value
    assert type(crossed) is type(value)


@pytest.mark.parametrize(
    ("value", "crossed"),
    [
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(int, a=1), {"a": 1}),
        (Point(1, 2), (1, 2)),
        ({1, 2}, {1, 2}),
        (frozenset({1}), frozenset({1})),
        (bytearray(b"a"), bytearray(b"a")),
        (True, True),
        pytest.param(10**5000, 10**5000, id="a long number"),
        (-math.inf, -math.inf),
        ("\ud800", "\ud800"),
        (fractions.Fraction(1, 3), fractions.Fraction(1, 3)),
        (decimal.Decimal("1.10"), decimal.Decimal("1.10")),
    ],
)
def test_subclasses_cross_as_their_base(value: Any, crossed: Any) -> None:
    assert decode(encode(value)) == crossed
    assert type(decode(encode(value))) is type(crossed)


def test_iterators_cross_as_iterators_and_others_equal_nothing() -> None:
    assert list(decode(encode(map(str, [1, 2])))) == ["1", "2"]
    assert list(decode(encode({"a": 1}.keys()))) == ["a"]
    for value in (deque([1]), object(), print, Exception("x")):
        foreign = decode(encode(value))
        assert isinstance(foreign, Foreign)
        assert foreign != value
    nan = decode(encode(math.nan))
    assert nan != nan


KINDS = ["int", "float", "list", "set", "dict", "range", "fraction", "bytes", "decimal", "complex", "foreign", "x"]
REPLIES = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KINDS), inner, max_size=2),
    max_leaves=6,
)


@given(REPLIES)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_hostile_replies_are_plain_values_or_errors(reply: Any) -> None:
    try:
        value = decode(reply)
    except Exception:
        return
    assert type(value).__module__ in ("builtins", "fractions", "decimal", "tasks.check_values")


def test_the_runners_are_programs_of_their_own() -> None:
    """Their texts must run without the project on the path."""
    for name in ("check_runner", "serve_runner"):
        text = source_of("check_values.py") + source_of(f"{name}.py").replace('== "__main__"', '== "no"')
        done = subprocess.run([sys.executable, "-I", "-S", "-c", text], capture_output=True)
        assert done.returncode == 0, done.stderr
