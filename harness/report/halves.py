"""The tree budget chosen on one half of the samples and reported on the other.

Choosing the best of several budgets and reporting it on the same samples flatters it: the winner was also lucky. The
halves are fixed by a hash of the sample id, so every run, machine and rerun splits alike.
"""

import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace

from harness.report.compare import CannotCompare, Column, Run, compare
from harness.report.groups import Group
from harness.report.statistics import Estimate

FIGURES = {"speed_up": "speed-up", "acceptance_length": "acceptance length"}


@dataclass
class BudgetChoice:
    """`figure` decided. `chosen_on` and `reported_on` count samples; `flattered` is the winner's value on all of them."""

    setting: str
    figure: str
    budget: int
    chosen_on: int
    reported_on: int
    selection: dict[int, float]  # budget -> value on the choosing half
    result: Estimate  # of the chosen budget on the other half
    flattered: float  # of the best budget on all samples


def half(sample_id: str) -> int:
    """0: choose on it; 1: report on it."""
    return hashlib.sha256(sample_id.encode()).digest()[0] & 1


def choose_budgets(group: Group) -> list[BudgetChoice]:
    """One for each drafting setting that was run with two budgets or more; none where a half has no sample."""
    families: dict[str, list[tuple[str, Column]]] = defaultdict(list)
    for label, column in group.drafting:
        if column.run.tree_budget is not None:
            families[" ".join(w for w in label.split() if w != str(column.run.tree_budget))].append((label, column))
    found = []
    for setting, members in families.items():
        if len({column.run.tree_budget for _, column in members}) < 2:
            continue
        runs = [column.run for _, column in members]
        if choice := _choose(setting, runs, [c for _, c in members], group.comparison.baseline):
            found.append(choice)
    return found


def _choose(setting: str, runs: list[Run], columns: list[Column], baseline: Run | None) -> BudgetChoice | None:
    sides = []
    for side in (0, 1):
        try:
            compared = compare([_on(run, side) for run in [*([baseline] if baseline else []), *runs]])
        except CannotCompare:
            return None
        sides.append(compared.columns[1 if baseline else 0 :])
    for figure in FIGURES:
        values = [getattr(column, figure) for column in (*sides[0], *sides[1], *columns)]
        if any(value is None for value in values):
            continue
        budgets = [run.tree_budget or 0 for run in runs]
        selection = [getattr(column, figure).value for column in sides[0]]
        best = max(range(len(runs)), key=lambda i: selection[i])
        return BudgetChoice(
            setting=setting,
            figure=FIGURES[figure],
            budget=budgets[best],
            chosen_on=sides[0][0].samples,
            reported_on=sides[1][0].samples,
            selection=dict(zip(budgets, selection, strict=True)),
            result=getattr(sides[1][best], figure),
            flattered=max(getattr(column, figure).value for column in columns),
        )
    return None


def _on(run: Run, side: int) -> Run:
    return replace(run, records={key: record for key, record in run.records.items() if half(key[0]) == side})
