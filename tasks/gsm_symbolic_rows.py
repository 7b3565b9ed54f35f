"""Writes rows for `task=gsm_symbolic`: `python -m tasks.gsm_symbolic_rows --seed 1 --rows 500 > mine.jsonl`.

Needs reasoning-gym (`pip install -e '.[generate]'`); nothing else of the project does. `make eval task=gsm_symbolic
task.path=mine.jsonl` takes the file.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

# Some templates print a fraction as it is in binary, "0.6666666666666666 water": no person would write that.
UNROUNDED = re.compile(r"\d\.\d{4,}")


def rows(problems: Iterable[dict[str, Any]], seed: int) -> Iterator[dict[str, str]]:
    """A row for each generated problem, those with unrounded fractions left out. `id` keeps the place before that."""
    for place, problem in enumerate(problems):
        if not UNROUNDED.search(problem["question"]):
            yield {
                "id": f"gsm_symbolic/{seed}/{place}",
                "question": problem["question"],
                "answer": str(problem["answer"]),
            }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.gsm_symbolic_rows", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=200)
    options = parser.parse_args(arguments)
    try:
        import reasoning_gym
    except ImportError:
        print("reasoning-gym is missing: pip install -e '.[generate]'", file=sys.stderr)
        return 2
    # Ask for more than are wanted: some are left out.
    problems = reasoning_gym.create_dataset("gsm_symbolic", seed=options.seed, size=2 * options.rows + 20)
    for number, row in enumerate(rows(problems, options.seed)):
        if number == options.rows:
            break
        print(json.dumps(row, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
