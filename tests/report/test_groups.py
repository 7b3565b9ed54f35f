"""Sorting runs: what a table may vary, what must be listed, what is set aside, and how many comparisons are counted."""

from typing import Any

import pytest

from harness.report.agreement import Difference, unexplained
from harness.report.compare import CannotCompare, Run
from harness.report.groups import labels, report

T10 = {"sampling": {"name": "t10", "temperature": 1.0}}


def read(*folders: Any) -> list[Run]:
    return [Run.read(str(folder.path)) for folder in folders]


@pytest.mark.parametrize(
    ("keys", "left"),
    [
        (["asked.sampling.temperature", "asked.sampling.name", "resolved.sampling.temperature"], []),
        (["resolved.sampling.temperature"], ["resolved.sampling.temperature"]),  # not asked differently: a surprise
        (["asked.model.name", "resolved.sources.target.sha256.a", "resolved.stop_ids", "resolved.engine.dtype"], []),
        (["asked.hardware.name", "hardware_seen.cpu", "resolved.engine.threads"], []),
        (["hardware_seen.cpu"], ["hardware_seen.cpu"]),  # one profile, two machines
        (["asked.task.name", "resolved.sources.data.path", "resolved.task.version"], []),
        (["asked.hardware.name", "versions.torch", "asked.engine.dtype"], ["versions.torch", "asked.engine.dtype"]),
        (["asked.sampling.temperature", "asked.sampling.top_p"], ["asked.sampling.top_p"]),
        (["asked.task.name", "asked.taskmaster"], ["asked.taskmaster"]),
    ],
)
def test_what_a_factor_explains(keys: list[str], left: list[str]) -> None:
    assert [found.key for found in unexplained([Difference(key, 1, 2) for key in keys])] == left


def test_groups_are_runs_that_agree(run, sample) -> None:
    samples = [sample(c, [1, 1]) for c in "abc"]
    folders = [
        run("tree-hot", samples, asked=T10),
        run("base-cold", samples, "autoregressive"),
        run("tree-cold", samples, speculative={"tree_budget": 16}),
        run("base-hot", samples, "autoregressive", asked=T10),
    ]
    found = report(read(*folders), [])
    assert [(g.title, g.labels) for g in found.groups] == [
        ("humaneval at T=0.6", ["autoregressive", "ddtree 16"]),
        ("humaneval at T=1", ["autoregressive", "ddtree"]),
    ]
    assert found.notices == []
    # Two drafting runs, a speed-up and a score difference each.
    assert len(found.adjusted) == 4
    assert found.adjusted[str(folders[2].path), "score_difference"] == 1.0


def test_groups_that_share_a_title_are_numbered_and_told_apart(run, sample) -> None:
    samples = [sample(c, [1, 1]) for c in "ab"]
    found = report(read(run("a", samples), run("b", samples), run("c", samples, versions={"torch": "9"})), [])
    assert [group.title for group in found.groups] == ["humaneval at T=0.6 (1)", "humaneval at T=0.6 (2)"]
    assert found.notices[1].endswith("versions.torch: '(absent)' against '9'")


def test_labels_name_what_sets_runs_apart(run, sample) -> None:
    one = [sample("a", [1])]
    folders = [
        run("a", one, speculative={"tree_budget": 16, "scale": 1.0}),
        run("b", one, speculative={"tree_budget": 16, "scale": 1.5}),
        run("c", one, "dflash"),
        run("d", one, "dflash"),
    ]
    assert labels(read(*folders)) == ["ddtree 16 scale=1.0", "ddtree 16 scale=1.5", "dflash (c)", "dflash (d)"]


def test_a_run_without_samples_and_a_barely_begun_one_hide_nothing(run, sample) -> None:
    samples = [sample(c, [1, 1]) for c in "abcd"]
    error = sample("a", [], status="error", error="RuntimeError: x", output_ids=[])
    folders = [
        run("base", samples, "autoregressive"),
        run("tree", samples),
        run("raised", [error], "dflash", status="failed"),
        run("cancelled", samples[:1], "dflash", status="interrupted", samples_planned=4),
        run("half", samples[:2], "dflash", status="interrupted", samples_planned=4),
        run("empty", [], "dflash", status="failed"),
    ]
    found = report(read(*folders), [])
    names = [column.run.folder.path.name for group in found.groups for column in group.columns]
    assert names == ["base", "half", "tree"]
    assert [column.samples for column in found.groups[0].columns] == [2, 2, 2]
    text = "\n".join(found.left_out)
    assert "raised: no finished sample, status failed, first error: RuntimeError: x" in text
    assert "cancelled: interrupted after 1 of 4 samples" in text
    assert "empty: no finished sample" in text


def test_a_pair_is_compared_however_little_is_shared(run, sample) -> None:
    samples = [sample(c, [1, 1]) for c in "abcd"]
    begun = run("begun", samples[:1], "dflash", status="interrupted", samples_planned=4)
    found = report(read(run("base", samples, "autoregressive"), begun), [])
    assert [column.samples for column in found.groups[0].columns] == [1, 1]
    assert found.left_out == []


def test_a_group_that_cannot_be_compared_leaves_the_others(run, sample) -> None:
    samples = [sample(c, [1, 1]) for c in "ab"]
    folders = [run("a", samples), run("b", samples, "dflash"), run("c", samples, asked=T10)]
    folders.append(run("d", [sample("z", [1])], "dflash", asked=T10))
    found = report(read(*folders), [])
    assert len(found.groups) == 1
    assert "share no finished sample" in found.left_out[0]


def test_nothing_to_report_is_an_error(run, sample) -> None:
    with pytest.raises(CannotCompare, match="No run with a finished sample"):
        report(read(run("a", [sample("a", [], status="error", error="x", output_ids=[])])), [])
