"""A real SGLang server on this machine's CPU, and a client of it with nothing but the standard library."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = (
    "--device cpu --attention-backend torch_native --sampling-backend pytorch --dtype float32 "
    "--disable-overlap-schedule --max-total-tokens 32768 --max-running-requests 32 --context-length 512 "
    "--mem-fraction-static 0.3 --skip-server-warmup --host 127.0.0.1 --random-seed 7 --log-level info"
).split()


def sglang_python() -> str:
    """Interpreter of the environment that `make install-sglang` makes. Its absence is a failure, not a skip."""
    named = os.environ.get("DDTREE_SGLANG_PYTHON")
    python = Path(named) if named else ROOT / ".venv-sglang/bin/python"
    if not python.exists():
        raise RuntimeError(f"no SGLang environment at {python}: make install-sglang, or set DDTREE_SGLANG_PYTHON")
    return str(python)


@dataclass
class Server:
    url: str
    process: subprocess.Popen
    log: Path

    def post(self, path: str, body: dict) -> dict | list | str:
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=240) as reply:
            text = reply.read()
        return json.loads(text) if text[:1] in (b"{", b"[") else text.decode()

    def refused(self, body: dict) -> str:
        """The error text of a request that must be refused."""
        try:
            answer = self.post("/generate", body)
        except urllib.error.HTTPError as error:
            assert error.code == 400
            return error.read().decode()
        raise AssertionError(f"not refused: {answer}")

    def generate(self, prompts: Sequence[list[int]], **params: object) -> list[dict]:
        """One batched call; the same parameters for all, or a list of them as `each`."""
        each = params.pop("each", None) or [params] * len(prompts)
        body = dict(input_ids=list(prompts), sampling_params=[dict(ignore_eos=True) | p for p in each])  # type: ignore[arg-type]
        answer = self.post("/generate", body)
        return answer if isinstance(answer, list) else [answer]

    def ids(self, prompts: Sequence[list[int]], **params: object) -> list[list[int]]:
        return [one["output_ids"] for one in self.generate(prompts, **params)]

    def one(self, prompt: list[int], **params: object) -> dict:
        return self.generate([prompt], **params)[0]

    def idle(self) -> bool:
        """Whether nothing runs or waits: only then does SGLang flush its cache."""
        try:
            self.post("/flush_cache", {})
        except urllib.error.HTTPError:
            return False
        return True

    def stop(self) -> None:
        """End the server's own process group: it and the processes it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start(target: Path, options: Sequence[str], log: Path, **environ: str) -> Server:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = dict(SGLANG_USE_CPU_ENGINE="1", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    command = [sglang_python(), "-m", "sglang.launch_server", "--model-path", str(target), "--port", str(port)]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, *OPTIONS, *options],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=kept | own | environ,
            start_new_session=True,
        )
    return Server(f"http://127.0.0.1:{port}", process, log)


def wait(server: Server, seconds: float = 240) -> Server:
    end = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(server.url + "/model_info", timeout=5).read()
            return server
        except OSError:
            if server.process.poll() is not None or time.monotonic() > end:
                tail = "\n".join(server.log.read_text().splitlines()[-30:])
                if server.process.poll() is None:
                    server.stop()
                raise RuntimeError(f"the server did not come up: {tail}") from None
            time.sleep(0.5)


def together(*starts: object) -> list[Server]:
    """Wait for several servers at once."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(wait, starts))  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit("imported by the tests")
