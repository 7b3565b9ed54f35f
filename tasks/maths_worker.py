"""Compares maths answers in a process of its own: some expressions (9^9^9^9) take the symbolic library for ever.

Not imported: `maths.py` runs it as a program. One JSON list [gold, answer, limit_s] a line in, one JSON object a line
out. Past the limit the kernel ends the process (SIGALRM has no handler here, so it also stops code inside a library).
"""

import json
import resource
import signal
import sys
from typing import Any

MEMORY_BYTES = 2 << 30


def compare(gold: str, answer: str) -> dict[str, Any]:
    """Timeouts are off (None): math-verify's own use SIGALRM, which is ours here."""
    from math_verify import parse, verify

    parsed_gold = parse(f"${gold}$", parsing_timeout=None)
    parsed = parse(f"${answer}$", parsing_timeout=None)
    if not parsed:
        parsed = parse(answer, parsing_timeout=None)
    if not parsed_gold or not parsed:
        return {"equal": False, "reason": "cannot be read as maths"}
    equal = bool(verify(parsed_gold, parsed, timeout_seconds=None))
    return {"equal": equal, "reason": "equal" if equal else "different"}


def main() -> None:
    import math_verify  # noqa: F401  (before the first clock starts)

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    replies, sys.stdout = sys.stdout, sys.stderr  # nothing a library prints may look like a reply
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        gold, answer, limit_s = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            reply = compare(gold, answer)
        except BaseException as error:  # RecursionError, MemoryError, whatever the parser met
            reply = {"equal": False, "reason": f"grader error: {type(error).__name__}"}
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
