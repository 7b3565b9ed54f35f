"""Waits for a program in the sandbox: reads what it reports and prints, and ends it at its limits."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

START_LIMIT_S = 30.0  # for namespaces and interpreters to start on a busy host; not counted as the program's time
MAX_REASON_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one run: wall time after the start, address space of each process in 2**20 bytes, bytes printed in all."""

    timeout_s: float
    memory_mb: int
    max_output_bytes: int


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What is known of a program that is gone. `broken` names the limit it broke; `seconds` exclude the start."""

    report: bytes  # the first 4096 of the descriptor for reports; empty: the sandbox did not start
    output: bytes  # all of standard output, at most `max_output_bytes` and one chunk
    errors: bytes  # the last 4096 of standard error
    broken: str | None
    code: int
    seconds: float

    def last_error(self) -> str:
        """The last line on standard error, cut to 300 characters; "" without one."""
        lines = self.errors.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


def watch(
    process: subprocess.Popen[bytes], report_fd: int, limits: Limits, end: Callable[[subprocess.Popen[bytes]], None]
) -> Ending:
    """Read all three until the program ends or breaks a limit; then `end` makes sure that nothing of it is left."""
    assert process.stdout is not None
    assert process.stderr is not None
    begin = time.monotonic()
    deadline = begin + START_LIMIT_S
    late = f"timed out after {limits.timeout_s} s"
    report, output, errors, printed, broken = b"", bytearray(), b"", 0, None
    with selectors.DefaultSelector() as selector:
        for descriptor in (report_fd, process.stdout.fileno(), process.stderr.fileno()):
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map() and broken is None:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fd)
                elif key.fd == report_fd:
                    if not report:
                        begin = time.monotonic()
                        deadline = begin + limits.timeout_s
                    report += chunk[: MAX_REASON_BYTES - len(report)]
                else:
                    printed += len(chunk)
                    if key.fd == process.stdout.fileno():
                        output += chunk
                    else:
                        errors = (errors + chunk)[-MAX_REASON_BYTES:]
            if printed > limits.max_output_bytes:
                broken = f"printed more than {limits.max_output_bytes} bytes"
            elif time.monotonic() >= deadline:
                broken = late
    if broken is None:
        try:  # a program may close its descriptors and go on
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            broken = late
    seconds = time.monotonic() - begin
    end(process)
    return Ending(
        report=report, output=bytes(output), errors=errors, broken=broken, code=process.returncode, seconds=seconds
    )


def explain_code(code: int) -> str:
    """An exit code as the supervisor of the sandbox gives it: 128 and the number of the signal that ended the program."""
    if code > 128:
        with suppress(ValueError):
            return f"killed by {signal.Signals(code - 128).name}"
    return f"ended early with exit code {code}"
