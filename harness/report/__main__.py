"""`python -m harness.report [RUN ...]`: compare runs from their records; a page, Markdown, thresholds for a CI.

Exit 0; 2 where runs cannot be compared or an argument is wrong; 3 where a --fail-if condition holds.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from harness.report import page, selection, thresholds
from harness.report.advice import advise
from harness.report.recommend import Limits
from harness.report.render import markdown, print_report

FAILED = 3


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = Console()
    try:
        conditions = [thresholds.parse(text) for text in options.fail_if]
        found = selection.read(options.runs, options.outputs, options.sweep)
        advice = advise(found, Limits(options.quality_margin, options.max_tpot_ms))
        written = {
            options.html: page.html(found, advice, options.tree_sample) if options.html else "",
            options.markdown: markdown(found, advice) if options.markdown else "",
        }
    except ValueError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print_report(found, advice, console)
    for file, text in written.items():
        if file:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_text(text)
            console.print(Text(f"Written to {file}"))
    failed = thresholds.failures(found, conditions)
    for line in failed:
        print(f"report: failed {line}", file=sys.stderr)
    return FAILED if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness.report", description="Compare runs from their records.")
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="run folders; none: the newest and all that agree with it"
    )
    parser.add_argument("--outputs", default="outputs", metavar="DIR", help="where runs are looked for")
    parser.add_argument("--sweep", metavar="NAME", help="all runs of this sweep, every group of them")
    parser.add_argument("--html", metavar="FILE", help="write a self-contained page")
    parser.add_argument("--markdown", metavar="FILE", help="write the report as Markdown")
    parser.add_argument("--tree-sample", metavar="ID", help="the profiled sample whose draft trees the page shows")
    parser.add_argument(
        "--quality-margin", type=float, default=0.02, metavar="X", help="loss of mean score that may be (0.02)"
    )
    parser.add_argument("--max-tpot-ms", type=float, metavar="X", help="limit on the 90 %% quantile of TPOT")
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="exit 3 where it holds for a drafting run, e.g. 'acceptance_length<2.0', 'speed_up.low<1'; repeatable",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
