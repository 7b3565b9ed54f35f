"""What a comparison shows, what it leaves out, and what it refuses."""

from typing import Any

import pytest

from harness.report.agreement import differences
from harness.report.compare import CannotCompare, Run, compare
from harness.report.statistics import speed_up

BASE = {"mode": "autoregressive"}


def compared(*folders: Any):
    return compare([Run.read(str(folder.path)) for folder in folders])


@pytest.fixture
def twins(run, sample):
    """An autoregressive run and a tree run on four samples, the tree twice as fast a token."""
    base = run("base", [sample(c, [0] * 9, nodes=0, seconds=9.0) for c in "abcd"], "autoregressive")
    tree = run("tree", [sample(c, [2, 2, 2], seconds=4.5) for c in "abcd"], speculative={"tree_budget": 16})
    return base, tree


def test_the_columns(twins) -> None:
    found = compared(*twins)
    base, tree = found.columns
    assert (base.acceptance_length.value, tree.acceptance_length.value) == (1, 3)
    assert (base.decode_tokens_per_s, tree.decode_tokens_per_s) == (1, 2)
    assert base.speed_up is None
    assert tree.speed_up.value == pytest.approx(2)
    assert tree.certificate == "no certificate"
    assert tree.score_difference.value == 0
    assert found.baseline.mode == "autoregressive"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"asked": {"sampling": {"name": "t06", "temperature": 1.0}}}, "asked.sampling.temperature: 0.6 against 1.0"),
        (
            {"asked": {"engine": {"name": "hf", "dtype": "bfloat16"}}},
            "asked.engine.dtype: 'float32' against 'bfloat16'",
        ),
        ({"asked": {"run": {"limit": 8, "subset_seed": 1}}}, "asked.run.subset_seed: 0 against 1"),
        ({"resolved": {"target": {"sha256": "b"}}}, "resolved.target.sha256: '(absent)' against 'b'"),
        ({"versions": {"torch": "2.0"}}, "versions.torch: '(absent)' against '2.0'"),
        ({"hardware_seen": {"cpu": "x"}}, "hardware_seen.cpu: '(absent)' against 'x'"),
    ],
)
def test_other_facts_that_differ_are_refused_by_name(run, sample, twins, changes: dict, line: str) -> None:
    other = run("other", [sample("a", [1])], **changes)
    with pytest.raises(CannotCompare) as refused:
        compared(twins[0], other)
    assert line in str(refused.value)
    assert "base and" in str(refused.value)


def test_every_differing_key_is_named(run, sample, twins) -> None:
    other = run("other", [sample("a", [1])], asked={"task": {"name": "math500"}}, versions={"torch": "2"})
    with pytest.raises(CannotCompare, match=r"asked.task.name: .*\n.*versions.torch"):
        compared(twins[0], other)


def test_mode_tracking_limit_and_drafter_may_differ(run, sample) -> None:
    drafted = {
        "sources": {"drafter": {"sha256": "a"}, "target": {"sha256": "t", "path": "here"}},
        "engine": {"drafter_dtype": "float32", "block_size": 16, "nodes_per_round": 17, "threads": 2},
    }
    plain = {
        "sources": {"target": {"sha256": "t", "path": "there"}},
        "engine": {"block_size": 1, "nodes_per_round": 1, "threads": 2},
    }
    one = run("one", [sample("a", [1])], resolved=drafted)
    two = run(
        "two",
        [sample("a", [1])],
        "autoregressive",
        resolved=plain,
        asked={"run": {"limit": 99, "subset_seed": 0}, "tracking": {"name": "none"}},
        measured={"peak_memory_bytes": 5},
    )
    assert differences(one.manifest(), two.manifest()) == []


def test_other_sample_sets_are_compared_on_the_common_ones(run, sample) -> None:
    base = run("base", [sample(c, [0] * 6, nodes=0, seconds=6.0) for c in "abc"], "autoregressive")
    failed = sample("b", [], status="error", error="x", output_ids=[])
    tree = run("tree", [sample("a", [2, 2], seconds=2.0), failed, sample("c", [2, 2], seconds=4.0), sample("d", [1])])
    found = compared(base, tree)
    assert [column.samples for column in found.columns] == [2, 2]
    assert found.columns[1].speed_up.value == pytest.approx(12 / 6)
    assert found.columns[1].rates["error"] == 0.25
    assert any(note.startswith("Compared on the 2 samples") for note in found.notes)


def test_no_common_sample_and_other_prompts_are_refused(run, sample, twins) -> None:
    with pytest.raises(CannotCompare, match="share no finished sample"):
        compared(twins[0], run("far", [sample("z", [1])]))
    with pytest.raises(CannotCompare, match="Sample a repeat 0 was given different prompts"):
        compared(twins[0], run("asked-otherwise", [sample("a", [1], prompt_sha256="other")]))


def test_looping_samples_stay_out_of_the_speed_up(run, sample) -> None:
    """A loop is easy to draft: it would flatter the headline."""
    loop = {"repetition": True}
    base = run("base", [sample(c, [0] * 9, nodes=0, seconds=9.0) for c in "abcd"], "autoregressive")
    honest = [sample(c, [2, 2, 2], seconds=4.5) for c in "abc"]
    tree = run("tree", [*honest, sample("d", [8], seconds=0.1, flags=loop)])
    found = compared(base, tree)
    assert found.columns[1].speed_up.value == pytest.approx(2)
    assert found.degenerate == 1
    assert any("1 of 4 samples fell into a loop" in note for note in found.notes)
    assert found.columns[1].rates["repetition"] == 0.25


def test_speed_up_shares_batch_time_and_joins_repeats(run, sample) -> None:
    def pair(seconds: float, **values: Any) -> list:
        return [sample(c, [0] * 4, seconds=seconds, repeat=r, **values) for c in "ab" for r in (0, 1)]

    base = run("base", pair(4.0), "autoregressive")
    tree = run("tree", pair(4.0, batch_size=2))
    found = compared(base, tree).columns[1].speed_up
    assert found == speed_up([8, 8], [8, 8], [4, 4], [8, 8])


def test_an_unfinished_run_is_marked(run, sample, twins) -> None:
    cut = run("cut", [sample("a", [1])], status="interrupted", samples_planned=8)
    assert any("cut is interrupted, 1 of 8 samples" in note for note in compared(twins[0], cut).notes)


def test_without_a_baseline_there_is_no_speed_up(run, sample) -> None:
    found = compared(run("x", [sample("a", [1])], "dflash"), run("y", [sample("a", [1])]))
    assert [column.speed_up for column in found.columns] == [None, None]
    assert found.notes[0].startswith("No autoregressive run")


def test_outputs_are_compared_only_where_the_noise_is_shared(run, sample, twins) -> None:
    assert compared(*twins).columns[1].equal_outputs is None
    assert any("cannot be compared one by one" in note for note in compared(*twins).notes)
    coupled = {"verifier": "coupled"}
    base = run("c1", [sample("a", [0, 0]), sample("b", [0, 0])], "autoregressive", speculative=coupled)
    other = sample("b", [1], output_ids=[0, 1, 99])
    tree = run("c2", [sample("a", [1]), other], speculative=coupled)
    assert compared(base, tree).columns[1].equal_outputs == 1


def test_an_unscored_task_and_untimed_samples_show_nothing(run, sample) -> None:
    base = run("base", [sample("a", [0], score=None, decode_s=None)], "autoregressive")
    tree = run("tree", [sample("a", [1], score=None, decode_s=None)])
    column = compared(base, tree).columns[1]
    assert (column.score, column.score_difference, column.speed_up, column.decode_tokens_per_s) == (None,) * 4


def test_a_sample_without_rounds_is_no_speed_sample(run, sample) -> None:
    """Its one token came from prefill. The other sample alone makes the figure, on both sides."""
    base = run("base", [sample("a", [0] * 4, seconds=4.0), sample("b", [0] * 9, seconds=90.0)], "autoregressive")
    tree = run("tree", [sample("a", [1, 1], seconds=2.0), sample("b", [], seconds=0.0)])
    assert compared(base, tree).columns[1].speed_up.value == pytest.approx(2)


def test_the_tokens_a_second_of_a_column_leave_loops_out(run, sample) -> None:
    honest = [sample(c, [2, 2, 2], seconds=4.5) for c in "abc"]
    tree = run("tree", [*honest, sample("d", [8], seconds=0.001, flags={"repetition": True})])
    assert compared(tree).columns[0].decode_tokens_per_s == pytest.approx(9 / 4.5)


def test_later_turns_have_a_history_of_their_own(run, sample) -> None:
    """They are timed and scored together, but their outputs answer to different prompts."""

    def turns(mode: str, **changes: Any):
        second = sample("a/turn-2", [1, 1], turn=2, prompt_sha256=f"history of {mode}")
        return run(
            mode, [sample("a", [1, 1]), second], mode, asked={"sampling": {"name": "t0", "temperature": 0}}, **changes
        )

    found = compared(turns("autoregressive"), turns("ddtree"))
    tree = found.columns[1]
    assert tree.samples == 2
    assert tree.speed_up is not None
    assert (tree.equal_outputs, tree.compared_outputs) == (1, 1)
    assert any("1 later turns" in note for note in found.notes)
