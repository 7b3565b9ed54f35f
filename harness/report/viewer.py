"""The tree viewer: rounds of one profiled sample, drawn before the page is opened; a script only shows and hides."""

from dataclasses import dataclass

from harness.records import Round, SampleRecord, TreeTrace
from harness.report.compare import CannotCompare
from harness.report.groups import Report
from harness.report.trees import tree_svg

MAX_RUNS = 8
MAX_DRAWN = 64  # rounds over all runs: what keeps a page small
FEWEST = 6  # rounds of a run, however many runs there are


@dataclass
class DrawnRound:
    place: int
    caption: str
    said: str  # the text that the round committed
    svg: str


@dataclass
class DrawnRun:
    label: str
    total: int  # rounds of the sample
    rounds: list[DrawnRound]


@dataclass
class Viewer:
    sample_id: str
    runs: list[DrawnRun]
    start: tuple[int, int]  # run and round shown first: of the largest trees the one that accepted most


def viewer(report: Report, sample_id: str | None = None) -> Viewer | None:
    """None when no run was profiled with traces. Raises CannotCompare for a sample that was not traced."""
    traced: dict[str, list[tuple[str, SampleRecord]]] = {}
    for group in report.groups:
        for label, column in group.drafting:
            for record in report.profiles[str(column.run.folder.path)]:
                if record.trees:
                    name = label if len(report.groups) == 1 else f"{label}, {group.title}"
                    traced.setdefault(record.sample_id, []).append((name, record))
    if sample_id is not None and sample_id not in traced:
        known = ", ".join(sorted(traced)) or "none; run.profile=N traces N samples"
        raise CannotCompare(f"--tree-sample {sample_id}: no tree of it was traced. Traced: {known}")
    if not traced:
        return None
    chosen = sample_id or max(traced, key=lambda name: (len(traced[name]), name))
    members = traced[chosen][:MAX_RUNS]
    most = max(FEWEST, MAX_DRAWN // len(members))
    runs = [_draw(label, record, most) for label, record in members]
    largest = max(range(len(runs)), key=lambda i: max(r.num_nodes for r in members[i][1].rounds))
    accepted = [r.num_accepted for r in members[largest][1].rounds[: len(runs[largest].rounds)]]
    return Viewer(chosen, runs, (largest, accepted.index(max(accepted))))


def _draw(label: str, record: SampleRecord, most: int) -> DrawnRun:
    trees = (record.trees or [])[:most]
    rounds = [_round(i, r, tree) for i, (r, tree) in enumerate(zip(record.rounds, trees, strict=False))]
    return DrawnRun(label, len(record.rounds), rounds)


def _round(place: int, r: Round, tree: TreeTrace) -> DrawnRound:
    shown = len(tree.tokens) - 1
    nodes = f"{r.num_nodes} draft nodes" + (f" ({shown} shown)" if shown < r.num_nodes else "")
    expected = "" if r.expected_accepted is None else f", {r.expected_accepted:.2f} expected"
    caption = f"{nodes}, {r.num_accepted} accepted{expected}, context of {r.context_length} tokens"
    committed = [tree.texts[node] if node < len(tree.texts) else "" for node in tree.path[1:]] + [tree.bonus_text]
    return DrawnRound(place, caption, "".join(committed[: r.num_emitted]), tree_svg(tree))
