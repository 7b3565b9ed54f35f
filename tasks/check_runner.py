"""The test's process inside the sandbox: runs the test and reports the pass mark when it ran to its end.

Not imported: its text, after `check_values.py`, is passed to `python -I -S -c`. Nothing that a model wrote runs here. The
functions under test live in the process of `serve_runner.py`, under another user where there is one, and a call is a
message there and a plain value back. So the program cannot reach the mark, the expected values, or what the test calls.
"""

import builtins
import ctypes
import json
import os
import signal
import sys

TYPE_CHECKING = False  # as `typing` has it; its import would cost more than this program
if TYPE_CHECKING:
    from tasks.check_values import decode, encode

PR_SET_DUMPABLE = 4  # <sys/prctl.h>
GONE = "the program called sys.exit before its end, or was ended"


def main(report_fd, ask, replies):
    # Under the same user another process could read our memory otherwise.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    with open(0, "rb") as file:
        mark, program, check, names, data, call_s = json.loads(file.read())
    os.open("/dev/null", os.O_RDONLY)  # becomes descriptor 0

    def late(*_):
        raise OutOfTime(f"took more than {call_s} s")

    def exchange(message, limit_s=None):
        request = json.dumps(message).encode() + b"\n"
        try:
            signal.setitimer(signal.ITIMER_REAL, limit_s or 0)
            ask.write(request)
            ask.flush()
            line = replies.readline()
        except BrokenPipeError:
            line = b""
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if not line:
            raise EndedEarly(GONE)
        reply = json.loads(line)
        if "error" in reply:
            raise EndedEarly(GONE) if reply["error"][0] == "SystemExit" else as_error(*reply["error"])
        return decode(reply["value"])

    def remote(name):
        def call(*args, **kwargs):
            named = {key: encode(one) for key, one in kwargs.items()}
            return exchange([name, [encode(one) for one in args], named], call_s)

        return call

    signal.signal(signal.SIGALRM, late)
    os.write(report_fd, b"S")
    try:
        exchange(program)
        module = type(sys)("__main__")
        sys.modules["__main__"] = module
        module.__dict__.update({name: remote(name) for name in names}, data=data)
        exec(compile(check, "check", "exec"), module.__dict__)
    except BaseException as error:
        os.write(report_fd, b"E" + describe(error))
        os._exit(1)
    os.write(report_fd, mark.encode())
    os._exit(0)


class EndedEarly(BaseException):
    """The program's process is gone, or wanted to be.

    No Exception, so that no test takes it for one that the program raised.
    """


class OutOfTime(BaseException):
    """A call took too long; what comes back later would be taken for the reply to another."""


def as_error(name, text):
    """What the program raised, where it is a built-in Exception; so a test may expect it."""
    kind = getattr(builtins, str(name), None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(str(text))
        except TypeError:  # UnicodeDecodeError wants more
            pass
    return RuntimeError(f"{name}: {text}")


def describe(error):
    text = f"{error}" if isinstance(error, EndedEarly | OutOfTime) else f"{type(error).__name__}: {error}"
    return text[:300].encode("utf-8", "replace")


if __name__ == "__main__":
    with open(int(sys.argv[2]), "wb") as requests, open(int(sys.argv[3]), "rb") as results:
        main(int(sys.argv[1]), requests, results)
