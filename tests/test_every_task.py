"""Every task through the whole pipeline, without network: from packages that `make data` fetched, from a hub cache in the
hub's own layout on disk, and a clear line where there is neither."""

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.records import RunFolder

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests/tasks/fixtures"
CONF = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "conf/task").glob("*.yaml"))}
HUB = {name: conf["sources"]["hub"] for name, conf in CONF.items() if "hub" in conf["sources"]}
PACKAGED = [name for name, conf in CONF.items() if "package" in conf["sources"]]
ONLY_HUB = [name for name in HUB if name not in PACKAGED]
# Rows in the hub's own fields.
ROWS = {name: FIXTURES / f"{name}.jsonl" for name in HUB} | {
    name: FIXTURES / f"{name}_hub.jsonl" for name in ("aime24", "aime25", "math500", "mt_bench")
}


@pytest.fixture(scope="module")
def pair(tiny_pair: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny pair with room for real prompts: a byte is a token there."""
    folder = tmp_path_factory.mktemp("long")
    for name, path in tiny_pair.items():
        shutil.copytree(path, folder / name)
        config = json.loads((folder / name / "config.json").read_text())
        config["max_position_embeddings"] = 16384
        (folder / name / "config.json").write_text(json.dumps(config))
    return {name: folder / name for name in tiny_pair}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Nothing reaches the network; every attempt is written down."""
    attempts: list[Any] = []
    connect = socket.socket.connect

    def refuse(*arguments: Any, **_: Any) -> Any:
        attempts.append(arguments)
        raise OSError("no network in this test")

    def connect_locally(self: socket.socket, address: Any) -> Any:
        return connect(self, address) if self.family == socket.AF_UNIX else refuse(address)

    monkeypatch.setattr(socket.socket, "connect", connect_locally)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return attempts


@pytest.fixture
def run(pair: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`make eval task=NAME run.limit=2 ...` on the tiny pair, in this process: exit status, stderr, records."""
    monkeypatch.setenv("COLUMNS", "120")

    def go(*words: str) -> tuple[int, str, RunFolder | None]:
        from harness.__main__ import main

        outputs = tmp_path / f"outputs-{hashlib.sha256(repr(words).encode()).hexdigest()[:8]}"
        given = [
            f"model.target={pair['target']}", f"model.drafter={pair['drafter']}", "tracking=none",
            "engine.dtype=float32", "sampling.max_new_tokens=8", "run.limit=2", "run.profile=0",
            f"run.output_dir={outputs}", *words,
        ]  # fmt: skip
        handler, errors = signal.getsignal(signal.SIGTERM), io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            status = main(given)
        signal.signal(signal.SIGTERM, handler)
        folders = list(outputs.iterdir()) if outputs.exists() else []
        return status, errors.getvalue(), RunFolder(folders[0]) if folders else None

    return go


def check_records(name: str, run: RunFolder) -> None:
    records = run.records()
    turns = 2 if name == "mt_bench" else 1
    assert len(records) == 2 * turns
    assert len({record.sample_id.partition("/turn-")[0] for record in records}) == 2
    assert sum(record.sample_id.endswith("/turn-2") for record in records) == 2 * (turns - 1)
    assert all(record.status == "ok" and record.task == name and record.prompt_tokens for record in records)
    unscored = run.manifest().resolved["task"]["metric"] is None
    for record in records:
        assert (record.score is None) == (unscored or record.score_detail.get("reason", "").startswith("unscored"))


# --- packages ---


@pytest.fixture(scope="module")
def fetched(pair: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache after `make data` for every task that a package holds. This alone may use the package index."""
    from harness.data import main

    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDTREE_EVAL_CACHE", str(cache))
        patch.setenv("COLUMNS", "120")
        model = [f"model.target={pair['target']}", f"model.drafter={pair['drafter']}"]
        for name in PACKAGED:
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                assert main([f"task={name}", *model]) == 0
            assert f"package {CONF[name]['sources']['package']['requirement']}" in out.getvalue()
    return cache


# Which samples a limit takes: the same in every mode and on every machine, so they are written down here.
FIRST = {
    "aime24": ["aime24-mmath/16", "aime24-mmath/2"],
    "aime25": ["aime25-mmath15/0", "aime25-mmath15/12"],
    "champ": ["champ/P_Combinatorics_38", "champ/P_Combinatorics_30"],
    "gsm_symbolic": ["gsm_symbolic/0/12", "gsm_symbolic/0/181"],
    "humaneval": ["HumanEval/132", "HumanEval/106"],
    "math500": ["math500-mmath311/432", "math500-mmath311/49"],
    "mt_bench": ["mt_bench/160", "mt_bench/117"],
}


@pytest.mark.parametrize("name", FIRST)
def test_after_make_data_no_network_is_needed(
    fetched: Path, run, calls: list[Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("DDTREE_EVAL_CACHE", str(fetched))
    status, errors, folder = run(f"task={name}")
    assert status == 0, errors
    assert calls == []
    check_records(name, folder)
    assert sorted({record.sample_id.partition("/turn-")[0] for record in folder.records()}) == sorted(FIRST[name])


def test_make_data_tells_what_only_the_hub_has(
    fetched: Path, hub: Path, pair: dict[str, Path], calls: list[Any], monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    from harness.data import main

    monkeypatch.setenv("DDTREE_EVAL_CACHE", str(fetched))
    model = [f"model.target={pair['target']}", f"model.drafter={pair['drafter']}"]
    assert main(model) == 0  # nothing asked for by name is missing
    out, errors = capsys.readouterr()
    assert f"only on the hub: {', '.join(sorted(ONLY_HUB))}." in out
    assert len(out.splitlines()) == len(CONF) - 1 + 3  # all tasks but the user's own, target, drafter, the summary
    assert len(errors.splitlines()) == len(ONLY_HUB)
    assert all("hf download --repo-type dataset" in line for line in errors.splitlines())
    assert len(calls) <= 2  # one of ours for all tasks, one that the hub's client makes for its user agent

    assert main(["task=gsm8k", *model]) == 1
    assert main(["task=gsm9k", *model]) == 2
    assert "Did you mean gsm8k" in capsys.readouterr().err
    write_cache(hub, "gsm8k")
    assert main(["task=gsm8k", *model]) == 0
    assert f"3 samples  hub openai/gsm8k:main/test-00000-of-00001.parquet at {HUB['gsm8k']['revision']}" in (
        capsys.readouterr().out
    )


def test_every_packaged_task_is_run() -> None:
    assert sorted(FIRST) == sorted([*PACKAGED, "gsm_symbolic"])


# --- the hub ---


def write_cache(cache: Path, name: str) -> None:
    """What `hf download --repo-type dataset REPO FILE --revision COMMIT` leaves: a blob, and a link in the snapshot."""
    source = HUB[name]
    rows = [json.loads(line) for line in ROWS[name].read_text().splitlines()]
    if source["file"].endswith(".parquet"):
        import pyarrow
        import pyarrow.parquet

        sink = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
        content = sink.getvalue()
    else:
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    folder = cache / f"datasets--{source['repo'].replace('/', '--')}"
    blob = folder / "blobs" / hashlib.sha256(content).hexdigest()
    link = folder / "snapshots" / source["revision"] / source["file"]
    for path in (blob, link):
        path.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    link.symlink_to(os.path.relpath(blob, link.parent))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    from harness import hub

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub._hub_answers.cache_clear()
    return tmp_path / "hub"


@pytest.mark.parametrize("name", HUB)
def test_from_a_prepared_hub_cache(hub: Path, run, calls: list[Any], name: str) -> None:
    write_cache(hub, name)
    status, errors, folder = run(f"task={name}", "task.source=hub")
    assert status == 0, errors
    assert calls == []  # a file of a certain commit is on the disk or not: nobody need be asked
    check_records(name, folder)
    source = folder.manifest().resolved["sources"]["data"]
    assert (source["kind"], source["revision"]) == ("hub", HUB[name]["revision"])
    assert len(source["sha256"]) == 1


@pytest.mark.parametrize("name", ONLY_HUB)
@pytest.mark.parametrize("offline", [True, False])
def test_without_either_one_line_says_what_to_fetch(
    hub: Path, run, calls: list[Any], monkeypatch: pytest.MonkeyPatch, name: str, offline: bool
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    status, errors, folder = run(f"task={name}")
    assert status == 2
    assert folder is None
    source = HUB[name]
    [line] = errors.splitlines()
    assert f"hf download --repo-type dataset {source['repo']} {source['file']} --revision {source['revision']}" in line
    assert "task.path=FILE" in line
    assert offline == (calls == [])


def test_every_mode_decodes_the_same_samples(hub: Path, run, calls: list[Any]) -> None:
    write_cache(hub, "gsm8k")
    seen = []
    for mode in ("autoregressive", "dflash", "ddtree"):
        status, errors, folder = run("task=gsm8k", f"speculative={mode}")
        assert status == 0, errors
        seen.append([(record.sample_id, record.prompt_sha256) for record in folder.records()])
    assert seen[0] == seen[1] == seen[2]
    _, _, other = run("task=gsm8k", "run.subset_seed=1")
    assert [record.sample_id for record in other.records()] != [name for name, _ in seen[0]]


def test_a_local_copy_stands_in(run, calls: list[Any]) -> None:
    status, errors, folder = run("task=gsm8k", f"task.path={ROWS['gsm8k']}")
    assert status == 0, errors
    assert calls == []
    check_records("gsm8k", folder)
