"""One grader in a process of its own: answers come in, scores go out.

Not imported: `grading.py` runs it as a program. The first line in is the pickled task in base64, then a line (sample, text)
for each answer; a JSON line goes out for each. It is of low priority and so are the programs that it starts.
"""

import base64
import json
import math
import os
import pickle
import signal
import sys
from typing import Any

NICE = 10  # graders get a tenth of what the timed loop gets on a core that both want, and never nothing


def grade(task: Any, sample: Any, text: str) -> dict[str, Any]:
    """`value` and `detail` of the score. A grader that raises did not grade: no value, the error in the detail."""
    try:
        score = task.score(sample, text)
        if score.value is not None and not (math.isfinite(score.value) and 0 <= score.value <= 1):
            raise ValueError(f"a score of {score.value} is not in [0, 1]")
        reply = {"value": score.value, "detail": score.detail}
        json.dumps(reply)
    except Exception as error:
        return {"value": None, "detail": {"grader_error": f"{type(error).__name__}: {error}"[:500]}}
    return reply


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that a library prints may look like a reply
    os.nice(NICE)
    for number in (signal.SIGINT, signal.SIGTERM):  # they are meant for the run; it ends us by closing our input
        signal.signal(number, lambda *_: None)
    try:
        task = pickle.loads(base64.b64decode(sys.stdin.readline()))
        print(json.dumps({"ready": True}), file=replies, flush=True)
    except Exception as error:
        print(json.dumps({"ready": False, "error": f"{type(error).__name__}: {error}"}), file=replies, flush=True)
        return
    for line in sys.stdin:
        sample, text = pickle.loads(base64.b64decode(line))
        print(json.dumps(grade(task, sample, text)), file=replies, flush=True)


if __name__ == "__main__":
    main()
