"""Many runs sorted into groups that may be compared inside, with what differs between the groups."""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from harness.metrics import summarize
from harness.records import SampleRecord
from harness.report.agreement import differences, facts, unexplained
from harness.report.compare import CannotCompare, Column, Comparison, Run, compare
from harness.report.significance import holm
from harness.report.table import Table


@dataclass
class Group:
    """Runs of one model, task, temperature and hardware, all other facts equal, and their comparison."""

    model: str
    hardware: str
    task: str
    temperature: float | None
    comparison: Comparison
    labels: list[str]  # of the columns: the mode and what sets it apart
    title: str = ""
    number: int | None = None  # where another group has the same model, hardware, task and temperature

    @property
    def columns(self) -> list[Column]:
        return self.comparison.columns

    @property
    def drafting(self) -> list[tuple[str, Column]]:
        """Label and column of the runs that are held against the baseline."""
        return [p for p in zip(self.labels, self.columns, strict=True) if p[1].run.mode != "autoregressive"]


@dataclass
class Report:
    """Everything a page shows, computed once."""

    groups: list[Group]
    notices: list[str]  # what a reader must know before any figure
    left_out: list[str]  # runs that are in no table, each with the reason
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)  # by run folder: metrics from records alone
    profiles: dict[str, list[SampleRecord]] = field(default_factory=dict)
    cells: Table | None = None  # of a sweep: how every cell stands, also those that left no run
    adjusted: dict[tuple[str, str], float] = field(default_factory=dict)  # (folder, figure): p-value after Holm

    @property
    def runs(self) -> list[Run]:
        return [column.run for group in self.groups for column in group.columns]


def report(runs: list[Run], left_out: list[str], cells: Table | None = None) -> Report:
    """Raises CannotCompare when no group is left, or a single group cannot be compared."""
    groups: list[Group] = []
    aside = list(left_out)
    sorted_runs: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        sorted_runs[json.dumps(facts(run.manifest), sort_keys=True, default=str)].append(run)
    for members in sorted_runs.values():
        kept = _set_aside(members, aside)
        if not kept:
            continue
        try:
            comparison = compare(sorted(kept, key=_place))
        except CannotCompare as error:
            if len(sorted_runs) == 1:
                raise
            aside.append(f"{', '.join(str(run.folder.path) for run in kept)}: {error}")
            continue
        groups.append(_group(comparison))
    if not groups:
        raise CannotCompare("No run with a finished sample among them.\n" + "\n".join(aside))
    groups.sort(key=lambda g: (g.model, g.hardware, g.task, g.temperature if g.temperature is not None else -1.0))
    _entitle(groups)
    found = Report(groups, _notices(groups), aside, cells=cells)
    for run in found.runs:
        place = str(run.folder.path)
        found.profiles[place] = run.folder.records("profile.jsonl")
        found.summaries[place] = summarize(list(run.records.values()), found.profiles[place], run.manifest)
    found.adjusted = _adjust(groups)
    return found


def labels(runs: list[Run]) -> list[str]:
    """The mode, its budget, and every other setting of the mode in which runs of that mode differ."""
    by_mode: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        by_mode[run.mode].append(_settings(run))
    found = []
    for run in runs:
        own = _settings(run)
        keys = sorted({key for other in by_mode[run.mode] for key in other})
        apart = [k for k in keys if len({repr(other.get(k)) for other in by_mode[run.mode]}) > 1]
        words = [run.mode, *([] if run.tree_budget is None else [str(run.tree_budget)])]
        found.append(" ".join([*words, *(f"{key}={own.get(key)}" for key in apart if key != "tree_budget")]))
    return [f"{label} ({run.folder.path.name})" if found.count(label) > 1 else label
            for label, run in zip(found, runs, strict=True)]  # fmt: skip


def temperature(run: Run) -> float | None:
    """As resolved; "checkpoint" may have been asked for."""
    sampling = run.manifest.asked.get("sampling", {})
    value = run.manifest.resolved.get("sampling", sampling).get("temperature", sampling.get("temperature"))
    return float(value) if isinstance(value, (int, float)) else None


def _settings(run: Run) -> dict[str, Any]:
    hidden = ("name", "_target_")
    return {k: v for k, v in run.manifest.asked.get("speculative", {}).items() if k not in hidden}


def _place(run: Run) -> tuple[Any, ...]:
    order = {"autoregressive": 0, "dflash": 1}
    return order.get(run.mode, 2), run.mode, run.tree_budget or 0, str(run.folder.path)


def _set_aside(members: list[Run], aside: list[str]) -> list[Run]:
    """Runs without samples, and of three or more those that would shrink what the others share, are named instead."""
    most, kept = max(len(run.ok) for run in members), []
    for run in members:
        done, status = len(run.ok), run.manifest.status
        if not done:
            errors = [record.error for record in run.records.values() if record.error]
            why = f"no finished sample, status {status}" + (f", first error: {errors[0]}" if errors else "")
            aside.append(f"{run.folder.path}: {why}")
        elif len(members) > 2 and status in ("running", "interrupted") and 2 * done < most:
            aside.append(f"{run.folder.path}: {status} after {done} of {run.manifest.samples_planned or '?'} samples")
        else:
            kept.append(run)
    return kept


def _group(comparison: Comparison) -> Group:
    runs = [column.run for column in comparison.columns]
    asked = runs[0].manifest.asked
    model, hardware, task = (str(asked.get(name, {}).get("name", "?")) for name in ("model", "hardware", "task"))
    return Group(model, hardware, task, temperature(runs[0]), comparison, labels(runs))


def _entitle(groups: list[Group]) -> None:
    """Task and temperature; model and hardware where they vary; a number where even that is not enough."""
    shown = [name for name in ("model", "hardware") if len({getattr(g, name) for g in groups}) > 1]
    for group in groups:
        heat = "T=?" if group.temperature is None else f"T={group.temperature:g}"
        group.title = ", ".join([f"{group.task} at {heat}", *(getattr(group, name) for name in shown)])
    for title in {g.title for g in groups}:
        same = [g for g in groups if g.title == title]
        for number, group in enumerate(same if len(same) > 1 else [], start=1):
            group.number, group.title = number, f"{group.title} ({number})"


def _notices(groups: list[Group]) -> list[str]:
    """Facts in which groups differ and that no factor explains, against the first group."""
    first, lines = groups[0], []
    for other in groups[1:]:
        pair = first.columns[0].run.manifest, other.columns[0].run.manifest
        lines += [f"{first.title} and {other.title}: {found}" for found in unexplained(differences(*pair))]
    if lines:
        lines.insert(0, "These runs differ in more than mode, temperature, budget, hardware, model and task:")
    return lines


def _adjust(groups: list[Group]) -> dict[tuple[str, str], float]:
    family: dict[tuple[str, str], float] = {}
    for group in groups:
        for _, column in group.drafting:
            for figure in ("speed_up", "score_difference"):
                p_value = getattr(column, f"{figure}_p")
                if p_value is not None:
                    family[str(column.run.folder.path), figure] = p_value
    return dict(zip(family, holm(list(family.values())), strict=True))
