"""Second program inside the sandbox for scripts: executes the graded source as an ordinary interpreter would.

Not imported: its text is passed to `python -I -S -c`. There is nothing here to find or to fake: the source comes on a
descriptor of its own, standard input is the script's, what it prints is judged outside, and the descriptor for reports
says only that it starts, then is closed.

As LiveCodeBench has it, `sys.exit` with any value is an end like another; an exception that nobody catches is not. Threads
that are no daemons are waited for, exit hooks run and buffers are flushed, because the interpreter itself ends.
"""

import os
import sys


def main(report_fd: int, source_fd: int) -> None:
    with open(source_fd, encoding="utf-8", errors="surrogatepass", newline="") as file:
        source = file.read()
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program"]
    os.write(report_fd, b"S")
    os.close(report_fd)
    try:
        exec(compile(source, "program", "exec"), module.__dict__)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(end.code)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
