"""Second program inside the sandbox: executes the graded source and reports that it ran to its end.

Not imported: its text is passed to `python -I -S -c`. Standard input is a JSON line with the pass mark and the source.
Reports on one descriptor: `S` at the start, then the mark, or `E` and a reason.

The mark lives only behind an audit hook. Python code cannot list or remove audit hooks, and the hook ends the process
at the calls that could find it in memory (gc, ctypes, tracing). It writes the mark only when the frame of `main` itself
raises the closing event at the one instruction where it raised the opening event, which `main` reaches only after the
whole source has run. Names and functions that the program replaces in this module or in `main` change nothing of that.
"""

import json
import os
import sys
from types import CodeType, FrameType
from typing import Any

READY, FINISHED = "graded-program-ready", "graded-program-finished"
FORBIDDEN = frozenset(
    (
        "gc.get_objects",
        "gc.get_referrers",
        "gc.get_referents",
        "sys._current_frames",
        "sys._current_exceptions",
        "sys.settrace",
        "sys.setprofile",
        "sys.monitoring.register_callback",
        "code.__new__",
    )
)


def guard(mark: bytes, report_fd: int, bottom: FrameType) -> None:
    """Install the audit hook that knows the mark. Every function it uses is bound here, before foreign code runs."""
    write, leave, get_frame, get_pid, owner = os.write, os._exit, sys._getframe, os.getpid, os.getpid()
    opening, closing = READY, FINISHED
    place: list[int] = []  # of the instruction in `main` that raises both events

    def pay(mark: bytes = mark) -> None:
        # The mark is a default and no closure variable: reading defaults raises an event, and frames do not show it.
        if get_frame(2) is bottom and [bottom.f_lasti] == place and get_pid() == owner:
            write(report_fd, mark)
            leave(0)
        leave(3)

    def hook(
        event: str,
        args: tuple[Any, ...],
        # Bound as defaults: a program may replace builtins.
        forbidden: frozenset[str] = FORBIDDEN,
        is_text: Any = str,
        kind: Any = type,
    ) -> None:
        if event == closing:
            pay()
        if event == opening and not place:
            place.append(bottom.f_lasti)
        if event == "object.__getattr__" and args and args[0] is pay:
            leave(3)
        named = args[0] if args and kind(args[0]) is is_text else ""
        if (
            event in forbidden
            or event.startswith("ctypes.")
            or (event == "import" and named in ("ctypes", "_ctypes", "_testcapi", "_testinternalcapi"))
            or (event == "open" and named.startswith("/proc"))
        ):
            write(report_fd, b"Eforbidden: " + (event + " " + named).encode("utf-8", "replace"))
            leave(3)

    sys.addaudithook(hook)


def describe(error: BaseException) -> bytes:
    if isinstance(error, SystemExit):
        return b"the program called sys.exit before its end"
    try:
        return f"{type(error).__name__}: {error}"[:300].encode("utf-8", "replace")
    except BaseException:  # a hostile __str__
        return b"an exception that cannot be printed"


def load(report_fd: int, bottom: FrameType) -> CodeType | None:
    """Take mark and source from standard input, close it, install the guard, compile."""
    with open(0, "rb") as file:
        mark, source = json.loads(file.read())
    os.open("/dev/null", os.O_RDONLY)  # becomes descriptor 0
    os.write(report_fd, b"S")
    try:
        code = compile(source, "program", "exec")
    except BaseException as error:
        os.write(report_fd, b"E" + describe(error))
        return None
    guard(mark.encode(), report_fd, bottom)
    return code


def main(report_fd: int) -> None:
    code, audit, leave, write = load(report_fd, sys._getframe()), sys.audit, os._exit, os.write
    if code is None:
        leave(1)
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program"]
    for stage in (READY, FINISHED):
        if stage == FINISHED:
            try:
                exec(code, module.__dict__)
            except BaseException as error:
                write(report_fd, b"E" + describe(error))
                leave(1)
                return  # a program may have replaced what stands above, but not this
        audit(stage)
    leave(3)


if __name__ == "__main__":
    main(int(sys.argv[1]))
