"""The page: one HTML file that needs nothing else, from a `Report`.

Prompts, outputs, names and errors are untrusted. Jinja escapes every one of them, the data block cannot close its own
element, and a content policy allows no request and no script but the page's own, by its hash.
"""

import base64
import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.report import curves, plots, tables
from harness.report.advice import Advice
from harness.report.curves import Chart
from harness.report.groups import Group, Report
from harness.report.recommend import Recommendation
from harness.report.reproduce import origins
from harness.report.roofline import floor, stage_table, stages
from harness.report.statistics import Estimate
from harness.report.table import DASH
from harness.report.viewer import viewer

TEMPLATES = Path(__file__).parent / "templates"
FIGURES = ("acceptance_length", "speed_up", "score", "score_difference")
P_VALUES = ("speed_up_p", "score_difference_p", "detectable_speed_up", "detectable_difference")


@dataclass
class Card:
    """The fastest drafting run of a group, in a few words."""

    title: str
    label: str
    big: str
    lines: list[str]


def html(report: Report, advice: Advice, tree_sample: str | None = None) -> str:
    """Raises CannotCompare when `tree_sample` was not traced."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    recommendations = advice.recommendations
    script = (TEMPLATES / "viewer.js").read_text()
    budget = [chart for group in report.groups for chart in curves.budget_charts(group)]
    context = [table for group in report.groups if (table := tables.context_table(group, report))]
    return environment.get_template("report.html.j2").render(
        report=report,
        title=_title(report),
        cards=[_card(group, found) for group, found in zip(report.groups, recommendations, strict=True)],
        warnings=_warnings(report),
        notes=[(g.title, note) for g in report.groups for note in g.comparison.notes],
        cells=report.cells,
        paper=tables.paper_tables(report),
        quality=tables.quality_table(report),
        speed=tables.speed_table(report),
        acceptance=tables.acceptance_table(report),
        context=context,
        limits=advice.limits,
        everywhere=advice.everywhere,
        recommendations=[
            (found.group.title, found.text, tables.recommendation_table(found)) for found in recommendations
        ],
        budgets=tables.budget_table(advice.budgets) if advice.budgets else None,
        curves=_unique([*budget, *curves.temperature_charts(report)], "c"),
        distributions=_unique([c for g in report.groups for c in curves.acceptance_charts(g, report)], "d"),
        bars=_unique([chart for group in report.groups for chart in _bars(group, report)], "s"),
        floors=_floors(report),
        stage_times=stage_table(report),
        holm=tables.holm_note(report),
        viewer=viewer(report, tree_sample),
        origins=origins(report),
        data=data_block(report, recommendations),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=(TEMPLATES / "style.css").read_text(),
    )


def data_block(report: Report, recommendations: list[Recommendation]) -> str:
    """Every figure of the page as JSON that no text in it can end: each run's whole summary.json, and the estimates."""
    runs = []
    for group, found in zip(report.groups, recommendations, strict=True):
        for label, column in zip(group.labels, group.columns, strict=True):
            place = str(column.run.folder.path)
            estimates = {name: _plain(getattr(column, name)) for name in FIGURES}
            p_values = {name: getattr(column, name) for name in P_VALUES}
            runs.append(
                {
                    "folder": place,
                    "id": column.run.manifest.id,
                    "label": label,
                    "group": group.title,
                    "status": column.run.manifest.status,
                    "certificate": column.certificate,
                    "recommended": found.chosen is not None and found.chosen.column is column,
                    "samples_compared": column.samples,
                    "estimates": estimates,
                    **p_values,
                    "summary": report.summaries[place],
                }
            )
    values = {"notices": report.notices, "left_out": report.left_out, "runs": runs}
    text = json.dumps(_finite(values), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """JSON has no word for nan and infinity: they become text."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Estimate | None) -> dict[str, float | None] | None:
    return None if value is None else asdict(value)


def _title(report: Report) -> str:
    def some(names: list[str], plural: str) -> str:
        found = list(dict.fromkeys(names))
        return ", ".join(found) if len(found) <= 3 else f"{len(found)} {plural}"

    models = some([g.model for g in report.groups], "models")
    return f"{models} on {some([g.task for g in report.groups], 'tasks')}"


def _card(group: Group, found: Recommendation) -> Card:
    """The recommended setting, else the fastest certified one. Without a green certificate no speed-up is a headline."""

    def speed(pair: tuple[str, Any]) -> tuple[bool, float, float]:
        own = pair[1]
        return (
            own.certified,
            own.speed_up.value if own.speed_up else 0.0,
            own.acceptance_length.value if own.acceptance_length else 0,
        )

    if not group.drafting:
        return Card(group.title, group.labels[0], DASH, ["no drafting mode among the runs"])
    label, column = (found.chosen.label, found.chosen.column) if found.chosen else max(group.drafting, key=speed)
    lines = []
    if column.speed_up is not None:
        value = tables.speed_up(column).partition("\n")[0]
        lines.append(f"decode speed-up {value} {_interval(column.speed_up, '{:.2f}')}".strip())
    if column.acceptance_length is not None:
        length = column.acceptance_length
        lines.append(f"{length.value:.2f} tokens a round {_interval(length, '{:.2f}')}".strip())
    if column.score_difference is not None:
        score = column.score_difference
        lines.append(f"score {score.value:+.3f} {_interval(score, '{:+.3f}')}".strip())
    lines.append(f"exactness: {column.certificate}")
    lines.append("recommended" if found.chosen else "not recommended, see below")
    big = f"{column.speed_up.value:.2f}×" if column.speed_up and column.certified else DASH
    return Card(group.title, label, big, lines)


def _interval(value: Estimate, form: str) -> str:
    if value.low is None or value.high is None:
        return ""
    return f"[{form.format(value.low)}, {form.format(value.high)}]"


def _warnings(report: Report) -> list[str]:
    found = []
    for group in report.groups:
        for label, column in zip(group.labels, group.columns, strict=True):
            summary = report.summaries[str(column.run.folder.path)]
            found += [f"{label}, {group.title}: {warning}" for warning in summary.get("warnings", [])]
            written = column.run.folder.summary()
            if written is not None and written != summary:
                found.append(
                    f"{label}, {group.title}: summary.json is older than its records; this page is from records"
                )
    return found


def _bars(group: Group, report: Report) -> list[Chart]:
    rows = []
    for label, column in zip(group.labels, group.columns, strict=True):
        if found := stages(report.summaries[str(column.run.folder.path)]):
            rows.append((label, found))
    if not rows:
        return []
    title = f"A profiled round by stage, {group.title}"
    return [Chart(title, plots.stage_bars(title, rows, floor(group.columns[0].run.manifest).seconds))]


def _floors(report: Report) -> list[tuple[str, str]]:
    found = {}
    for group in report.groups:
        found[f"{group.model} on {group.hardware}"] = floor(group.columns[0].run.manifest).why
    return list(found.items())


def _unique(charts: list[Chart], prefix: str) -> list[Chart]:
    """matplotlib numbers the ids of each chart from one: give those of every chart a prefix of its own."""
    found = []
    for place, chart in enumerate(charts):
        own = f"{prefix}{place}-"
        svg = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{own}", chart.svg)
        found.append(Chart(chart.title, svg))
    return found
