"""Whatever ends the harness, nothing that it started is left: with a small server that resists in every way SGLang might.

The real server is killed the same way in test_sglang_server_real.py.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.engines.http_stream import ServerError
from harness.engines.sglang_server import Server
from harness.engines.sglang_watchdog import descendants
from tests.conftest import environment

# Answers /health; has a child in a session of its own, which has a child that ignores SIGTERM and whose parent then ends.
STUBBORN = """
import http.server, os, signal, subprocess, sys, time
if "orphan" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
if "child" in sys.argv:
    subprocess.Popen([sys.executable, __file__, "orphan"])
    sys.exit()
subprocess.Popen([sys.executable, __file__, "child"], start_new_session=True)
print("starting", sys.argv, flush=True)
if os.environ.get("FAIL"):
    sys.exit("no such model")
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        self.send_response(int(os.environ.get("HEALTH", "200"))); self.end_headers()
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""

HARNESS = """
import os, sys, time
from harness.engines.sglang_server import Server
server = Server(sys.argv[1:], {}, 60)
print("up", flush=True)
if os.environ.get("FORK"):  # a forked worker that outlives its parent, with the pipe open
    if pid := os.fork():
        print(pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def stubborn(tmp_path) -> list[str]:
    path = tmp_path / "stubborn.py"
    path.write_text(STUBBORN)
    return [sys.executable, str(path)]


def left(command: list[str]) -> list[int]:
    """Processes that run the test's own script."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().split(b"\0")[1:2] == [command[1].encode()]:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_until_none_is_left(command: list[str]) -> None:
    deadline = time.monotonic() + 30
    while left(command) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left(command) == []


def test_a_server_is_stopped_with_everything_below_it(stubborn, monkeypatch):
    monkeypatch.setattr("harness.engines.sglang_server.GRACE_S", 0.5)
    with Server(stubborn, {}, 60) as server:
        assert server.alive()
        server.get("/health")
        assert len(left(stubborn)) >= 2
        assert "starting" in server.log.read_text()
        log = server.log
    assert left(stubborn) == []
    assert not log.exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("fork", ["", "1"])
def test_a_harness_that_is_killed_leaves_nothing(stubborn, how, fork):
    env = {**environment(), "FORK": fork}
    harness = subprocess.Popen([sys.executable, "-c", HARNESS, *stubborn], stdout=subprocess.PIPE, env=env)
    try:
        assert harness.stdout.readline() == b"up\n"
        assert left(stubborn)
        forked = harness.stdout.readline() if fork else b"0"
        os.kill(harness.pid, how)
        wait_until_none_is_left(stubborn)
        if fork:
            os.kill(int(forked), 0)  # the copy of the pipe was still open
            os.kill(int(forked), signal.SIGKILL)
    finally:
        harness.kill()
        harness.wait()


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.1, 0.2, 0.4, 0.7])
def test_at_any_moment_of_the_start(stubborn, after_s):
    harness = subprocess.Popen([sys.executable, "-c", HARNESS, *stubborn], stdout=subprocess.DEVNULL, env=environment())
    time.sleep(after_s)
    harness.kill()
    harness.wait()
    time.sleep(0.3)
    wait_until_none_is_left(stubborn)


def test_a_watchdog_that_is_killed_takes_the_server_with_it(stubborn, monkeypatch):
    monkeypatch.setattr("harness.engines.sglang_server.GRACE_S", 0.5)
    server = Server(stubborn, {}, 60)
    below = descendants(server.process.pid)
    [main] = [pid for pid in below if b"--port" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    server.process.kill()
    server.process.wait()
    deadline = time.monotonic() + 10
    while main in left(stubborn) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert main not in left(stubborn)
    with pytest.raises(ServerError, match="ended by itself with status -9"):
        server.check()
    server.stop()
    for pid in left(stubborn):  # the orphan of the test: SGLang's own processes end with their parent
        os.kill(pid, signal.SIGKILL)


def test_a_server_that_fails_shows_the_end_of_its_log(stubborn):
    with pytest.raises(ServerError, match=r"ended by itself with status 1(.|\n)*no such model"):
        Server(stubborn, {"FAIL": "1"}, 60)
    wait_until_none_is_left(stubborn)


def test_a_server_that_never_gets_healthy_is_stopped(stubborn, monkeypatch):
    monkeypatch.setattr("harness.engines.sglang_server.GRACE_S", 0.5)
    with pytest.raises(ServerError, match=r"engine.startup_s=1: .*not healthy(.|\n)*starting"):
        Server(stubborn, {"HEALTH": "503"}, 1)
    wait_until_none_is_left(stubborn)


def test_a_command_that_does_not_exist_is_said(tmp_path):
    with pytest.raises(ServerError, match="ended by itself"):
        Server([str(tmp_path / "no-python")], {}, 5)
