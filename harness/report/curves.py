"""Which curves a report can draw: over tree budgets, over temperatures. A curve needs two points."""

from collections import defaultdict
from dataclasses import dataclass

from harness.report import plots
from harness.report.groups import Group, Report
from harness.report.plots import Series

FIGURES = {"acceptance_length": "acceptance length, tokens a round", "speed_up": "speed-up over autoregressive"}
DIFFERENCE = {"score_difference": "score difference"}


@dataclass
class Chart:
    title: str
    svg: str


def budget_charts(group: Group) -> list[Chart]:
    """A chart a figure. Settings of a tree mode that differ only in the budget make one line; chains are levels."""
    families: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for place, (label, column) in enumerate(group.drafting):
        budget = column.run.tree_budget
        if budget is not None:
            families[" ".join(word for word in label.split() if word != str(budget))].append((budget, place))
    families = {name: sorted(points) for name, points in families.items() if len({b for b, _ in points}) > 1}
    charts = []
    for figure, title in FIGURES.items() if families else ():
        series = []
        for name, points in families.items():
            found = [(b, getattr(group.drafting[place][1], figure)) for b, place in points]
            found = [(b, value) for b, value in found if value is not None]
            if len(found) > 1:
                series.append(Series(name, [float(b) for b, _ in found], [value for _, value in found]))
        levels = [
            (label, value.value)
            for label, column in zip(group.labels, group.columns, strict=True)
            if column.run.tree_budget is None and (value := getattr(column, figure)) is not None
        ]
        if series:
            text = f"{title}, {group.title}"
            charts.append(Chart(text, plots.curve(text, "tree budget, draft nodes", series, levels, log2=True)))
    return charts


def temperature_charts(report: Report) -> list[Chart]:
    """A chart a figure for each model, hardware and task that was run at two temperatures or more; a line a setting."""
    ladders: dict[tuple[str, str, str], list[Group]] = defaultdict(list)
    for group in report.groups:
        if group.temperature is not None:
            ladders[group.model, group.hardware, group.task].append(group)
    charts = []
    for (model, hardware, task), groups in ladders.items():
        if len({g.temperature for g in groups}) < 2:
            continue
        for figure, title in {**FIGURES, **DIFFERENCE}.items():
            lines: dict[str, Series] = {}
            for group in sorted(groups, key=lambda g: g.temperature or 0.0):
                for label, column in group.drafting:
                    value = getattr(column, figure)
                    if value is not None:
                        line = lines.setdefault(label, Series(label, [], []))
                        line.x.append(group.temperature or 0.0)
                        line.y.append(value)
            series = [line for line in lines.values() if len(line.x) > 1]
            if series:
                text = f"{title}, {task}, {model}, {hardware}"
                charts.append(Chart(text, plots.curve(text, "temperature", series)))
    return charts


def acceptance_charts(group: Group, report: Report) -> list[Chart]:
    """Histogram and per-position shares, from the summaries of the drafting runs."""
    found = [(label, report.summaries[str(column.run.folder.path)]) for label, column in group.drafting]
    histograms = [(label, s["acceptance/histogram"]) for label, s in found if "acceptance/histogram" in s]
    shares = [(label, s["acceptance/per_position"]) for label, s in found if "acceptance/per_position" in s]
    charts = []
    if histograms:
        title = f"Rounds by accepted drafts, {group.title}"
        charts.append(Chart(title, plots.histogram(title, histograms)))
    if shares:
        title = f"Share of rounds that accepted at least i drafts, {group.title}"
        charts.append(Chart(title, plots.positions(title, shares)))
    return charts
