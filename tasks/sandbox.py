"""Runs untrusted Python and says whether it ran to its end.

Three layers, strongest first; `Sandbox()` probes which of them this host allows, once, by running a program in it:

1. namespaces: `unshare` gives own mounts, processes, network (none) and IPC; `jail.py` makes a private read-only root
   and, where we are root, an unprivileged user; when its first process ends, the kernel kills all others.
2. the same inside a user namespace, for ordinary users (and for root without the right to unshare directly).
3. a fallback where `unshare` is refused or missing: resource limits, a temporary folder and a supervisor that kills
   all descendants. `Sandbox.isolation` says what it lacks, and scores record that.

Not covered: faults of the kernel, and a program that attacks the check from inside the same interpreter with means
other than those `jail_runner.py` closes (a value whose `==` is always true passes any assertion).
"""

import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tasks.sandbox_levels import levels

START_LIMIT_S = 30.0  # for namespaces and interpreters to start on a busy host; not counted as the program's time
MAX_REASON_BYTES = 4096


class GraderError(RuntimeError):
    """The sandbox itself did not work, so nothing is known of the program: no score, not a score of 0."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`passed` only when the source ran to its end. `seconds` of wall time, start-up excluded."""

    passed: bool
    reason: str
    seconds: float


class Sandbox:
    """One probed way to run programs. Safe to share between threads; every run has its own processes and folder."""

    def __init__(self, *, level: str | None = None) -> None:
        """Take the strongest level that works here, or the one named `level`. GraderError when none works."""
        failures = []
        for candidate in levels(os.geteuid() == 0):
            if level not in (None, candidate.name) or (candidate.unshare and shutil.which("unshare") is None):
                continue
            self.level = candidate
            try:
                outcome = self._run_once(["import math"], timeout_s=10.0, memory_mb=1024, max_output_bytes=1 << 20)
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

    def run_program(
        self, source: str, *, timeout_s: float, memory_mb: int = 1024, max_output_bytes: int = 1 << 20
    ) -> Outcome:
        """Run `source` as `__main__` and wait for its end, at most `timeout_s` of wall time after its start.

        `memory_mb` (2**20 bytes) limits the address space of each of at most 8 processes. What it prints is read and
        dropped; more than `max_output_bytes` ends it. Never raises for what the program does. Raises GraderError when the
        sandbox does not start, twice.
        """
        return self._run([source], timeout_s=timeout_s, memory_mb=memory_mb, max_output_bytes=max_output_bytes)

    def run_checked(
        self,
        program: str,
        check: str,
        names: list[str],
        *,
        timeout_s: float,
        memory_mb: int = 1024,
        max_output_bytes: int = 1 << 20,
    ) -> Outcome:
        """Whether `check`, which calls the functions `names` of `program`, runs to its end.

        The two run in two processes and exchange plain values (`check_values.py`), so nothing in `program` can see or
        change the check: objects that equal everything, replaced built-ins and searches for the pass mark gain nothing.
        `check` must be trusted. Arguments are copies: a change that a function makes to them stays in its process.
        """
        limits = {"timeout_s": timeout_s, "memory_mb": memory_mb, "max_output_bytes": max_output_bytes}
        return self._run([program, check, names], **limits)

    def _run(self, payload: list[Any], **limits: Any) -> Outcome:
        try:
            return self._run_once(payload, **limits)
        except GraderError:  # a host short of processes or memory for a moment
            return self._run_once(payload, **limits)

    def _run_once(self, content: list[Any], *, timeout_s: float, memory_mb: int, max_output_bytes: int) -> Outcome:
        mark = secrets.token_hex(32)
        with (
            tempfile.TemporaryDirectory(prefix="program-", ignore_cleanup_errors=True) as folder,
            tempfile.TemporaryFile() as payload,
        ):
            payload.write(json.dumps([mark, *content]).encode())
            payload.seek(0)
            report_read, report_write = os.pipe()
            os.set_blocking(report_read, False)
            with open(report_read, "rb", buffering=0) as report:
                try:
                    process = subprocess.Popen(
                        self._command(folder, report_write, timeout_s, memory_mb, is_checked=len(content) > 1),
                        stdin=payload,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        pass_fds=(report_write,),
                        cwd="/",
                        env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"},
                        start_new_session=True,
                    )
                finally:
                    os.close(report_write)
                payload.close()  # in the fallback the program could find it through our descriptors
                with process:
                    return self._watch(process, report.fileno(), mark.encode(), timeout_s, max_output_bytes)

    def _command(self, folder: str, report_fd: int, timeout_s: float, memory_mb: int, *, is_checked: bool) -> list[str]:
        python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
        user = 50_000 + secrets.randbelow(10_000)
        values = source_of("check_values.py")
        spec = {
            "private_root": bool(self.level.unshare),
            # A random user: the process limit counts per user, and parallel runs must not share it.
            "uid": user if self.level.drop_user else None,
            "test_uid": user + 10_000 if self.level.drop_user else None,
            "folder": folder,
            "visible": sorted({os.path.realpath(sys.base_prefix), os.path.realpath(sys.base_exec_prefix)}),
            "python": python,
            "runner": values + source_of("serve_runner.py") if is_checked else source_of("jail_runner.py"),
            "test_runner": values + source_of("check_runner.py") if is_checked else None,
            "report_fd": report_fd,
            "memory_bytes": memory_mb << 20,
            "cpu_s": int(timeout_s) + 2,
            "file_bytes": 8 << 20,
            "open_files": 64,
            "processes": 8,
            "deadline_s": int(timeout_s + START_LIMIT_S) + 2,
        }
        return [*self.level.unshare, python, "-I", "-S", "-c", source_of("jail.py"), json.dumps(spec)]

    def _watch(
        self, process: subprocess.Popen[bytes], report_fd: int, mark: bytes, timeout_s: float, max_output_bytes: int
    ) -> Outcome:
        """Read both pipes until the program ends or breaks a limit; then make sure that nothing of it is left."""
        assert process.stdout is not None
        begin = time.monotonic()
        deadline = begin + START_LIMIT_S
        report, output, printed, broken = b"", b"", 0, None
        with selectors.DefaultSelector() as selector:
            selector.register(report_fd, selectors.EVENT_READ)
            selector.register(process.stdout.fileno(), selectors.EVENT_READ)
            while selector.get_map() and broken is None:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                for key, _ in ready:
                    chunk = os.read(key.fd, 65536)
                    if not chunk:
                        selector.unregister(key.fd)
                    elif key.fd == report_fd:
                        if not report:
                            begin = time.monotonic()
                            deadline = begin + timeout_s
                        report += chunk[: MAX_REASON_BYTES - len(report)]
                    else:
                        printed += len(chunk)
                        output = (output + chunk)[-MAX_REASON_BYTES:]
                if printed > max_output_bytes:
                    broken = f"printed more than {max_output_bytes} bytes"
                elif time.monotonic() >= deadline:
                    broken = f"timed out after {timeout_s} s"
        if broken is None:
            try:  # a program may close its descriptors and go on
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                broken = f"timed out after {timeout_s} s"
        seconds = time.monotonic() - begin
        self._end(process)
        if not report:
            last = output.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise GraderError(f"the sandbox did not start: {''.join(last) or f'exit code {process.returncode}'}"[:300])
        if broken is not None:
            return Outcome(passed=False, reason=broken, seconds=seconds)
        if report == b"S" + mark and process.returncode == 0:
            return Outcome(passed=True, reason="passed", seconds=seconds)
        return Outcome(passed=False, reason=explain(report, mark, process.returncode), seconds=seconds)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None and not self.level.unshare:
            process.send_signal(signal.SIGALRM)  # the supervisor knows the descendants; killed, it would lose them
            with suppress(subprocess.TimeoutExpired):
                process.wait(5.0)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def explain(report: bytes, mark: bytes, code: int) -> str:
    """Why a program did not pass, in a line. The mark never appears in it."""
    if report.startswith(b"SE"):
        return report[2:].decode("utf-8", "replace").splitlines()[0][:300] if report[2:].strip() else "failed"
    if mark in report:
        return "wrote to the descriptor of the report"
    if code > 128:
        with suppress(ValueError):
            return f"killed by {signal.Signals(code - 128).name}"
    return f"ended early with exit code {code}"


@cache
def source_of(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


@cache
def default_sandbox() -> Sandbox:
    return Sandbox()


def run_program(source: str, *, timeout_s: float, memory_mb: int = 1024) -> Outcome:
    """`Sandbox.run_program` of the strongest sandbox of this host, probed at the first call."""
    return default_sandbox().run_program(source, timeout_s=timeout_s, memory_mb=memory_mb)
