"""A real SGLang server on this machine's CPU, and a client of it with nothing but the standard library."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.engines.sglang_server import DIRECT, Server

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = [
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--dtype", "float32"),
    *("--disable-overlap-schedule", "--max-total-tokens", "65536", "--max-running-requests", "32"),
    *("--context-length", "512", "--mem-fraction-static", "0.3", "--skip-server-warmup", "--random-seed", "7"),
    "--sleep-on-idle",  # an idle scheduler spins otherwise, and these tests keep several
]


def sglang_python() -> str:
    """Interpreter of the environment that `make install-sglang` makes. Its absence is a failure, not a skip."""
    named = os.environ.get("DDTREE_SGLANG_PYTHON")
    python = Path(named) if named else ROOT / ".venv-sglang/bin/python"
    if not python.exists():
        raise RuntimeError(f"no SGLang environment at {python}: make install-sglang, or set DDTREE_SGLANG_PYTHON")
    return str(python)


class Served:
    """Starts with the object. Its watchdog stops the server even when this process is killed."""

    def __init__(self, target: Path, options: Sequence[str], environment: dict[str, str]):
        own = dict(SGLANG_USE_CPU_ENGINE="1", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", PYTHONPATH="")
        command = [sglang_python(), "-m", "sglang.launch_server", "--model-path", str(target), *OPTIONS, *options]
        self.server = Server(command, own | environment, startup_s=270)
        self.stop = self.server.stop

    def request(self, path: str, body: dict) -> urllib.request.Request:
        data = json.dumps(body).encode()
        return urllib.request.Request(self.server.url + path, data, {"Content-Type": "application/json"})

    def post(self, path: str, body: dict) -> Any:
        with DIRECT.open(self.request(path, body), timeout=240) as reply:
            text = reply.read()
        return json.loads(text) if text[:1] in (b"{", b"[") else text.decode()

    def refused(self, body: dict) -> str:
        """The error text of a request that must be refused."""
        with pytest.raises(urllib.error.HTTPError) as refused:
            self.post("/generate", body)
        assert refused.value.code == 400
        return refused.value.read().decode()

    def generate(self, prompts: Sequence[list[int]], each: list[dict] | None = None, **params: Any) -> list[dict]:
        """One call for all prompts, with the same parameters, or with `each` its own."""
        asked = [dict(ignore_eos=True) | given for given in each or [params] * len(prompts)]
        return self.post("/generate", dict(input_ids=list(prompts), sampling_params=asked))

    def ids(self, prompts: Sequence[list[int]], **params: Any) -> list[list[int]]:
        return [one["output_ids"] for one in self.generate(prompts, **params)]

    def one(self, prompt: list[int], **params: Any) -> dict:
        return self.generate([prompt], **params)[0]

    def idle(self) -> bool:
        """Whether nothing runs or waits: only then does SGLang flush its cache."""
        try:
            self.post("/flush_cache", {})
        except urllib.error.HTTPError:
            return False
        return True
