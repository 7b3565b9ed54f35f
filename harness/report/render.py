"""A report for the terminal with rich, and for a file as Markdown: a comparison is a table of the same cells in both."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report import tables
from harness.report.advice import Advice
from harness.report.compare import Column, Comparison
from harness.report.groups import Report, labels
from harness.report.recommend import Limits
from harness.report.reproduce import origins
from harness.report.roofline import stage_table
from harness.report.statistics import Estimate

DASH = "-"


def table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """(header, rows): a column a run, a row a figure. A figure that does not exist is a dash, never 0."""
    columns = comparison.columns
    header = ["", *labels([column.run for column in columns])]
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
    for figure, form in (("speed_up", "{:.3f}x"), ("difference", "{:.3f}")):
        values = [getattr(c, f"detectable_{figure}") for c in columns]
        if any(value is not None for value in values):
            cells = [_against(c, comparison, tables.number(v, form)) for c, v in zip(columns, values, strict=True)]
            rows.append([f"detectable {figure.replace('_', '-')}", *cells])
    if any(c.equal_outputs is not None for c in columns):
        equal = [DASH if c.equal_outputs is None else f"{c.equal_outputs} of {c.compared_outputs}" for c in columns]
        rows.append(["equal outputs", *(_against(c, comparison, cell) for c, cell in zip(columns, equal, strict=True))])
    for name in ("repetition", "truncated", "error"):
        rows.append([f"{name} rate", *(f"{c.rates[name]:.1%}" if name in c.rates else DASH for c in columns)])
    return header, rows


def notes(comparison: Comparison) -> list[str]:
    fixed = [
        "Brackets are 95 % intervals over samples. Detectable: what this many samples find with 80 % power.",
        "One run each: claims about speed need interleaved benchmarks.",
    ]
    return [*comparison.notes, *fixed]


def print_report(report: Report, advice: Advice, console: Console) -> None:
    for line in report.notices:
        console.print(Text(line, style="yellow"))
    if report.cells:
        _print_table(report.cells, console)
    for group, found in zip(report.groups, advice.recommendations, strict=True):
        _print_table(tables.Table(f"Comparison of runs: {group.title}", *table(group.comparison)), console)
        for line in [*notes(group.comparison), found.text]:
            console.print(Text(line))
    for line in advice.everywhere:
        console.print(Text(line))
    if report.adjusted:
        console.print(Text(tables.holm_note(report)))
    for line in report.left_out:
        console.print(Text(f"Left out {line}", style="dim"))


def _print_table(one: tables.Table, console: Console) -> None:
    shown = Table(title=Text(one.title), show_lines=False)
    for place, name in enumerate(one.header):
        shown.add_column(Text(name), overflow="fold", justify="left" if place == 0 else "right")
    for row in one.rows:
        shown.add_row(*(Text(cell) for cell in row))
    console.print(shown)


def markdown(report: Report, advice: Advice) -> str:
    lines = ["# Comparison of runs", "", *(f"> {line}" for line in report.notices)]
    lines += _markdown_table(report.cells) if report.cells else []
    for group in report.groups:
        header, rows = table(group.comparison)
        lines += ["", f"## {_flat(group.title)}", "", _line(header), _line(["-"] + ["-:"] * len(group.columns))]
        lines += [_line(row) for row in rows]
        lines += ["", *(f"- {_flat(note)}" for note in notes(group.comparison))]
    shown = [*tables.paper_tables(report), tables.quality_table(report), tables.speed_table(report)]
    shown += [stages] if (stages := stage_table(report)) else []
    shown += [tables.acceptance_table(report)]
    shown += [context for group in report.groups if (context := tables.context_table(group, report))]
    shown += [tables.budget_table(advice.budgets)] if advice.budgets else []
    for one in shown:
        lines += _markdown_table(one)
    lines += ["", tables.holm_note(report)] if report.adjusted else []
    lines += ["", "## Which setting to ship", ""]
    lines += [f"Limits: a loss of at most {advice.limits.quality_margin:g} in score, {_latency(advice.limits)}."]
    lines += [line for text in advice.everywhere for line in ("", _flat(text))]
    for recommendation in advice.recommendations:
        lines += [
            "",
            f"{_flat(recommendation.group.title)}: {_flat(recommendation.text)}",
            *_markdown_table(tables.recommendation_table(recommendation)),
        ]
    lines += ["", "## Reproduce"]
    for origin in origins(report):
        lines += ["", f"### {_flat(origin.label)}", "", "```", origin.command.replace("```", "` ` `"), "```", ""]
        lines += [f"- {name}: {_flat(text)}" for name, text in [*origin.facts, ("folder", origin.folder)]]
    if report.left_out:
        lines += ["", "Left out:", "", *(f"- {_flat(line)}" for line in report.left_out)]
    return "\n".join(lines) + "\n"


def _markdown_table(one: tables.Table) -> list[str]:
    header = [cell.replace("\n", " ") for cell in one.header]
    title = ["", f"### {_flat(one.title)}"] if one.title else []
    lines = [*title, "", _line(header), _line(["-"] + ["-:"] * (len(header) - 1))]
    lines += [_line([cell.replace("\n", " ") for cell in row]) for row in one.rows]
    return [*lines, "", one.note] if one.note else lines


def _latency(limits: Limits) -> str:
    return "no limit on TPOT" if limits.max_tpot_ms is None else f"TPOT p90 of at most {limits.max_tpot_ms:g} ms"


def _flat(text: str) -> str:
    """One line, without anything that Markdown would take for HTML."""
    return " ".join(text.split()).replace("<", "&lt;")


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
    if column.speed_up is None:
        return cell
    return f"{cell} ({column.certificate})" if column.certified else f"({cell}, {column.certificate})"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(_flat(cell).replace("|", "\\|") for cell in cells) + " |"
