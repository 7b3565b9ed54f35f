"""`make sync` against a W&B-shaped server on loopback: what arrives is what was recorded, once."""

import os
from pathlib import Path

import pytest

from harness.launch.sync import main, sync_run
from harness.metrics import sample_scalars, summarize
from harness.records import Round, RunFolder, RunManifest, SampleRecord
from harness.tracking.wandb import WandbTracker
from tests.launch.fake_wandb import FakeWandb

ASKED = {"speculative": {"name": "ddtree"}, "task": {"name": "humaneval"}, "run": {"limit": 3}}


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)


def finished_run(outputs: Path, run_id: str, status: str = "finished") -> RunFolder:
    run = RunFolder(outputs / f"run-{run_id}")
    manifest = RunManifest(id=run_id, name=run.path.name, command=[], asked=ASKED, status=status)
    tracker = WandbTracker(name="offline", group="sweep-1")
    tracker.start(run, manifest)
    for number in range(3):
        rounds = [Round(num_accepted=number, num_emitted=number + 1, num_nodes=16, context_length=9)]
        record = SampleRecord(
            task="t", sample_id=str(number), repeat=0, status="ok", output_ids=list(range(number + 2)), rounds=rounds
        )
        run.append(record)
        tracker.log(record)
    run.write_manifest(manifest)
    tracker.finish(summarize(run.records(), [], manifest))
    return run


def test_finished_runs_are_uploaded_once_and_land_under_their_own_id(tmp_path, monkeypatch, capsys):
    outputs = tmp_path / "outputs"
    runs = [finished_run(outputs, "aaaaaaaaaa"), finished_run(outputs, "bbbbbbbbbb")]
    finished_run(outputs, "cccccccccc", status="interrupted")
    RunFolder(outputs / "untracked").write_manifest(
        RunManifest(id="d", name="d", command=[], asked=ASKED, status="finished")
    )
    with FakeWandb() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        assert main(["--outputs", str(outputs)]) == 0
        said = capsys.readouterr().out
        assert said.splitlines()[-1] == "2 uploaded, 0 uploaded before, 2 left out, 0 failed."
        assert "left out: run-cccccccccc (the run is interrupted)" in said
        assert "left out: untracked (no offline W&B folder)" in said
        assert set(server.runs) == {"aaaaaaaaaa", "bbbbbbbbbb"}
        for run in runs:
            arrived = server.runs[run.manifest().id]
            assert arrived["groupName"] == "sweep-1"
            assert set(arrived["tags"]) == {"mode:ddtree", "task:humaneval"}
            rows = [
                row
                for row in server.history(run.manifest().id)
                if "sample/rounds" in row or "sample/acceptance_length" in row
            ]
            assert len(rows) == 3
            for row, record in zip(rows, run.records(), strict=True):
                assert {k: v for k, v in row.items() if k.startswith("sample/")} == pytest.approx(
                    sample_scalars(record)
                )
            final = server.lines(run.manifest().id, "wandb-summary.json")[-1]
            expected = summarize(run.records(), [], run.manifest())
            assert final["acceptance_length/pooled"] == pytest.approx(expected["acceptance_length/pooled"])
            assert not [name for name in final if name.startswith("sample/")]  # the last sample is no result
        posts = sum(map(len, server.streams.values()))

        assert main(["--outputs", str(outputs)]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "0 uploaded, 2 uploaded before, 2 left out, 0 failed."
        assert sum(map(len, server.streams.values())) == posts

        assert main(["--outputs", str(outputs), "--all"]) == 0
        assert "1 uploaded, 2 uploaded before, 1 left out, 0 failed." in capsys.readouterr().out
        assert "cccccccccc" in server.runs


def test_a_failed_upload_is_said_and_tried_again(tmp_path, monkeypatch, capsys):
    run = finished_run(tmp_path / "outputs", "aaaaaaaaaa")
    with FakeWandb(refuse=True) as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        assert main([str(run.path)]) == 1
        said = capsys.readouterr().out
        assert said.startswith("failed: run-aaaaaaaaaa (")
        assert said.splitlines()[-1] == "0 uploaded, 0 uploaded before, 0 left out, 1 failed."
    with FakeWandb() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        assert sync_run(run.path) == ("uploaded", "")
        assert "aaaaaaaaaa" in server.runs


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run\.json"):
        sync_run(tmp_path)
