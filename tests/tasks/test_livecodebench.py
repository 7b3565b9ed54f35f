"""LiveCodeBench: both kinds of test, every way to read and write, and packed tests that cannot run code here."""

import base64
import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from tasks.base import Score
from tasks.livecodebench import LiveCodeBench, unpack

FIXTURE = Path(__file__).parent / "fixtures" / "livecodebench.jsonl"
ROWS = [json.loads(line) for line in FIXTURE.read_text().splitlines()]
TASK = LiveCodeBench()
SUM, PAIRS = TASK.load(FIXTURE)


def fenced(code: str) -> str:
    return f"The program:\n\n```python\n{code}\n```\n"


def score(sample: Any, completion: str, task: LiveCodeBench = TASK) -> Score:
    result = task.score(sample, completion)
    json.dumps(result.detail)
    return result


def test_rows() -> None:
    assert [sample.id for sample in (SUM, PAIRS)] == ["livecodebench/own1_a", "livecodebench/3001"]
    assert "standard input" in SUM.messages[0]["content"]
    assert "class Solution:" in PAIRS.messages[0]["content"]
    assert "-5.0" not in SUM.messages[0]["content"]  # private tests are not shown
    json.dumps([SUM.reference, PAIRS.reference])


END = "print(total)\nprint(total / n)"
READS = {
    "input": f"n = int(input())\ntotal = sum(map(int, input().split()))\n{END}",
    "a loop over sys.stdin": "import sys\nn, values = [line.split() for line in sys.stdin]\n"
    f"n, total = int(n[0]), sum(map(int, values))\n{END}",
    "sys.stdin.read": f"import sys\nn, *values = map(int, sys.stdin.read().split())\ntotal = sum(values)\n{END}",
    "sys.stdin.buffer": "import sys\ninput = sys.stdin.buffer.readline\nn = int(input())\n"
    f"total = sum(map(int, input().split()))\n{END}",
    "descriptor 0": f"n, *values = map(int, open(0).read().split())\ntotal = sum(values)\n{END}",
    "os.read": f"import os\nn, *values = map(int, os.read(0, 10**6).split())\ntotal = sum(values)\n{END}",
    "a main function and its guard": "def main():\n    n = int(input())\n    total = sum(map(int, input().split()))\n"
    "    print(total)\n    print(total / n)\n\nif __name__ == '__main__':\n    main()",
    "sys.stdout.write": "import sys\nn = int(input())\ntotal = sum(map(int, input().split()))\n"
    "sys.stdout.write(f'{total}\\n{total / n}\\n')",
    "os.write": "import os\nn = int(input())\ntotal = sum(map(int, input().split()))\n"
    "os.write(1, f'{total}\\n{total / n}\\n'.encode())",
    "an early exit with a code": "import sys\nn = int(input())\ntotal = sum(map(int, input().split()))\n"
    f"{END}\nsys.exit(1)",
    "an early exit with a word": "import sys\nn = int(input())\ntotal = sum(map(int, input().split()))\n"
    f"{END}\nsys.exit('done')",
    "a leap to the end": "import os\nn = int(input())\ntotal = sum(map(int, input().split()))\n"
    "print(total)\nprint(total / n, flush=True)\nos._exit(0)",
    "the size of the input": "import os\nn, *values = map(int, os.read(0, os.fstat(0).st_size).split())\n"
    f"total = sum(values)\n{END}",
    "an exit hook": "import atexit\nn = int(input())\ntotal = sum(map(int, input().split()))\n"
    "atexit.register(lambda: print(total / n))\nprint(total)",
    "words on standard error": f"import sys\nn = int(input())\nprint('n is', n, file=sys.stderr)\n"
    f"total = sum(map(int, input().split()))\n{END}",
    "deep recursion": "n = int(input())\nvalues = list(map(int, input().split()))\n"
    "def add(k): return values[k] + add(k + 1) if k < n else 0\ndef sink(k): return sink(k - 1) if k else 0\n"
    f"sink(40_000)\ntotal = add(0)\n{END}",
    "an early exit": f"n = int(input())\ntotal = sum(map(int, input().split()))\n{END}\nexit()",
    "a thread that nobody waits for": "import sys, threading\nsys.setrecursionlimit(10**6)\n"
    "threading.stack_size(2**26)\ndef main():\n    n = int(input())\n    total = sum(map(int, input().split()))\n"
    "    print(total)\n    print(total / n)\nthreading.Thread(target=main).start()",
    "other spaces and decimals": "n = int(input())\ntotal = sum(map(int, input().split()))\n"
    "print(f'  {total}  ')\nprint(f'{total / n:.3f}')\nprint()",
    "names nobody imported": "n = int(input())\ntotal = reduce(lambda a, b: a + b, map(int, input().split()))\n" + END,
}


@pytest.mark.parametrize("way", READS)
def test_every_way_to_read_and_write(way: str) -> None:
    result = score(SUM, fenced(READS[way]))
    assert (result.value, result.detail["reason"], result.detail["tests"]) == (1.0, "passed", 3)


def test_an_input_larger_than_any_file_may_be(tmp_path: Path) -> None:
    length = 9 << 20  # the sandbox allows files of 8 MiB
    tests = [{"input": "x" * length + "\n", "output": str(length), "testtype": "stdin"}]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({**ROWS[0], "public_test_cases": "[]", "private_test_cases": json.dumps(tests)}) + "\n")
    result = score(TASK.load(path)[0], fenced("print(len(input()))"))
    assert (result.value, result.detail["reason"]) == (1.0, "passed")


METHOD = (
    "class Solution:\n    def twoSum(self, nums: List[int], target: int) -> List[int]:\n        seen = {}\n"
    "        for place, value in enumerate(nums):\n            if target - value in seen:\n"
    "                return [seen[target - value], place]\n            seen[value] = place\n"
)


@pytest.mark.parametrize(
    "code",
    [
        METHOD,
        METHOD.replace("[seen[target - value], place]", "(seen[target - value], place)"),  # a tuple is a list
        METHOD + "\n\nprint(Solution().twoSum([1, 2], 3))\n",
        "def helper(a, b):\n    return [a, b]\n\n"
        + METHOD.replace("[seen[target - value], place]", "helper(seen[target - value], place)"),
    ],
)
def test_methods(code: str) -> None:
    result = score(PAIRS, fenced(code))
    assert (result.value, result.detail["reason"]) == (1.0, "passed")


@pytest.mark.parametrize(
    ("sample", "code", "reason"),
    [
        (SUM, "n = int(input())\nprint(6)\nprint(2.0)", "test 2: line 1 is '6', not '-5'"),
        (SUM, "print(6)", "test 1: printed 1 lines, not 2"),
        (SUM, "print('six')\nprint('two')", "test 1: line 1 is 'six', not '6'"),
        (SUM, "print(1 / 0)", "ZeroDivisionError"),
        (SUM, "import os\nprint(6)\nprint(2.0)\nos._exit(0)", "test 1: printed 1 lines, not 2"),  # not yet flushed
        (SUM, "import os\nprint(6)\nprint(2.0, flush=True)\nos._exit(3)", "test 1: ended early with exit code 3"),
        (SUM, "import os\nprint(6)\nprint(2.0, flush=True)\nos.abort()", "test 1: killed by SIGABRT"),
        (SUM, "print(6)\nprint(2.0, flush=True)\nraise KeyError('x')", "test 1: KeyError: 'x'"),
        (SUM, "while True: pass", "test 1: timed out after 0.5 s"),
        (SUM, "try:\n    while input: len('')\nexcept BaseException:\n    while True: pass", "timed out after 0.5 s"),
        (PAIRS, METHOD.replace("seen = {}", "\n        while True: pass"), "test 1: took more than 0.5 s"),
        (PAIRS, "import time\nwhile True: pass\n" + METHOD, "test 1: took more than 0.5 s"),
        (SUM, "import numpy\nprint(6)", "ModuleNotFoundError"),
        (PAIRS, METHOD.replace("twoSum", "pairs"), "AttributeError"),
        (PAIRS, METHOD.replace("[seen[target - value], place]", "[0, 1]"), "test 2: returned [0, 1], not [1, 2]"),
        (PAIRS, METHOD.replace("[seen[target - value], place]", "'01'"), "test 1: returned '01', not [0, 1]"),
    ],
)
def test_wrong_answers(sample: Any, code: str, reason: str) -> None:
    result = score(sample, fenced(code), LiveCodeBench(timeout_s=0.5, total_s=20.0))
    assert result.value == 0.0
    assert reason in result.detail["reason"]


@pytest.mark.parametrize(
    ("sample", "completion", "reason"),
    [(SUM, "", "no code"), (SUM, "<think>print(6)", "no answer, truncated"), (PAIRS, "It cannot be done.", "no code")],
)
def test_no_answer(sample: Any, completion: str, reason: str) -> None:
    result = score(sample, completion)
    assert result.value == 0.0
    assert reason in result.detail["reason"]


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("made-by-a-pickle",)


def test_packed_tests() -> None:
    tests = [{"input": "1\n", "output": "2", "testtype": "stdin"}]
    assert unpack(json.dumps(tests)) == [["1\n", "2"]]
    assert unpack(packed(pickle.dumps(json.dumps(tests)))) == [["1\n", "2"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (packed(pickle.dumps(Evil())), "names posix.mkdir"),
        (packed(pickle.dumps(json.dumps([{"input": 1, "output": "2"}]))), 'must have "input" and "output"'),
        (packed(pickle.dumps([1])), "not JSON in pickle"),
        (packed(b"no pickle"), "not JSON in pickle"),
        ("AAAA", "not JSON in pickle"),
        ("%%%", "not JSON in pickle"),
        ("[3]", 'must have "input" and "output"'),
        ("[", "Expecting value"),
    ],
)
def test_faulty_tests_are_unscored_and_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        unpack(text)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({**ROWS[0], "private_test_cases": text}) + "\n")
    result = score(TASK.load(path)[0], fenced("print(6)"))
    assert result.value is None
    assert message in result.detail["reason"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"starter_code": None}, r"a\.jsonl:1: field 'starter_code' must be a string"),
        ({"metadata": "{"}, r"a\.jsonl:1: metadata: not valid JSON"),
        ({"metadata": '{"func_name": "f"}'}, r"a\.jsonl:1: a row with starter code needs"),
        ({"starter_code": "class Solution:"}, r"a\.jsonl:1: a row with starter code needs"),
        ({"public_test_cases": "{}"}, r"a\.jsonl:1: public_test_cases: expected a list of tests"),
        ({"public_test_cases": "[{}]"}, r"a\.jsonl:1: public_test_cases: each test must have"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({**ROWS[0], **change}) + "\n")
    with pytest.raises(ValueError, match=message):
        TASK.load(path)
