"""Grading stored answers again: other scores, the same answers, nothing lost, nothing decoded."""

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from harness import rescore
from harness.compose import compose
from harness.evaluate import evaluate
from harness.records import RunFolder, SampleRecord


@pytest.fixture(scope="module")
def finished(tiny_pair: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of three conversations of two turns, decoded once: {"run": folder, "data": file}."""
    folder = tmp_path_factory.mktemp("finished")
    rows = [{"id": f"p{number}", "turns": [f"say {number}", "and again"]} for number in range(3)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [
        f"model.target={tiny_pair['target']}", f"model.drafter={tiny_pair['drafter']}", "task=jsonl",
        "task._target_=tests.grading_tasks.Toy", "+task.letter=a", "+task.fail=false", f"task.path={folder / 'data.jsonl'}",
        "tracking=none", "engine.dtype=float32", "sampling.max_new_tokens=24", "run.limit=null",
        f"run.output_dir={folder / 'outputs'}",
    ]  # fmt: skip
    assert evaluate(compose(words), Console(file=io.StringIO())) == 0
    [run] = (folder / "outputs").iterdir()
    return {"run": run, "data": folder / "data.jsonl"}


@pytest.fixture
def run(finished: dict[str, Path], tmp_path: Path) -> RunFolder:
    """A copy of it."""
    return RunFolder(shutil.copytree(finished["run"], tmp_path / "run"))


def without_grade(record: SampleRecord) -> dict:
    graded = ("score", "score_detail", "grader", "graded_at", "earlier_scores", "flags")
    return {key: value for key, value in vars(record).items() if key not in graded}


def test_other_scores_same_answers_and_the_old_ones_kept(
    run: RunFolder, tiny_pair: dict[str, Path], tmp_path: Path
) -> None:
    before, file = {r.key: r for r in run.records()}, (run.path / "records.jsonl").read_bytes()
    letter = next(c for c in "bcdefghijklmnopqrstuvwxyz" if len({c in r.output_text for r in before.values()}) == 2)
    moved = shutil.move(tiny_pair["target"], tmp_path / "elsewhere")  # no model, no decoding
    try:
        assert rescore.main([str(run.path), f"task.letter={letter}"]) == 0
    finally:
        shutil.move(moved, tiny_pair["target"])
    after = {r.key: r for r in run.records()}
    assert (run.path / "records.jsonl").read_bytes().startswith(file)
    assert {key: without_grade(r) for key, r in after.items()} == {key: without_grade(r) for key, r in before.items()}
    assert all(r.score == float(letter in r.output_text) for r in after.values())
    for key, record in after.items():
        if record.score != before[key].score:
            [earlier] = record.earlier_scores
            assert earlier["score"] == before[key].score
            assert (earlier["grader"], earlier["graded_at"]) == (3, before[key].graded_at)
            assert earlier["score_detail"] == before[key].score_detail
        history = record.score_detail["history"]
        assert history[-1] == ("and again" if record.turn == 2 else history[0])
        if record.turn == 2:
            assert history[1] == after[record.sample_id.removesuffix("/turn-2"), 0].output_text.strip()
    scores = [r.score for r in after.values()]
    assert run.summary()["quality/score"] == pytest.approx(sum(scores) / len(scores))
    assert run.summary()["stage/verify_s_per_round"] > 0  # from the profile pass, which is still there
    [entry] = run.manifest().measured["rescored"]
    assert (entry["words"], entry["graded"]) == ([f"task.letter={letter}"], 6)
    assert run.manifest().status == "finished"


def test_the_same_grader_changes_nothing(run: RunFolder) -> None:
    before = (run.path / "records.jsonl").read_bytes()
    assert rescore.main([str(run.path)]) == 0
    assert (run.path / "records.jsonl").read_bytes() == before


def test_a_new_version_is_written_down(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.grading_tasks import Toy

    monkeypatch.setattr(Toy, "version", 4)
    assert rescore.main([str(run.path)]) == 0
    assert {record.grader for record in run.records()} == {4}
    assert {record.earlier_scores[0]["grader"] for record in run.records()} == {3}
    assert run.manifest().resolved["task"]["version"] == 4


def test_a_failing_grader_can_be_mended_later(run: RunFolder) -> None:
    scores = [record.score for record in run.records()]
    assert rescore.main([str(run.path), "task.fail=true"]) == 1
    assert run.manifest().status == "failed"
    assert all(record.score is None for record in run.records())
    assert [record.earlier_scores[0]["score"] for record in run.records()] == scores
    assert rescore.main([str(run.path)]) == 0
    assert run.manifest().status == "finished"
    assert [record.score for record in run.records()] == scores


def test_other_data_is_refused(run: RunFolder, finished: dict[str, Path], tmp_path: Path, capsys) -> None:
    before = (run.path / "records.jsonl").read_bytes()
    (tmp_path / "other.jsonl").write_text(finished["data"].read_text().replace("say", "tell"))
    assert rescore.main([str(run.path), f"task.path={tmp_path / 'other.jsonl'}"]) == 2
    assert "sha256 differs" in capsys.readouterr().err
    assert (run.path / "records.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["task.lettre=b"], "task.lettre: no such key"),
        (["sampling.temperature=0"], "only words of the form task.KEY=VALUE"),
        (["~task.letter"], "holds no run.json"),
        (["task.letter=1"], "task.letter=1"),
    ],
)
def test_what_cannot_be_done_is_said(run: RunFolder, words: list[str], part: str, capsys) -> None:
    assert rescore.main([str(run.path), *words]) == 2
    assert part in capsys.readouterr().err


def test_unscored_tasks_and_no_runs(harness, tmp_path: Path, capsys) -> None:
    harness("run.limit=1", "run.profile=0")
    [folder] = harness.outputs.iterdir()
    assert rescore.main([str(folder)]) == 2
    assert "has no grader" in capsys.readouterr().err
    assert rescore.main([str(tmp_path / "nowhere")]) == 2
    assert rescore.main([]) == 2
