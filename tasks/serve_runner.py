"""The graded program's process where its test runs in another: executes the program, then its functions when asked.

Not imported: its text, after `check_values.py`, is passed to `python -I -S -c`. It knows neither the test nor the pass mark;
all it can do is to give values.
"""

import json
import os
import sys

TYPE_CHECKING = False  # as `typing` has it; its import would cost more than this program
if TYPE_CHECKING:
    from tasks.check_values import decode, encode


def serve(asked, reply_fd):
    def send(message):
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(reply_fd, data) :]

    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program"]
    try:
        exec(compile(json.loads(asked.readline()), "program", "exec"), module.__dict__)
    except BaseException as error:
        send({"error": describe(error)})
        return
    send({"value": None})
    for line in asked:
        name, args, kwargs = json.loads(line)
        try:
            function = module.__dict__[name]
            value = function(*map(decode, args), **{key: decode(inner) for key, inner in kwargs.items()})
            reply = {"value": encode(value)}
        except BaseException as error:
            reply = {"error": describe(error)}
        send(reply)


def describe(error):
    try:
        return [type(error).__name__, str(error)[:300]]
    except BaseException:  # a hostile __str__
        return ["Exception", "an exception that cannot be printed"]


if __name__ == "__main__":
    with open(int(sys.argv[1]), "rb") as requests:
        serve(requests, int(sys.argv[2]))
