"""Decides whether two maths answers are the same value, within a time limit that always holds."""

import atexit
import json
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

MAX_ANSWER_CHARS = 500  # longer is prose or a loop, not a result


@dataclass(kw_only=True)
class MathsGrader:
    """One worker process, started at the first need, replaced when it dies. Safe to share between threads."""

    limit_s: float
    _process: subprocess.Popen[str] | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def compare(self, gold: str, answer: str) -> tuple[bool, str]:
        """(equal, why). Ends within `limit_s` of wall time after the worker is up; past it the answer is wrong."""
        if answer.strip() == gold.strip():
            return True, "same text"
        if len(answer) > MAX_ANSWER_CHARS:
            return False, f"longer than {MAX_ANSWER_CHARS} characters"
        with self._lock:
            reply = self._ask(json.dumps([gold, answer, self.limit_s]))
        return bool(reply["equal"]), str(reply["reason"])

    def _ask(self, request: str) -> dict[str, Any]:
        process = self._worker()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except (BrokenPipeError, ConnectionError):
            line = ""
        if line:
            return json.loads(line)
        self._stop()
        return {"equal": False, "reason": f"grading took more than {self.limit_s} s or too much memory"}

    def _worker(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        # -P: the folder of the script must not come before the libraries on the path.
        command = [sys.executable, "-P", str(Path(__file__).with_name("maths_worker.py"))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            code = self._process.wait()
            raise RuntimeError(f"the maths grader did not start (exit code {code}); is math-verify installed?")
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            with self._process:
                pass
            self._process = None


@cache
def shared_grader(limit_s: float) -> MathsGrader:
    grader = MathsGrader(limit_s=limit_s)
    atexit.register(grader._stop)
    return grader
