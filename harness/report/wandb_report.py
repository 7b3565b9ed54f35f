"""`make report-wandb`: a Weights & Biases report that sets modes, temperatures, budgets and hardware side by side.

With a key it is saved online, where the runs were uploaded; without one the same specification is written as JSON. Both
are first read back through the library's own model, so that a panel it would not understand is an error here.
The reports API has moved between packages and releases before: another release than the tested ones is refused.
"""

import argparse
import json
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.report.agreement import differences, unexplained
from harness.report.compare import Run
from harness.report.groups import temperature
from harness.report.selection import select

PACKAGE = "wandb-workspaces"
TESTED = ((0, 4, 13), (0, 5))  # from, and below
INSTEAD = "`make report` needs neither a server nor this package and shows the same figures."
FIGURES = (
    ("Acceptance length, tokens a round", "acceptance_length/pooled"),
    ("Decode tokens/s", "throughput/decode_tokens_per_s"),
    ("Score", "quality/score"),
)
WIDTH, HEIGHT = 8, 7  # three panels fill the 24 columns of a row


def load() -> Any:
    """The reports module. Raises ValueError when the package is missing, untested, or has moved its API again."""
    wanted = f"{'.'.join(map(str, TESTED[0]))} or newer, below {'.'.join(map(str, TESTED[1]))}"
    fix = f"install it with `pip install -c constraints.txt {PACKAGE}`. {INSTEAD}"
    try:
        found = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError as error:
        raise ValueError(f"{PACKAGE} is not installed ({wanted} is needed): {fix}") from error
    if not TESTED[0] <= _numbers(found) < TESTED[1]:
        raise ValueError(f"{PACKAGE} {found} is installed, and this report is written for {wanted}: {fix}")
    try:
        import wandb_workspaces.reports.v2 as wr
    except ImportError as error:
        raise ValueError(f"{PACKAGE} {found} has no wandb_workspaces.reports.v2 ({error}): {fix}") from error
    return wr


def compose(runs: list[Run], *, title: str, project: str, entity: str = "", online: bool = False) -> Any:
    """The report object. Offline its run sets name no project: the library would look it up on the server."""
    wr = load()
    place = {"entity": entity, "project": project} if online else {}
    ids = sorted({run.manifest.id for run in runs})

    def grid(name: str, filters: list[Any], panels: list[Any]) -> Any:
        from wandb_workspaces import expr

        return wr.PanelGrid(
            runsets=[wr.Runset(name=name, filters=[expr.Metric("ID").isin(ids), *filters], **place)], panels=panels
        )

    blocks = [wr.H1(title), wr.MarkdownBlock("\n".join([_about(runs), *_surprises(runs)])), wr.TableOfContents()]
    blocks += [wr.H2("Modes"), grid("all runs", [], _bars(wr, "speculative.name"))]
    if len({temperature(run) for run in runs}) > 1:
        blocks += [wr.H2("Temperatures"), grid("all runs", [], _scatter(wr, "resolved.sampling.temperature"))]
    if len({run.tree_budget for run in runs} - {None}) > 1:
        from wandb_workspaces import expr

        trees = expr.Config("speculative.tree_budget") >= 1
        blocks += [wr.H2("Tree budgets"), grid("trees", [trees], _scatter(wr, "speculative.tree_budget", log_x=True))]
    if len({_asked(run, "hardware", "name") for run in runs}) > 1:
        blocks += [wr.H2("Hardware"), grid("all runs", [], _bars(wr, "hardware.name"))]
    comparer = wr.RunComparer(diff_only="split", layout=wr.Layout(x=0, y=0, w=24, h=12))
    blocks += [wr.H2("What differs"), grid("all runs", [], [comparer])]
    return wr.Report(
        project=project, entity=entity, title=title, description=_about(runs), blocks=blocks, width="fluid"
    )


def spec(report: Any) -> dict[str, Any]:
    """The specification as JSON values, checked: read back through the library's model, it must come out the same.

    Raises ValueError when it does not, or when the library does not know a block of it.
    """
    from wandb_workspaces.reports.v2 import internal

    model = report._to_model()
    values = json.loads(model.spec.model_dump_json(by_alias=True, exclude_none=True))
    document = {"displayName": model.display_name, "description": model.description, "spec": values}
    document["project"] = {"name": report.project, "entityName": report.entity}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the library only warns of a block that it cannot read
        try:
            back = type(report)._from_model(internal.ReportViewspec.model_validate(document))
            back.width = report.width  # 0.4.13 forgets it when it reads
            again = json.loads(back._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))
        except (ValueError, TypeError, Warning) as error:
            raise ValueError(f"{PACKAGE} does not read its own specification: {error}. {INSTEAD}") from error
    if again != values:
        raise ValueError(f"{PACKAGE} reads the specification back as another one. {INSTEAD}")
    return document


def save(runs: list[Run], *, title: str, project: str, entity: str) -> str:
    """Save online and return the address. Raises ValueError when the server refuses."""
    import wandb

    try:
        report = compose(
            runs, title=title, project=project, entity=entity or str(wandb.Api().default_entity), online=True
        )
        spec(report)
        return str(report.save().url)
    except Exception as error:  # the library raises bare exceptions
        raise ValueError(
            f"the report was not saved online: {error}. Upload the runs first with `make sync`, and check "
            f"tracking.entity and tracking.project. {INSTEAD}"
        ) from error


def has_key() -> bool:
    import wandb

    try:
        return bool(wandb.login(prompt=False, verify=False))
    except (wandb.errors.Error, ValueError):
        return False


def tracked_project(runs: list[Run]) -> tuple[str, str]:
    """(entity, project) that the runs were tracked under. Raises ValueError when there is none, or more than one."""
    found = {
        (str(_asked(run, "tracking", "entity") or ""), str(_asked(run, "tracking", "project")))
        for run in runs
        if _asked(run, "tracking", "project")
    }
    if not found:
        raise ValueError(
            f"none of these runs was tracked (tracking=none): there is nothing in W&B to report on. {INSTEAD}"
        )
    if len(found) > 1:
        names = ", ".join("/".join(part for part in pair if part) for pair in sorted(found))
        raise ValueError(
            f"these runs were tracked in several projects, {names}: choose one with --entity and --project"
        )
    return found.pop()


def main(arguments: list[str] | None = None) -> int:
    """0, or 2 when there is nothing to report on or the library cannot be used."""
    options = _parser().parse_args(arguments)
    try:
        runs, _, _ = select(options.runs, options.outputs, options.sweep)
        entity, project = ("", options.project) if options.project else tracked_project(runs)
        names = {"title": options.title, "project": project, "entity": options.entity or entity}
        if not options.offline and has_key():
            print(f"Saved online: {save(runs, **names)}")
            return 0
        document = spec(compose(runs, **names))
    except ValueError as error:
        print(f"report-wandb: {error}", file=sys.stderr)
        return 2
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"No Weights & Biases key is used: the specification, checked, is in {out}")
    return 0


def _bars(wr: Any, group: str) -> list[Any]:
    return [
        wr.BarPlot(
            title=f"{title} by {group}",
            metrics=[wr.SummaryMetric(metric)],
            groupby=wr.Config(group),
            groupby_aggfunc="mean",
            groupby_rangefunc="minmax",
            orientation="v",
            layout=wr.Layout(x=WIDTH * place, y=0, w=WIDTH, h=HEIGHT),
        )
        for place, (title, metric) in enumerate(FIGURES)
    ]


def _scatter(wr: Any, setting: str, log_x: bool | None = None) -> list[Any]:
    return [
        wr.ScatterPlot(
            title=f"{title} over {setting}",
            x=wr.Config(setting),
            y=wr.SummaryMetric(metric),
            log_x=log_x,
            layout=wr.Layout(x=WIDTH * place, y=0, w=WIDTH, h=HEIGHT),
        )
        for place, (title, metric) in enumerate(FIGURES)
    ]


def _about(runs: list[Run]) -> str:
    commits = sorted({run.manifest.versions.get("commit", "unknown") for run in runs})
    return (
        f"{len(runs)} runs, code at {', '.join(commits)}. A copy: intervals, paired differences and the checks that runs "
        "may be compared are in the page that `make report` writes from the records."
    )


def _surprises(runs: list[Run]) -> list[str]:
    """Markdown lines of the facts in which runs differ and that no factor of this report explains."""
    found = {str(d): None for run in runs[1:] for d in unexplained(differences(runs[0].manifest, run.manifest))}
    head = "\n**These runs differ in more than mode, temperature, budget, hardware, model and task:**\n"
    return [head, *(f"- `{line.replace('`', ' ')}`" for line in found)] if found else []


def _asked(run: Run, group: str, key: str) -> Any:
    return run.manifest.asked.get(group, {}).get(key)


def _numbers(version: str) -> tuple[int, ...]:
    parts = []
    for part in version.split(".")[:3]:
        digits = "".join(c for c in part if c.isdigit())
        parts.append(int(digits) if digits else 0)
    return tuple(parts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness.report.wandb_report", description=__doc__.split("\n")[0])
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="run folders; none: the newest and all that agree with it"
    )
    parser.add_argument("--outputs", default="outputs", metavar="DIR", help="where runs are looked for")
    parser.add_argument("--sweep", metavar="NAME", help="all runs of this sweep")
    parser.add_argument("--title", default="Draft-tree speculative decoding at temperature")
    parser.add_argument("--project", help="default: the one that the runs were tracked in")
    parser.add_argument("--entity", help="default: the one that the runs were tracked under, else your own")
    parser.add_argument("--offline", action="store_true", help="write the specification even where there is a key")
    parser.add_argument("--out", default="outputs/report/wandb_report.json", metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
