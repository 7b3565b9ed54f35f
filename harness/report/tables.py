"""The tables of a report, once: a page and Markdown show the same cells."""

from typing import Any

from harness.report.compare import Column
from harness.report.groups import Group, Report
from harness.report.halves import BudgetChoice
from harness.report.recommend import Recommendation
from harness.report.statistics import Estimate
from harness.report.table import DASH, Table


def paper_tables(report: Report) -> list[Table]:
    """The layout of the DDTree paper: a row a mode, a column a task and temperature, in it speed-up / acceptance length.

    One table for each model and hardware.
    """
    places = list(dict.fromkeys((g.model, g.hardware) for g in report.groups))
    tables = []
    for model, hardware in places:
        groups = [g for g in report.groups if (g.model, g.hardware) == (model, hardware)]
        labels = list(dict.fromkeys(label for g in groups for label in g.labels))
        cells = [dict(zip(g.labels, g.columns, strict=True)) for g in groups]
        rows = [
            [label, *(_pair(found.get(label), g) for found, g in zip(cells, groups, strict=True))] for label in labels
        ]
        title = f"{model} on {hardware}: speed-up / acceptance length"
        tables.append(Table(title, ["mode", *(_short(g) for g in groups)], rows, note=PAPER_NOTE))
    return tables


PAPER_NOTE = (
    "Speed-up in decode time a token over the autoregressive run on the same samples; acceptance length in tokens "
    "committed a round, bonus token included. Brackets: 95 % intervals over samples."
)


def quality_table(report: Report) -> Table:
    header = ["run", "score", "difference", "p (Holm)", "detectable", "equal outputs", "loops", "cut off", "errors"]
    rows = []
    for group in report.groups:
        for label, column in zip(group.labels, group.columns, strict=True):
            is_base = column.run is group.comparison.baseline
            rows.append(
                [
                    f"{label}\n{group.title}",
                    estimate(column.score, "{:.3f}"),
                    "baseline" if is_base else estimate(column.score_difference, "{:+.3f}"),
                    DASH if is_base else _p(report, column, "score_difference"),
                    number(column.detectable_difference, "±{:.3f}"),
                    DASH if column.equal_outputs is None else f"{column.equal_outputs} of {column.compared_outputs}",
                    *(number(column.rates.get(name), "{:.1%}") for name in ("repetition", "truncated", "error")),
                ]
            )
    return Table("Quality against the baseline, paired by sample", header, rows, note=QUALITY_NOTE)


QUALITY_NOTE = (
    "Difference: mean of (score − baseline's score) over the same samples. p: exact McNemar test for 0/1 scores, else "
    "sign flips; in brackets after Holm's correction over all comparisons of this report. Detectable: the smallest true "
    "difference that this many samples find with 80 % power; a smaller one would most likely go unseen. Loops: share of "
    "samples with a degenerate repetition; these are left out of every speed-up."
)


def holm_note(report: Report) -> str:
    """How many comparisons were made, and how many stand when that is allowed for."""
    count, stand = len(report.adjusted), sum(p <= 0.05 for p in report.adjusted.values())
    return (
        f"{count} speed-ups and score differences are tested here. The brackets are not corrected for that number; after "
        f"Holm's correction {stand} of them {'differs' if stand == 1 else 'differ'} from the baseline at 5 %."
    )


def speed_table(report: Report) -> Table:
    header = ["run", "speed-up", "p (Holm)", "detectable", "decode tokens/s", "TTFT p50 / p90 / p99 ms"]
    header += ["TPOT p50 / p90 / p99 ms", "peak memory GB"]
    rows = []
    for group in report.groups:
        for label, column in zip(group.labels, group.columns, strict=True):
            summary = report.summaries[str(column.run.folder.path)]
            is_base = column.run is group.comparison.baseline
            rows.append(
                [
                    f"{label}\n{group.title}",
                    "baseline" if is_base else speed_up(column),
                    DASH if is_base else _p(report, column, "speed_up"),
                    number(column.detectable_speed_up, "{:.3f}×"),
                    number(summary.get("throughput/decode_tokens_per_s"), "{:.1f}"),
                    _quantiles(summary, "ttft_s"),
                    _quantiles(summary, "tpot_s"),
                    number(summary.get("memory/peak_bytes"), "{:.2f}", 1e-9),
                ]
            )
    return Table("Speed and latency", header, rows, note=SPEED_NOTE)


SPEED_NOTE = (
    "p: of equal speed, by exchanging the two runs' sides of samples. One run each: a claim about speed needs interleaved "
    "benchmarks. Quantiles and tokens/s are over all of a run's own samples, tokens/s and TPOT without those that fell into "
    "a loop, and equal its summary.json."
)

ACCEPTANCE: list[tuple[str, str, str]] = [
    ("pooled length", "acceptance_length/pooled", "{:.3f}"),
    ("mean of samples", "acceptance_length/sample_mean", "{:.3f}"),
    ("drafts accepted", "acceptance/mean_accepted", "{:.3f}"),
    ("nodes a round", "acceptance/nodes_per_round", "{:.1f}"),
    ("rounds", "rounds/total", "{:d}"),
    ("expected drafts (profiled)", "acceptance/expected_accepted", "{:.3f}"),
    ("measured (profiled)", "acceptance/expected_measured", "{:.3f}"),
    ("z", "acceptance/expected_z", "{:+.2f}"),
]


def acceptance_table(report: Report) -> Table:
    """All from summary.json's metrics, each run on its own samples."""
    rows = []
    for group in report.groups:
        for label, column in zip(group.labels, group.columns, strict=True):
            summary = report.summaries[str(column.run.folder.path)]
            cells = [number(summary.get(name), form) for _, name, form in ACCEPTANCE]
            rows.append([f"{label}\n{group.title}", *cells])
    note = (
        "Every run on all of its own samples, as in its summary.json. Expected drafts: the target's own probability of "
        "the tree's paths, summed; z is near a standard normal when the verifier is exact."
    )
    return Table("Means, and what was expected", ["run", *(name for name, _, _ in ACCEPTANCE)], rows, note=note)


def context_table(group: Group, report: Report) -> Table | None:
    """Acceptance length by context length; None where all rounds share one bucket."""
    prefix = "acceptance_length/context/"
    summaries = [report.summaries[str(column.run.folder.path)] for column in group.columns]
    buckets = sorted({k[len(prefix) :] for s in summaries for k in s if k.startswith(prefix)}, key=_low)
    if len(buckets) < 2:
        return None
    rows = []
    for bucket in buckets:
        cells = []
        for summary in summaries:
            length, rounds = summary.get(prefix + bucket), summary.get(f"rounds/context/{bucket}")
            cells.append(DASH if length is None else f"{length:.2f}\n{rounds} rounds")
        rows.append([bucket, *cells])
    return Table(f"Acceptance length by context, {group.title}", ["context tokens", *group.labels], rows)


def budget_table(choices: list[tuple[Group, BudgetChoice]]) -> Table:
    rows = []
    for group, choice in choices:
        tried = ", ".join(f"{budget}: {value:.2f}" for budget, value in sorted(choice.selection.items()))
        rows.append(
            [
                f"{choice.setting}\n{group.title}",
                f"{choice.budget}\nby {choice.figure}",
                tried,
                estimate(choice.result, "{:.2f}"),
                f"{choice.flattered:.2f}",
                f"{choice.chosen_on} / {choice.reported_on}",
            ]
        )
    header = ["setting", "budget chosen", "on the first half", "on the other half", "best on all, flattered", "samples"]
    note = (
        "The budget is chosen on one half of the samples and reported on the other, split by a hash of the sample id. "
        "The best of several budgets on the samples that chose it was also the luckiest."
    )
    return Table("Tree budget, chosen and reported on different samples", header, rows, note=note)


def recommendation_table(found: Recommendation) -> Table:
    rows, marked = [], set()
    for place, verdict in enumerate(found.verdicts):
        if verdict is found.chosen:
            marked.add(place)
        speed = speed_up(verdict.column)
        verdict_text = "; ".join(verdict.objections) or ("ship" if verdict is found.chosen else "fit, but slower")
        rows.append([verdict.label, speed, estimate(verdict.column.score_difference, "{:+.3f}"), verdict_text])
    header = ["setting", "speed-up", "score difference", "verdict"]
    return Table("", header, rows, marked=marked)


def estimate(value: Estimate | None, form: str) -> str:
    if value is None:
        return DASH
    if value.low is None or value.high is None:
        return f"{form.format(value.value)}\n[too few]"
    bare = form.removesuffix("×")
    return f"{form.format(value.value)}\n[{bare.format(value.low)}, {bare.format(value.high)}]"


def speed_up(column: Column) -> str:
    head, _, tail = estimate(column.speed_up, "{:.2f}×").partition("\n")
    head = head if column.speed_up is None or column.certified else f"({head})"
    return f"{head}\n{tail}" if tail else head


def number(value: float | None, form: str, scale: float | None = None) -> str:
    return DASH if value is None else form.format(value if scale is None else value * scale)


def _pair(column: Column | None, group: Group) -> str:
    if column is None:
        return DASH
    is_base = column.run is group.comparison.baseline
    speed = "1" if is_base else speed_up(column)
    parts = [text.partition("\n") for text in (speed, estimate(column.acceptance_length, "{:.2f}"))]
    main = " / ".join(head for head, _, _ in parts)
    small = " / ".join(tail for _, _, tail in parts if tail)
    mark = [] if column.speed_up is None or is_base else [column.certificate]
    return "\n".join([main, *([small] if small else []), *mark])


def _short(group: Group) -> str:
    heat = "T=?" if group.temperature is None else f"T={group.temperature:g}"
    return f"{group.task}\n{heat}" + (f" ({group.number})" if group.number else "")


def _p(report: Report, column: Column, figure: str) -> str:
    p_value: float | None = getattr(column, f"{figure}_p")
    if p_value is None:
        return DASH

    def form(p: float) -> str:
        return "<0.001" if p < 0.001 else f"{p:.3f}"

    return f"{form(p_value)}\n({form(report.adjusted[str(column.run.folder.path), figure])})"


def _quantiles(summary: dict[str, Any], name: str) -> str:
    values = [summary[key] for q in (50, 90, 99) if (key := f"latency/{name}_p{q}") in summary]
    return " / ".join(f"{1000 * value:.1f}" for value in values) or DASH


def _low(bucket: str) -> int:
    return int(bucket.split("-")[0])
