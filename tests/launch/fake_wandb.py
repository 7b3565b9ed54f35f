"""A W&B-shaped server on loopback: as much GraphQL and file stream as `wandb sync` of wandb 0.31 asks for.

It proves what the client sends, not what wandb.ai shows. `refuse=True` answers every upsert of a run with an error.
"""

import gzip
import json
import re
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class FakeWandb:
    """`with FakeWandb() as server: ... server.url, server.runs[run_id], server.history(run_id)`."""

    def __init__(self, refuse: bool = False):
        self.refuse = refuse
        self.lock = threading.Lock()
        self.runs: dict[str, dict[str, Any]] = {}  # variables of the upserts, by run id
        self.streams: dict[str, list[dict[str, Any]]] = {}
        self.uploads: dict[str, bytes] = {}
        self.unknown: list[str] = []

    def __enter__(self) -> "FakeWandb":
        handler = type("Handler", (_Handler,), {"fake": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def lines(self, run: str, file: str) -> list[dict[str, Any]]:
        parts = (part["files"].get(file) for part in self.streams.get(run, []) if part.get("files"))
        return [json.loads(line) for part in parts if part for line in part["content"]]

    def history(self, run: str) -> list[dict[str, Any]]:
        return self.lines(run, "wandb-history.jsonl")

    def answer(self, operation: str, given: dict[str, Any]) -> dict[str, Any] | None:
        entity = {"id": "e", "name": "tests"}
        if operation == "Viewer":
            viewer = {"id": "u", "entity": "tests", "username": "tests", "email": "t@example.invalid", "name": "tests"}
            return {
                "viewer": {**viewer, "admin": False, "flags": "{}", "teams": {"edges": []}, "apiKeys": {"edges": []}}
            }
        if operation == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        if operation == "RunResumeStatus":
            return {"model": {"entity": entity, "bucket": None}}
        if operation == "OrganizationCoreWeaveOrganizationID":
            return {"entity": {"organization": {"coreWeaveOrganizationId": None}}}
        if operation == "UpsertBucket" and not self.refuse:
            with self.lock:
                self.runs.setdefault(given["name"], {}).update({k: v for k, v in given.items() if v is not None})
            project = {"id": "p", "name": given.get("project") or "none", "entity": entity}
            bucket = {
                "id": given["name"],
                "name": given["name"],
                "displayName": given.get("displayName"),
                "project": project,
            }
            empty = {"description": None, "config": "{}", "sweepName": None, "historyLineCount": 0}
            return {"upsertBucket": {"bucket": {**bucket, **empty}, "inserted": True}}
        if operation == "CreateRunFiles":
            files = [{"name": f, "uploadUrl": f"{self.url}/storage/{given['run']}/{f}"} for f in given["files"]]
            return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": files}}
        if operation == "CreateArtifact":
            sequence = {"id": "s", "latestArtifact": None}
            return {"createArtifact": {"artifact": {"id": "a", "state": "COMMITTED", "artifactSequence": sequence}}}
        if operation == "UseArtifact":
            return {"useArtifact": {"artifact": {"id": "a", "digest": "d", "state": "COMMITTED", "metadata": "{}"}}}
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeWandb

    def log_message(self, *_: object) -> None:
        pass

    def do_PUT(self) -> None:
        self.fake.uploads[unquote(self.path)] = self._body()
        self._send({})

    def do_GET(self) -> None:
        self._send({})

    def do_POST(self) -> None:
        body = self._body()
        stream = re.match(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path)
        if stream:
            with self.fake.lock:
                self.fake.streams.setdefault(stream[1], []).append(json.loads(body))
            self._send({"exitcode": None, "limits": {}})
            return
        asked = json.loads(body)
        operation = asked.get("operationName") or re.search(r"\b(?:query|mutation)\s+(\w+)", asked["query"])[1]
        data = self.fake.answer(operation, asked.get("variables") or {})
        if data is None:
            self.fake.unknown.append(operation)
            self._send({"data": None, "errors": [{"message": f"{operation} is refused here"}]})
        else:
            self._send({"data": data})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            body = b"".join(parts)
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        unpack = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(self.headers.get("Content-Encoding", ""))
        return unpack(body) if unpack else body

    def _send(self, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
