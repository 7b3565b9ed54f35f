"""`python -m harness.report [RUN ...]`: compare runs from their records. Exit 2 where they cannot be compared."""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from harness.report import selection
from harness.report.compare import CannotCompare, compare
from harness.report.render import markdown, print_table


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.report", description="Compare runs from their records.")
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="run folders; none: the newest and all that agree with it"
    )
    parser.add_argument("--outputs", default="outputs", metavar="DIR", help="where runs are looked for")
    parser.add_argument("--markdown", metavar="FILE", help="also write the report as Markdown")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        runs, left_out = (selection.named(options.runs), []) if options.runs else selection.newest(options.outputs)
        comparison = compare(runs)
    except CannotCompare as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print_table(comparison, console)
    for line in left_out:
        console.print(Text(f"Left out {line}", style="dim"))
    if options.markdown:
        Path(options.markdown).write_text(markdown(comparison, left_out))
        console.print(Text(f"Written to {options.markdown}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
