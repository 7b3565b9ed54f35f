"""What a report advises, computed once for the terminal, the page and Markdown."""

from dataclasses import dataclass

from harness.report.groups import Group, Report
from harness.report.halves import BudgetChoice, choose_budgets
from harness.report.recommend import Limits, Recommendation, everywhere, recommend


@dataclass
class Advice:
    limits: Limits
    recommendations: list[Recommendation]  # one a group, in their order
    everywhere: list[str]  # one setting for all tasks and temperatures of a model and hardware
    budgets: list[tuple[Group, BudgetChoice]]


def advise(report: Report, limits: Limits) -> Advice:
    found = [recommend(group, report.summaries, limits) for group in report.groups]
    return Advice(
        limits,
        found,
        everywhere(found),
        [(group, choice) for group in report.groups for choice in choose_budgets(group)],
    )
