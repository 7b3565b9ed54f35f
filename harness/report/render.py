"""A comparison as a table: for the terminal with rich, for a file as Markdown. Both show the same cells."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report.compare import Column, Comparison
from harness.report.statistics import Estimate

DASH = "-"


def table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """(header, rows): a column a run, a row a figure. A figure that does not exist is a dash, never 0."""
    columns = comparison.columns
    header = ["", *(_title(column) for column in columns)]
    rows = [
        ["run", *_names(columns)],
        ["status", *(c.run.manifest.status.upper() if _unfinished(c) else "finished" for c in columns)],
        ["verifier", *(c.run.verifier for c in columns)],
        ["samples compared", *(str(c.samples) for c in columns)],
        ["acceptance length", *(_estimate(c.acceptance_length, "{:.2f}") for c in columns)],
        ["decode tokens/s", *(DASH if (v := c.decode_tokens_per_s) is None else f"{v:.1f}" for c in columns)],
        ["speed-up", *(_speed_up(c, comparison) for c in columns)],
        ["score", *(_estimate(c.score, "{:.3f}") for c in columns)],
        ["score difference", *(_against(c, comparison, _estimate(c.score_difference, "{:+.3f}")) for c in columns)],
    ]
    if any(c.equal_outputs is not None for c in columns):
        equal = [DASH if c.equal_outputs is None else f"{c.equal_outputs} of {c.samples}" for c in columns]
        rows.append(["equal outputs", *(_against(c, comparison, cell) for c, cell in zip(columns, equal, strict=True))])
    for name in ("repetition", "truncated", "error"):
        rows.append([f"{name} rate", *(f"{c.rates[name]:.1%}" if name in c.rates else DASH for c in columns)])
    return header, rows


def notes(comparison: Comparison) -> list[str]:
    fixed = ["Brackets are 95 % intervals over samples. One run each: claims about speed need interleaved benchmarks."]
    return [*comparison.notes, *fixed]


def print_table(comparison: Comparison, console: Console) -> None:
    header, rows = table(comparison)
    shown = Table(title="Comparison of runs", show_lines=False)
    for place, name in enumerate(header):
        shown.add_column(Text(name), overflow="fold", justify="left" if place == 0 else "right")
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    console.print(shown)
    for note in notes(comparison):
        console.print(Text(note))


def markdown(comparison: Comparison, left_out: list[str]) -> str:
    header, rows = table(comparison)
    lines = ["# Comparison of runs", "", _line(header), _line(["-"] + ["-:"] * len(comparison.columns))]
    lines += [_line(row) for row in rows]
    lines += ["", *(f"- {note}" for note in notes(comparison))]
    if left_out:
        lines += ["", "Left out:", "", *(f"- {line}" for line in left_out)]
    return "\n".join(lines) + "\n"


def _title(column: Column) -> str:
    budget = column.run.tree_budget
    return column.run.mode if budget is None else f"{column.run.mode} {budget}"


def _names(columns: list[Column]) -> list[str]:
    """Folder names, or whole paths where names repeat."""
    paths = [column.run.folder.path.resolve() for column in columns]
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _unfinished(column: Column) -> bool:
    return column.run.manifest.status != "finished"


def _estimate(estimate: Estimate | None, form: str) -> str:
    if estimate is None:
        return DASH
    value = form.format(estimate.value)
    if estimate.low is None or estimate.high is None:
        return f"{value} [too few]"
    return f"{value} [{form.format(estimate.low)}, {form.format(estimate.high)}]"


def _against(column: Column, comparison: Comparison, cell: str) -> str:
    return "baseline" if column.run is comparison.baseline else cell


def _speed_up(column: Column, comparison: Comparison) -> str:
    cell = _against(column, comparison, _estimate(column.speed_up, "{:.2f}x"))
    return f"{cell} ({column.certificate})" if column.speed_up is not None else cell


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
