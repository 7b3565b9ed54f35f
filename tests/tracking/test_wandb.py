"""A real offline W&B run, read back with W&B's own reader and compared with the records."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from harness.metrics import sample_scalars, summarize
from harness.records import Round, RunFolder, RunManifest, SampleRecord
from harness.tracking.wandb import WandbTracker

SECRET_TEXT = "xyzzy-plugh"
MANIFEST = RunManifest(
    id="0123456789",
    name="humaneval-tiny-ddtree",
    command=[],
    asked={"speculative": {"name": "ddtree", "tree_budget": 16}, "engine": {"api_key": "sk-do-not-send"}},
    resolved={"sampling": {"temperature": 0.6}},
)


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine's own W&B set-up plays a part."""
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))


def record(sample_id: str, accepted: list[int], **values: Any) -> SampleRecord:
    rounds = [Round(num_accepted=a, num_emitted=a + 1, num_nodes=16, context_length=9) for a in accepted]
    given = {
        "status": "ok",
        "output_ids": list(range(1 + sum(r.num_emitted for r in rounds))),
        "output_text": f"{SECRET_TEXT} {sample_id}",
        "rounds": rounds,
        "decode_s": 0.5,
        "ttft_s": 0.1,
        "score": 1.0,
        "score_detail": {"extracted": SECRET_TEXT},
        "flags": {"repetition": False},
    }
    return SampleRecord(task="t", sample_id=sample_id, repeat=0, **{**given, **values})


RECORDS = [
    record("a", [2, 0, 3]),
    record("b", [1], score=0.0),
    SampleRecord(task="t", sample_id="c", repeat=0, status="error", error=f"failed at {SECRET_TEXT}"),
]


def track(folder: Path, tracker: WandbTracker, records: list[SampleRecord], exit_code: int = 0) -> dict[str, Any]:
    run = RunFolder(folder)
    tracker.start(run, MANIFEST)
    for one in records:
        run.append(one)
        tracker.log(one)
    summary = summarize(run.records(), [], MANIFEST)
    tracker.finish(summary, exit_code=exit_code)
    return summary


def inspect(folder: str | Path) -> dict[str, Any]:
    """config, history and summary of a W&B folder, by `wandb leet inspect --json`."""
    (log,) = Path(folder).glob("*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(log)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    read: dict[str, Any] = {"history": [], "summary": {}, "exit": None}
    for entry in map(json.loads, lines):
        kind = entry["type"]
        if kind == "run":
            read["run"] = entry["run"]
        elif kind == "history":
            read["history"].append(entry["history"]["item"])
        elif kind == "summary":
            read["summary"] |= entry["summary"].get("update", {})
        elif kind == "exit":
            read["exit"] = entry["exit"].get("exit_code", 0)
    return read


def samples_of(read: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in read["history"] if any(name.startswith("sample/") for name in row)]


def sample_table(folder: str | Path) -> dict[str, Any]:
    (file,) = Path(folder).glob("files/media/table/samples_*.table.json")
    return json.loads(file.read_text())


def test_what_is_read_back_is_what_was_recorded(tmp_path: Path) -> None:
    tracker = WandbTracker(name="offline", tags=["x"], group="g")
    assert tracker.location() is None
    summary = track(tmp_path / "run", tracker, RECORDS)
    folder = tracker.location()
    assert folder is not None
    assert Path(folder).parent == tmp_path / "run" / "wandb"
    read = inspect(folder)
    assert read["run"]["run_id"] == MANIFEST.id
    assert read["run"]["display_name"] == MANIFEST.name
    assert read["exit"] == 0
    config = read["run"]["config"]["update"]
    assert config["speculative"] == MANIFEST.asked["speculative"]
    assert config["resolved"] == MANIFEST.resolved

    rows = samples_of(read)
    assert len(rows) == len(RECORDS)
    for place, (row, one) in enumerate(zip(rows, RECORDS, strict=True), start=1):
        assert row["progress/records"] == place
        expected = sample_scalars(one)
        assert {k: v for k, v in row.items() if k.startswith("sample/")} == pytest.approx(expected)
    assert rows[-1]["running/acceptance_length"] == pytest.approx(summary["acceptance_length/pooled"])

    for name, value in summary.items():
        assert read["summary"][name] == (pytest.approx(value) if isinstance(value, float) else value), name
    assert read["summary"]["acceptance/accepted_drafts.values"] == summary["acceptance/histogram"]
    table = sample_table(folder)
    assert [row[table["columns"].index("sample_id")] for row in table["data"]] == ["a", "b", "c"]
    assert table["data"][0][table["columns"].index("output_text")] == RECORDS[0].output_text
    assert "WANDB_DATA_DIR" not in os.environ


@pytest.mark.parametrize("log_text", [True, False])
def test_text_stays_out_of_every_file_when_asked(tmp_path: Path, log_text: bool) -> None:
    tracker = WandbTracker(name="offline", log_text=log_text)
    track(tmp_path / "run", tracker, RECORDS)
    files = [path for path in (tmp_path / "run" / "wandb").rglob("*") if path.is_file()]
    assert any(SECRET_TEXT.encode() in path.read_bytes() for path in files) == log_text
    assert not any(b"sk-do-not-send" in path.read_bytes() for path in files)
    assert len(sample_table(tracker.location())["data"]) == 3


def test_a_restart_without_text_removes_the_text_of_the_first_try(tmp_path: Path) -> None:
    track(tmp_path / "run", WandbTracker(name="offline"), RECORDS[:1])
    track(tmp_path / "run", WandbTracker(name="offline", log_text=False), RECORDS[1:])
    files = [path for path in (tmp_path / "run" / "wandb").rglob("*") if path.is_file()]
    assert not any(SECRET_TEXT.encode() in path.read_bytes() for path in files)


def test_state_is_no_configuration_key() -> None:
    keys = {field.name for field in fields(WandbTracker)}
    assert keys == {"name", "mode", "project", "entity", "group", "tags", "log_text", "table_rows"}


def test_the_table_ends_where_asked(tmp_path: Path) -> None:
    tracker = WandbTracker(name="offline", table_rows=1)
    track(tmp_path / "run", tracker, RECORDS)
    assert len(sample_table(tracker.location())["data"]) == 1


KILLED = """
import os, signal, sys
sys.path.insert(0, {here!r})
import test_wandb as t
run, tracker = t.RunFolder({folder!r}), t.WandbTracker(name="offline")
tracker.start(run, t.MANIFEST)
run.append(t.RECORDS[0]); tracker.log(t.RECORDS[0])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_a_kill_the_folder_is_rebuilt_from_the_records(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    root = Path(__file__).parents[2]
    program = KILLED.format(here=str(Path(__file__).parent), folder=str(folder))
    killed = subprocess.run([sys.executable, "-c", program], cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    assert killed.returncode == -signal.SIGKILL
    (cut,) = (folder / "wandb").glob("offline-run-*")
    (cut / "marker").touch()

    tracker = WandbTracker(name="offline")
    summary = track(folder, tracker, RECORDS[1:])
    (whole,) = (folder / "wandb").glob("offline-run-*")
    assert str(whole) == tracker.location()
    assert not (whole / "marker").exists()
    read = inspect(whole)
    assert read["run"]["run_id"] == MANIFEST.id
    assert [row["progress/records"] for row in samples_of(read)] == [1, 2, 3]
    assert read["summary"]["acceptance_length/pooled"] == pytest.approx(summary["acceptance_length/pooled"])
    assert [row[0] for row in sample_table(whole)["data"]] == ["a", "b", "c"]


def test_a_failed_run_says_so(tmp_path: Path) -> None:
    tracker = WandbTracker(name="offline")
    track(tmp_path / "run", tracker, RECORDS[:1], exit_code=130)
    assert inspect(tracker.location())["exit"] == 130


ONLINE = """
import os, sys
sys.path.insert(0, {here!r})
import test_wandb as t
tracker = t.WandbTracker(name="online", mode="online")
try:
    tracker.start(t.RunFolder({folder!r}), t.MANIFEST)
except ValueError as error:
    print("refused:", error)
tracker.finish({{}}, exit_code=1)  # a run that never started has nothing to end
assert "WANDB_DATA_DIR" not in os.environ
"""


# In a process of their own: W&B reads its environment once.
@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "tracking=online needs a Weights & Biases key and none is set: run `wandb login` or set WANDB_API_KEY"),
        ({"WANDB_API_KEY": "k" * 40, "WANDB_INIT_TIMEOUT": "2"}, "Use tracking=offline or tracking=none"),
        ({"WANDB_API_KEY": "short"}, "tracking=online: the Weights & Biases key is not usable"),
    ],
    ids=["no key", "no server", "broken key"],
)
def test_online_that_cannot_work_stops_before_decoding(
    tmp_path: Path, environment: dict[str, str], message: str
) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", ONLINE.format(here=str(Path(__file__).parent), folder=str(tmp_path / "run"))],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "WANDB_BASE_URL": "http://127.0.0.1:9", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert message in done.stdout
