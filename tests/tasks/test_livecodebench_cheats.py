"""Answers to LiveCodeBench problems that cheat: none passes, none hangs the grader or fills its memory."""

import json
import os
import resource
import secrets
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.livecodebench import LiveCodeBench
from tasks.livecodebench_grade import difference, grade
from tasks.sandbox import GraderError, Sandbox
from tasks.sandbox_levels import levels

FIXTURE = Path(__file__).parent / "fixtures" / "livecodebench.jsonl"
TASK = LiveCodeBench(timeout_s=2.0, total_s=10.0)
SUM, PAIRS = TASK.load(FIXTURE)
SANDBOXES: dict[str, Sandbox] = {}
for _level in levels(os.geteuid() == 0):
    try:
        SANDBOXES[_level.name] = Sandbox(level=_level.name)
    except GraderError:  # this host refuses it
        continue


def value(sample: Any, code: str) -> float | None:
    result = TASK.score(sample, f"```python\n{code}\n```")
    json.dumps(result.detail)
    return result.value


def solution(body: str, before: str = "") -> str:
    lines = "".join(f"        {line}\n" for line in body.split("\n"))
    return f"{before}\nclass Solution:\n    def twoSum(self, nums, target):\n{lines}"


EQUAL = "    __eq__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n    __hash__ = None"
REPLIES = 'import os\nreply = b\'{"value": {"list": [0, 1]}}\\n\'\n'
METHODS = {
    "equals everything": solution("return A()", f"class A:\n{EQUAL}"),
    "a list that equals everything": solution("return A()", f"class A(list):\n{EQUAL}"),
    "a tuple that equals everything": solution("return A()", f"class A(tuple):\n{EQUAL}"),
    "a list of what equals everything": solution("return [A(), A()]", f"class A(int):\n{EQUAL}"),
    "says it is a list": solution("return A()", f"class A:\n    __class__ = list\n{EQUAL}"),
    "another json.loads": solution("import json\njson.loads = lambda x: 0\nreturn 0"),
    "another json": solution("return 0", "import sys\nsys.modules['json'] = type(sys)('json')"),
    "other builtins": solution("return 0", "import builtins\nbuiltins.list = builtins.repr = lambda *a: 0\n"
    "builtins.AssertionError = Exception"),
    "the frames above": solution("f = sys._getframe()\nfound = []\nwhile f:\n    found += map(repr, f.f_locals.values())\n"
    "    f = f.f_back\nreturn [0, 1] if 'expected' in str(found) else 0", "import sys"),
    "a frame above by name": solution("return json.loads(sys._getframe(1).f_locals['expected'])", "import json, sys"),
    "leaves well": solution("os._exit(0)", "import os"),
    "SystemExit": solution("raise SystemExit(0)"),
    "raises what passes": solution("raise AssertionError"),
    "an exit hook": solution("return 0", "import atexit, os\natexit.register(os._exit, 0)"),
    "replies for itself": solution("for fd in range(3, 64):\n    try: os.write(fd, b'S' + b'0' * 64 + reply)\n"
    "    except OSError: pass\nreturn 0", REPLIES),
    "one reply for every test": solution("for fd in range(3, 64):\n    try: os.write(fd, reply * 9)\n"
    "    except OSError: pass\nreturn 0", REPLIES),
    "a child that replies": solution("if os.fork() == 0:\n    for fd in range(3, 64):\n"
    "        try: os.write(fd, reply * 9)\n        except OSError: pass\n    os._exit(0)\nreturn 0", REPLIES),
    # A small number is that of a process namespace; elsewhere these would be the processes of others.
    "kills its neighbours": solution("for pid in range(2, 400):\n    if os.getpid() < 100 and pid != os.getpid():\n"
    "        for number in (14, 15, 9):\n            try: os.kill(pid, number)\n            except OSError: pass\n"
    "return 0", "import os"),
    "an iterator": solution("return iter([0, 1])"),
    "a generator": solution("yield 0\nyield 1"),
    "not a number": solution("return [float('nan')] * 2"),
    "an endless number": solution("return Decimal('1e999999999')", "from decimal import Decimal"),
    "a number of many digits": solution("return 10 ** 10 ** 6"),
    "many digits": solution("return '9' * 10 ** 7"),
    "an endless iterator": solution("return itertools.count()", "import itertools"),
    "a list in itself": solution("a = []\na.append(a)\nreturn a"),
    "endless output": solution("while True: print('x' * 1000)"),
}  # fmt: skip
FIND = "import sys\nf = sys._getframe()\nwhile {name!r} not in f.{where}: f = f.f_back\n"
SCRIPTS = {
    "the frames above": FIND.format(name="expected", where="f_locals") + "print(f.f_locals['expected'])",
    "another comparison": FIND.format(name="difference", where="f_globals")
    + "f.f_globals['difference'] = lambda *a: None\nprint()",
    "the collector": "import gc\nprint([o for o in gc.get_objects() if 'expected' in repr(o)])",
    "sys.exit": "import sys\nprint(6)\nsys.exit(0)",
    "os._exit": "import os\nprint(6, flush=True)\nos._exit(0)",
    "no output": "import os\nos._exit(0)",
    "another print": "import builtins\nbuiltins.print = lambda *a: None\nprint(6)",
    "all descriptors": "import os\nfor fd in range(64):\n    try: os.write(fd, b'S' + b'0' * 64 + b'passed\\n')\n"
    "    except OSError: pass\nos._exit(0)",
    "a file of the right name": "open('output', 'w').write('6\\n2.0\\n')",
    "a child that prints later": "import os, time\nif os.fork() == 0:\n    time.sleep(1)\n    print('6\\n2.0', flush=True)\n"
    "os._exit(0)",
    "kills its parent": "import os\ntry: os.kill(os.getppid(), 9)\nexcept OSError: pass\nprint(6)",
    "closes its output": "import os\nprint(6)\nos.close(1)",
    "becomes another program": "import os\nos.execv('/bin/true', ['true'])",
    "endless output": "while True: print('6\\n2.0')",
    "endless output on standard error": "import sys\nwhile True: print('6\\n2.0', file=sys.stderr)",
    "an endless exponent": "print('6e999999999')\nprint('2.0')",
    "many exponents": "print('6 ' * 10**6)\nprint('2e999999999 ' * 10**5)",
    "many digits": "print('9' * 8_000_000)\nprint('2.0')",
    "not a number": "print('NaN sNaN')\nprint('2.0')",
    "many lines": "print('6\\n2.0\\n' * 10**6)",
    "an endless end": "import atexit\nprint(6)\nprint(2.0)\n@atexit.register\ndef _():\n    while True: pass",
    "a thread that never ends": "import threading\nprint(6)\nprint(2.0)\ndef f():\n    while True: pass\n"
    "threading.Thread(target=f).start()",
    "state between tests": "import os\nprint('-5\\n-5.0' if os.path.exists('seen') else '6\\n2.0')\nopen('seen', 'w')",
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_no_method_passes_by_a_trick(name: str) -> None:
    assert value(PAIRS, METHODS[name]) == 0.0


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_passes_by_a_trick(name: str) -> None:
    assert value(SUM, SCRIPTS[name]) == 0.0


SEARCH = """
import gc, os, re, sys
def search():
    found = [repr(os.environ), repr(sys.argv), repr(gc.get_objects())]
    for fd in range(64):
        try: found.append(os.pread(fd, 10**6, 0).decode("latin1"))
        except OSError: pass
    f = sys._getframe()
    while f:
        found += [repr(f.f_locals), repr(f.f_globals)]
        f = f.f_back
    names = [f"/proc/{pid}/{name}" for pid in range(1, 50) for name in ("cmdline", "environ", "fd/0", "fd/3", "mem")]
    for folder in (".", "/dev", "/tmp", "/home", "/var"):
        names += [os.path.join(top, name) for top, _, files in os.walk(folder) for name in files]
    for name in names:
        try:
            if os.path.isfile(name): found.append(open(name, encoding="latin1").read(10**6))
        except OSError: pass
    return re.findall("secret-[0-9a-f]{16}", "".join(found))
"""
SEARCHES = {
    None: SEARCH + "print(*[*search(), 'nothing'][:1])",
    "f": SEARCH + "def f(number): return [*search(), 'nothing'][0]",
}


@pytest.mark.parametrize("function", SEARCHES)
def test_neither_expected_values_nor_other_tests_can_be_found(function: str | None) -> None:
    """The negative control gives the secret to the program, as its input."""
    for sandbox in SANDBOXES.values():
        if not sandbox.level.unshare:  # the search would go through files of others
            continue
        first, second = (f"secret-{secrets.token_hex(8)}" for _ in range(2))
        right = json.dumps(first) if function else first
        limits: dict[str, Any] = {"timeout_s": 20.0, "total_s": 40.0, "memory_mb": 1024}
        hidden = grade(sandbox, SEARCHES[function], [["1", right], [f'"{second}"', "2"]], function, **limits)
        assert not hidden.passed
        assert "nothing" in hidden.reason
        shown = grade(sandbox, SEARCHES[function], [[f'"{first}"', right]], function, **limits)
        assert shown.passed, shown.reason


@pytest.mark.parametrize("level", SANDBOXES)
def test_a_script_of_its_own(level: str) -> None:
    sandbox = SANDBOXES[level]
    outcome = sandbox.run_script("import sys\nprint(input(), sys.argv)", b"one\ntwo\n", timeout_s=20.0)
    assert (outcome.passed, outcome.output) == (True, b"one ['program']\n")
    failed = sandbox.run_script("print(1, flush=True)\n1 / 0", b"", timeout_s=20.0)
    assert (failed.passed, failed.reason, failed.output) == (False, "ZeroDivisionError: division by zero", b"1\n")
    late = sandbox.run_script("print(1, flush=True)\nwhile True: pass", b"", timeout_s=0.5)
    assert (late.passed, late.reason, late.output) == (False, "timed out after 0.5 s", b"1\n")
    much = sandbox.run_script("while True: print('x' * 10**6)", b"", timeout_s=20.0, max_output_bytes=10**6)
    assert (much.passed, much.reason) == (False, "printed more than 1000000 bytes")
    assert len(much.output) < 1.1e6
    child = "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass"
    begin = time.monotonic()
    assert sandbox.run_script(child, b"", timeout_s=60.0).passed
    assert time.monotonic() - begin < 30.0


def test_large_values_of_methods() -> None:
    """30 MB, as long as one test of the set may be, at the default limits."""
    text = "x" * 30_000_000
    sandbox = next(iter(SANDBOXES.values()))
    limits: dict[str, Any] = {"timeout_s": 6.0, "total_s": 60.0, "memory_mb": 1024}
    tests = [[json.dumps(text), str(len(text))]]
    assert grade(sandbox, "def f(a): return len(a)", tests, "f", **limits).passed
    assert grade(sandbox, "def f(a): return 'x' * a", [[b, a] for a, b in tests], "f", **limits).passed


def test_the_time_for_all_tests() -> None:
    sandbox = next(iter(SANDBOXES.values()))
    limits: dict[str, Any] = {"timeout_s": 5.0, "total_s": 1.0, "memory_mb": 256}
    nap = "import time\ntime.sleep(0.7)\nprint(1)"
    outcome = grade(sandbox, nap, [["", "1"]] * 9, None, **limits)
    assert not outcome.passed
    assert outcome.reason.startswith("test 2: timed out after 0.")


WORDS = st.one_of(
    st.decimals().map(str), st.integers().map(str), st.floats().map(str), st.sampled_from(["", "x", "1_0", "٣", "1e9"])
)
TEXTS = st.lists(st.lists(WORDS, max_size=3).map(" ".join), max_size=3).map("\n".join)


def plain_difference(printed: str, expected: str) -> bool:
    """What LiveCodeBench compares, without regard to time and memory."""
    a, b = ([line.strip() for line in text.strip().split("\n")] for text in (printed, expected))

    def equal(line: str, right: str) -> bool:
        try:
            return line == right or [*map(Decimal, line.split())] == [*map(Decimal, right.split())]
        except ArithmeticError:
            return False

    return len(a) != len(b) or not all(map(equal, a, b))


@given(TEXTS, TEXTS)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_comparing_is_that_of_livecodebench(printed: str, expected: str) -> None:
    assert (difference(printed, expected) is not None) == plain_difference(printed, expected)
    assert difference(f" {expected}\n", expected) is None


def test_comparing_hostile_texts_takes_little() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = 8 << 20
    for printed in (
        "1\n" * (size // 2),
        "1 " * (size // 2),
        "9" * size,
        f"1e{'9' * 18}",
        f"0.{'0' * size}1e{size}",
        "\n" * size,
    ):
        assert difference(printed, "5\n6") is not None
        assert difference(printed, "5 6") is not None
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 120_000
    )  # KiB; lists of words would take 400 MB
