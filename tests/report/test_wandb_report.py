"""The W&B report: what it shows, that its specification reads back, and what is said when it cannot be made."""

import json
import re
import sys
import threading
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from harness.report import wandb_report
from harness.report.wandb_report import main


@pytest.fixture
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setattr(wandb_report, "has_key", lambda: False)


def names(outputs: Path) -> list[str]:
    return sorted(str(path.parent) for path in outputs.rglob("run.json"))


def panels(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The panels under each second-level heading."""
    found: dict[str, list[dict[str, Any]]] = {}
    heading = ""
    for block in document["spec"]["blocks"]:
        if block["type"] == "heading" and block["level"] == 2:
            heading = block["children"][0]["text"]
        elif block["type"] == "panel-grid":
            found[heading] = block["metadata"]["panelBankSectionConfig"]["panels"]
    return found


def test_the_specification_compares_modes_temperatures_and_budgets(outputs: Path, tmp_path: Path, no_key) -> None:
    out = tmp_path / "report/wandb_report.json"
    assert main([*names(outputs), "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["project"] == {"name": "ddtree-eval", "entityName": ""}
    found = panels(document)
    assert list(found) == ["Modes", "Temperatures", "Tree budgets", "What differs"]
    metrics = ["acceptance_length/pooled", "throughput/decode_tokens_per_s", "quality/score"]
    assert [p["config"]["metrics"] for p in found["Modes"]] == [[f"summary_metrics.{m}"] for m in metrics]
    assert {p["config"]["groupBy"] for p in found["Modes"]} == {"speculative.value.name"}
    assert [p["config"]["yAxis"] for p in found["Tree budgets"]] == [f"summary:{m}" for m in metrics]
    assert {p["config"]["xAxis"] for p in found["Tree budgets"]} == {"config:speculative.value.tree_budget"}
    for row in found.values():  # side by side, in one row of 24 columns
        spans = [(p["layout"]["x"], p["layout"]["x"] + p["layout"]["w"]) for p in row]
        assert spans == sorted(spans)
        assert spans[-1][1] == 24
    # Exactly these runs, by the id that they have in W&B.
    ids = sorted(Path(name).name for name in names(outputs))
    for block in document["spec"]["blocks"]:
        if block["type"] == "panel-grid":
            first = block["metadata"]["runSets"][0]["filters"]["filters"][0]
            assert (first["key"]["section"], first["key"]["name"], first["value"]) == ("run", "name", ids)


def test_hardware_is_compared_where_it_varies(run, sample, tmp_path: Path, no_key) -> None:
    folders = []
    for hardware in ("h100", "h200", "b200"):
        asked = {"hardware": {"name": hardware}, "tracking": {"project": "p"}}
        folders.append(str(run(hardware, [sample("a", [1])], asked=asked).path))
    assert main([*folders, "--out", str(tmp_path / "w.json")]) == 0
    found = panels(json.loads((tmp_path / "w.json").read_text()))
    assert {p["config"]["groupBy"] for p in found["Hardware"]} == {"hardware.value.name"}
    assert "Temperatures" not in found


def test_runs_that_differ_in_more_say_so(run, sample, tmp_path: Path, no_key) -> None:
    asked = {"tracking": {"project": "p"}}
    one = run("a", [sample("a", [1])], asked=asked, versions={"torch": "1"})
    two = run("b", [sample("a", [1])], asked={**asked, "task": {"name": "math500"}}, versions={"torch": "2"})
    assert main([str(one.path), str(two.path), "--out", str(tmp_path / "w.json")]) == 0
    document = json.loads((tmp_path / "w.json").read_text())
    [text] = [block["content"] for block in document["spec"]["blocks"] if block["type"] == "markdown-block"]
    assert "These runs differ in more than" in text
    assert text.endswith("- `versions.torch: '1' against '2'`")


def test_a_specification_that_reads_back_otherwise_is_refused(
    outputs: Path, monkeypatch, tmp_path, no_key, capsys
) -> None:
    """The control of the validation: a library that loses a panel on reading."""
    import wandb_workspaces.reports.v2 as wr

    read_back = wr.Report._from_model.__func__

    def lossy(cls, model):
        report = read_back(cls, model)
        report.blocks[-1].panels = []
        return report

    monkeypatch.setattr(wr.Report, "_from_model", classmethod(lossy))
    assert main([*names(outputs), "--out", str(tmp_path / "w.json")]) == 2
    assert "reads the specification back as another one" in capsys.readouterr().err
    assert not (tmp_path / "w.json").exists()


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.4.12", "0.4.12 is installed, and this report is written for 0.4.13 or newer, below 0.5"),
        ("0.5.0rc1", "0.5.0rc1 is installed"),
        ("1.0", "1.0 is installed"),
        (None, "wandb-workspaces is not installed"),
    ],
)
def test_another_release_is_refused_with_the_way_out(version, message, outputs, monkeypatch, tmp_path, no_key, capsys):
    """Case 35: the reports API moved between packages."""

    def found(package: str) -> str:
        assert package == "wandb-workspaces"
        if version is None:
            raise metadata.PackageNotFoundError(package)
        return version

    monkeypatch.setattr(metadata, "version", found)
    assert main([*names(outputs), "--out", str(tmp_path / "w.json")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "pip install -c constraints.txt wandb-workspaces" in error
    assert "`make report` needs neither a server nor this package" in error


def test_an_api_that_moved_is_refused_too(outputs: Path, monkeypatch, tmp_path, no_key, capsys) -> None:
    moved = types.ModuleType("wandb_workspaces.reports")
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports", moved)
    monkeypatch.delitem(sys.modules, "wandb_workspaces.reports.v2", raising=False)
    assert main([*names(outputs), "--out", str(tmp_path / "w.json")]) == 2
    assert "has no wandb_workspaces.reports.v2" in capsys.readouterr().err


def test_untracked_runs_and_two_projects(run, sample, tmp_path: Path, no_key, capsys) -> None:
    one = run("a", [sample("a", [1])], asked={"tracking": {"name": "none"}})
    assert main([str(one.path), "--out", str(tmp_path / "w.json")]) == 2
    assert "none of these runs was tracked" in capsys.readouterr().err
    two = run("b", [sample("a", [1])], asked={"tracking": {"project": "p", "entity": "x"}})
    three = run("c", [sample("a", [1])], "dflash", asked={"tracking": {"project": "q", "entity": None}})
    assert main([str(two.path), str(three.path), "--out", str(tmp_path / "w.json")]) == 2
    assert "several projects, q, x/p" in capsys.readouterr().err
    assert main([str(two.path), str(three.path), "--project", "r", "--out", str(tmp_path / "w.json")]) == 0


PROJECT = {"id": "p1", "internalId": "1", "name": "ddtree-eval", "entityName": "ci", "createdAt": "2026-01-01T00:00:00"}
PROJECT |= {"isBenchmark": False, "user": None}
VIEWER = {"id": "u", "entity": "ci", "username": "ci", "admin": False, "flags": "{}", "teams": {"edges": []}}
VIEWER |= {"apiKeys": {"edges": []}, "email": "a@example.invalid", "name": "ci"}


class Server(BaseHTTPRequestHandler):
    """Answers the few GraphQL operations that saving a report needs, and keeps what was saved."""

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        body = json.loads(content) if self.path == "/graphql" else {"query": "query other"}
        operation = re.search(r"\b(?:query|mutation)\s+(\w+)", body["query"]).group(1)
        self.server.seen.append((operation, body.get("variables") or {}))
        answer = self.answer(operation.lower(), body.get("variables") or {})
        text = json.dumps({"data": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def answer(self, operation: str, values: dict[str, Any]) -> dict[str, Any]:
        if operation == "viewer":
            return {"viewer": VIEWER}
        if operation == "projectinternalid":
            return {"project": PROJECT if self.server.has_project else None}
        if operation == "getprojects":
            edges = [{"cursor": "x", "node": PROJECT}]
            return {"models": {"totalCount": 1, "pageInfo": {"hasNextPage": False, "endCursor": None}, "edges": edges}}
        if operation == "upsertview":
            place = {"id": "p1", "name": values["projectName"], "entityName": values["entityName"]}
            times = {"createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:00Z"}
            kept = {name: values[name] for name in ("type", "name", "displayName", "description", "spec")}
            return {"upsertView": {"view": {"id": "VmlldzoxMjM0", "project": place, **kept, **times}, "inserted": True}}
        return {"serverInfo": {"features": []}}

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    found = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    found.seen, found.has_project = [], True
    threading.Thread(target=found.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{found.server_address[1]}")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    yield found
    found.shutdown()
    found.server_close()


def test_with_a_key_the_same_report_is_saved_online(outputs: Path, server, tmp_path: Path, monkeypatch, capsys) -> None:
    assert main([*names(outputs), "--entity", "ci", "--out", str(tmp_path / "w.json")]) == 0
    assert "Saved online: http://127.0.0.1" in capsys.readouterr().out
    [saved] = [values for operation, values in server.seen if operation.lower() == "upsertview"]
    assert (saved["entityName"], saved["projectName"]) == ("ci", "ddtree-eval")
    assert main([*names(outputs), "--offline", "--out", str(tmp_path / "w.json")]) == 0
    documents = {"spec": json.loads(saved["spec"])}, json.loads((tmp_path / "w.json").read_text())
    online, offline = ({name: [p["config"] for p in row] for name, row in panels(d).items()} for d in documents)
    assert online == offline


def test_a_project_that_is_not_there_yet_says_to_sync(outputs: Path, server, capsys) -> None:
    server.has_project = False
    assert main([*names(outputs), "--entity", "ci"]) == 2
    assert "Upload the runs first with `make sync`" in capsys.readouterr().err
