"""`python -m harness KEY=VALUE ...`: compose, evaluate, exit status. Nothing else; `-m ...` is a sweep."""

import os
import signal
import sys

# A thread that spins while another core is busy costs more than it saves; must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from rich.console import Console

from harness.compose import compose
from harness.evaluate import evaluate


def main(arguments: list[str]) -> int:
    """0 finished, 1 a sample failed, 2 the configuration cannot run, 130 interrupted."""
    if {"-m", "--multirun"} & set(arguments):
        from harness.launch.__main__ import main as launch

        return launch(["sweep", *arguments])
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console()
    try:
        return evaluate(compose(arguments), console)
    except ValueError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        return 130


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm sends it to a job's every process, and its launcher again
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
