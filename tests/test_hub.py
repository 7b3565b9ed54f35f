"""A hub that answers: a loopback server with the hub's own routes and headers, and the real client."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import environment

ROOT = Path(__file__).resolve().parent.parent
SOURCE = yaml.safe_load((ROOT / "conf/task/livecodebench.yaml").read_text())["sources"]["hub"]
CONTENT = (ROOT / "tests/tasks/fixtures/livecodebench.jsonl").read_bytes()
BRANCH_NOW = "89abcdef0123456789abcdef0123456789abcdef"


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    """The address, and every request it got."""
    asked: list[str] = []
    files = {
        f"/datasets/{SOURCE['repo']}/resolve/{revision}/{SOURCE['file']}": commit
        for revision, commit in ((SOURCE["revision"], SOURCE["revision"]), ("main", BRANCH_NOW))
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            asked.append(f"{self.command} {self.path}")
            commit = files.get(self.path)
            self.send_response(200 if commit or self.path == "/" else 404)
            self.send_header("Content-Length", str(len(CONTENT) if commit else 0))
            if commit:
                self.send_header("X-Repo-Commit", commit)
                self.send_header("ETag", f'"{hashlib.sha256(CONTENT).hexdigest()}"')
            self.end_headers()
            if body and commit:
                self.wfile.write(CONTENT)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


CHILD = """
import json, sys
from harness.config import HubSource, Sources
from harness.sources import fetch
try:
    print(json.dumps(fetch(Sources(hub=HubSource(**json.loads(sys.argv[1]))), "hub", key="task").record()))
except ValueError as error:
    print(json.dumps({"error": str(error)}))
"""


def test_a_hub_that_answers_is_asked_once(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    address, asked = hub
    variables = {**environment(), "HF_HOME": str(tmp_path / "hf"), "DDTREE_EVAL_CACHE": str(tmp_path / "cache")}
    del variables["HF_HUB_OFFLINE"]
    variables |= {"HF_ENDPOINT": address, "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*", "no_proxy": "*"}

    def fetched(**changes: str) -> dict[str, Any]:  # the client reads its variables once a process
        command = [sys.executable, "-c", CHILD, json.dumps({**SOURCE, **changes})]
        done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    first = fetched()
    snapshot = tmp_path / "hf/hub" / f"datasets--{SOURCE['repo'].replace('/', '--')}" / "snapshots" / SOURCE["revision"]
    assert Path(first["path"]) == snapshot / SOURCE["file"]
    assert Path(first["path"]).read_bytes() == CONTENT
    assert (first["kind"], first["revision"]) == ("hub", SOURCE["revision"])
    assert any(request.startswith("GET /datasets/") for request in asked)

    asked.clear()
    assert fetched() == first
    assert asked == []

    branch = fetched(revision="main")
    assert (branch["revision"], branch["asked_revision"]) == (BRANCH_NOW, "main")  # the commit, not the name
    assert asked
    missing = fetched(file="test9.jsonl")["error"]
    assert f"hf download --repo-type dataset {SOURCE['repo']} test9.jsonl" in missing
    assert os.listdir(snapshot) == [SOURCE["file"]]
