"""Runs untrusted Python: a script, or functions that a trusted check calls from a process of its own.

Three layers, strongest first; `Sandbox()` probes which of them this host allows, once, by running a script in it:

1. namespaces: `unshare` gives own mounts, processes, network (none) and IPC; `jail.py` makes a private read-only root
   and, where we are root, an unprivileged user; when its first process ends, the kernel kills all others.
2. the same inside a user namespace, for ordinary users (and for root without the right to unshare directly).
3. a fallback where `unshare` is refused or missing: resource limits, a temporary folder and a supervisor that kills
   all descendants. `Sandbox.isolation` says what it lacks, and scores record that.

In all of them a program shares its process with nothing that decides whether it passes. Not covered: faults of the kernel.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tasks.sandbox_levels import levels
from tasks.sandbox_watch import START_LIMIT_S, Ending, Limits, explain_code, watch


class GraderError(RuntimeError):
    """The sandbox itself did not work, so nothing is known of the program: no score, not a score of 0."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`passed`: the check ran to its end. `seconds` of wall time, start-up excluded."""

    passed: bool
    reason: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ScriptOutcome(Outcome):
    """`passed`: ran to its end or called `sys.exit`, whatever it printed. `output` is what it printed, cut at a limit."""

    output: bytes


class Sandbox:
    """One probed way to run programs. Safe to share between threads; every run has its own processes and folder."""

    def __init__(self, *, level: str | None = None, allow_weak: bool = False) -> None:
        """Take the strongest level that works here, or the one named `level`. GraderError when none works.

        A weak level (see `Level`) counts only with `allow_weak`, or by its name.
        """
        failures = []
        for candidate in levels(os.geteuid() == 0):
            if level not in (None, candidate.name) or (candidate.unshare and shutil.which("unshare") is None):
                continue
            if candidate.is_weak and level is None and not allow_weak:
                failures.append(f"{candidate.name}: too weak for root")
                continue
            self.level = candidate
            try:
                outcome = self.run_script("import math", timeout_s=10.0)
            except GraderError as error:
                failures.append(f"{candidate.name}: {error}")
                continue
            if outcome.passed:
                return
            failures.append(f"{candidate.name}: {outcome.reason}")
        raise GraderError(f"no way to run programs in a sandbox works on this host: {failures or level}")

    @property
    def isolation(self) -> dict[str, str | list[str]]:
        """JSON-able: the level's name, what it `holds` and what it `lacks`."""
        return {"level": self.level.name, "holds": list(self.level.holds), "lacks": list(self.level.lacks)}

    def run_checked(
        self,
        program: str,
        check: str,
        names: list[str],
        *,
        data: Any = None,
        call_s: float | None = None,
        timeout_s: float,
        memory_mb: int = 1024,
        max_output_bytes: int = 1 << 20,
    ) -> Outcome:
        """Whether `check`, which calls the functions `names` of `program`, runs to its end.

        The two run in two processes and exchange plain values (`check_values.py`), so nothing in `program` can see or
        change the check: objects that equal everything, replaced built-ins and searches for the pass mark gain nothing.
        `check` must be trusted; it finds `data` (JSON-able) under that name, and a call that takes longer than `call_s` of
        wall time ends it. Arguments are copies: a change that a function makes to them stays in its process.

        `timeout_s` of wall time after the start; `memory_mb` (2**20 bytes) limits the address space of each of at most 8
        processes. What `program` prints is dropped; more than `max_output_bytes` ends it. Never raises for what it does.
        Raises GraderError when the sandbox does not start, twice.
        """
        limits = Limits(timeout_s=timeout_s, memory_mb=memory_mb, max_output_bytes=max_output_bytes)
        mark = secrets.token_hex(32)
        content = json.dumps([mark, program, check, names, data, call_s])
        ending = self._run("serve_runner.py", content.encode(), None, limits)
        passed = ending.broken is None and ending.report == b"S" + mark.encode() and ending.code == 0
        reason = "passed" if passed else ending.broken or explain(ending, mark.encode())
        return Outcome(passed=passed, reason=reason, seconds=ending.seconds)

    def run_script(
        self,
        program: str,
        stdin: bytes = b"",
        *,
        timeout_s: float,
        memory_mb: int = 1024,
        max_output_bytes: int = 8 << 20,
    ) -> ScriptOutcome:
        """Run `program` as a script of its own with `stdin` as a file on its standard input; returns what it printed.

        It sees these two things and nothing else, so a comparison of `output` with an expected one is out of its reach.
        Limits and errors as of `run_checked`; what it prints on standard error counts among `max_output_bytes` too.
        """
        limits = Limits(timeout_s=timeout_s, memory_mb=memory_mb, max_output_bytes=max_output_bytes)
        ending = self._run("script_runner.py", stdin, program.encode("utf-8", "surrogatepass"), limits)
        passed = ending.broken is None and ending.code == 0
        reason = "passed" if passed else ending.broken
        if reason is None:
            reason = (ending.last_error() if ending.code == 1 else "") or explain_code(ending.code)
        return ScriptOutcome(passed=passed, reason=reason, seconds=ending.seconds, output=ending.output)

    def _run(self, runner: str, stdin: bytes, source: bytes | None, limits: Limits) -> Ending:
        try:
            return self._run_once(runner, stdin, source, limits)
        except GraderError:  # a host short of processes or memory for a moment
            return self._run_once(runner, stdin, source, limits)

    def _run_once(self, runner: str, stdin: bytes, source: bytes | None, limits: Limits) -> Ending:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="program-", ignore_cleanup_errors=True))
            report_read, report_write = os.pipe()
            os.set_blocking(report_read, False)
            report = stack.enter_context(open(report_read, "rb", buffering=0))
            with ExitStack() as ours:  # in the fallback the program could find these through our descriptors
                ours.callback(os.close, report_write)
                files = []
                for data in [stdin] if source is None else [stdin, source]:
                    files.append(ours.enter_context(tempfile.TemporaryFile()))  # it has no name
                    files[-1].write(data)
                    files[-1].seek(0)
                passed_on = [report_write, *(file.fileno() for file in files[1:])]
                process = subprocess.Popen(
                    self._command(runner, folder, passed_on, limits),
                    stdin=files[0],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=passed_on,
                    cwd="/",
                    env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"},
                    start_new_session=True,
                )
            with process:
                ending = watch(process, report.fileno(), limits, self._end)
        if not ending.report:
            raise GraderError(f"the sandbox did not start: {ending.last_error() or f'exit code {ending.code}'}"[:300])
        return ending

    def _command(self, runner: str, folder: str, descriptors: list[int], limits: Limits) -> list[str]:
        python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
        user = 50_000 + secrets.randbelow(10_000)
        is_checked = runner == "serve_runner.py"
        values = source_of("check_values.py") if is_checked else ""
        spec = {
            "private_root": bool(self.level.unshare),
            # A random user: the process limit counts per user, and parallel runs must not share it.
            "uid": user if self.level.drop_user else None,
            "test_uid": user + 10_000 if self.level.drop_user else None,
            "folder": folder,
            "visible": sorted({os.path.realpath(sys.base_prefix), os.path.realpath(sys.base_exec_prefix)}),
            "python": python,
            "runner": values + source_of(runner),
            "test_runner": values + source_of("check_runner.py") if is_checked else None,
            "descriptors": descriptors,
            "memory_bytes": limits.memory_mb << 20,
            "cpu_s": int(limits.timeout_s) + 2,
            "file_bytes": 8 << 20,
            "open_files": 64,
            "processes": 8,
            "deadline_s": int(limits.timeout_s + START_LIMIT_S) + 2,
        }
        return [*self.level.unshare, python, "-I", "-S", "-c", source_of("jail.py"), json.dumps(spec)]

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None and not self.level.unshare:
            process.send_signal(signal.SIGALRM)  # the supervisor knows the descendants; killed, it would lose them
            with suppress(subprocess.TimeoutExpired):
                process.wait(5.0)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def explain(ending: Ending, mark: bytes) -> str:
    """Why a program did not pass, in a line. The mark never appears in it."""
    report = ending.report
    if report.startswith(b"SE"):
        return report[2:].decode("utf-8", "replace").splitlines()[0][:300] if report[2:].strip() else "failed"
    if mark in report:
        return "wrote to the descriptor of the report"
    return explain_code(ending.code)


@cache
def source_of(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


@cache
def default_sandbox(allow_weak: bool = False) -> Sandbox:
    return Sandbox(allow_weak=allow_weak)
