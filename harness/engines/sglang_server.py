"""One SGLang server of our own: started through the watchdog, waited for, and always stopped.

Source of the endpoints: SGLang 0.5.17, `entrypoints/http_server.py`.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from harness.engines.http_stream import ServerError

WATCHDOG = Path(__file__).with_name("sglang_watchdog.py")
GRACE_S = 10.0  # between SIGTERM and SIGKILL
LOG_LINES = 25
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy knows nothing of this machine's ports
HOST = "127.0.0.1"


class Server:
    """Use as a context, or call `stop`. The log is kept where the server failed and removed where it did not."""

    def __init__(self, command: list[str], environment: dict[str, str], startup_s: float):
        """Starts it and returns when it is healthy. Raises ServerError with the end of its log when it is not."""
        self.folder = Path(tempfile.mkdtemp(prefix="ddtree-sglang-"))
        self.log = self.folder / "server.log"
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        words = [*command, "--host", HOST, "--port", str(self.port)]
        watchdog = [sys.executable, "-I", "-S", str(WATCHDOG), str(os.getpid()), str(self.log), str(GRACE_S)]
        # A session of its own: Ctrl-C in a terminal goes to this process alone, which then stops the server.
        self.process = subprocess.Popen(
            [*watchdog, *words], stdin=subprocess.PIPE, env={**os.environ, **environment}, start_new_session=True
        )
        try:
            self._wait(startup_s)
        except BaseException:
            self.stop(keep_log=True)
            raise

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def alive(self) -> bool:
        return self.process.poll() is None

    def check(self) -> None:
        """Raises ServerError when the server has ended by itself."""
        if not self.alive():
            raise self.failure(f"the SGLang server ended by itself with status {self.process.returncode}")

    def check_after(self, error: str) -> None:
        """Was it the sample or the server? Raises ServerError when the server no longer answers."""
        self.check()
        try:
            self.get("/health", timeout_s=60)
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            deadline = time.monotonic() + GRACE_S
            while self.alive() and time.monotonic() < deadline:  # the watchdog is still collecting what is left
                time.sleep(0.05)
            self.check()
            raise self.failure(f"the SGLang server no longer answers ({error})") from None

    def get(self, path: str, timeout_s: float = 10.0) -> Any:
        """The JSON of a GET, or its text. Raises OSError while there is no answer."""
        with DIRECT.open(self.url + path, timeout=timeout_s) as reply:
            text = reply.read().decode()
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text

    def flush(self) -> None:
        """Empty the prefix cache. Raises ServerError when the server does not."""
        deadline = time.monotonic() + 30
        while True:
            try:
                request = urllib.request.Request(f"{self.url}/flush_cache", method="POST")
                with DIRECT.open(request, timeout=30):
                    return
            except urllib.error.HTTPError as error:  # it waits for what is still running
                if time.monotonic() > deadline:
                    raise ServerError(f"the server did not flush its cache: {error.read().decode()}") from error
            except OSError as error:
                self.check()
                raise ServerError(f"the server did not flush its cache: {error}") from error
            time.sleep(0.1)

    def stop(self, keep_log: bool = False) -> None:
        """Ask the watchdog, by closing its pipe, to stop everything that it started, and wait until it has."""
        failed = self.process.poll() not in (None, 0)
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait()
        if not keep_log and not failed:
            shutil.rmtree(self.folder, ignore_errors=True)

    def failure(self, what: str) -> ServerError:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.is_file() else []
        end = "\n".join(lines[-LOG_LINES:]) or "(its log is empty)"
        return ServerError(f"{what}. The end of {self.log}:\n{end}")

    def _wait(self, startup_s: float) -> None:
        deadline = time.monotonic() + startup_s
        while True:
            self.check()
            try:
                self.get("/health")
                return
            except OSError:
                pass  # not listening yet, or 503 while it loads
            if time.monotonic() > deadline:
                raise self.failure(f"engine.startup_s={startup_s:g}: the SGLang server is not healthy after that time")
            time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


def memory_of(pid: int) -> int:
    """Peak resident bytes of a process and its descendants, added up; shared pages count once for each."""
    from harness.engines.sglang_watchdog import descendants

    return sum(_peak_bytes(each) for each in [pid, *descendants(pid)])


def _peak_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
