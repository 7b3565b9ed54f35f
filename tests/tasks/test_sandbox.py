"""Hostile programs against every level of the sandbox that this host allows: none passes, none outlives its limit."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import tasks.sandbox as sandbox_module
from tasks.sandbox import Sandbox, levels

SANDBOXES: dict[str, Sandbox] = {}
for _level in levels(os.geteuid() == 0):
    try:
        SANDBOXES[_level.name] = Sandbox(level=_level.name)
    except RuntimeError:  # this host refuses it; "limits only" always works
        continue
NAMESPACED = [sandbox for sandbox in SANDBOXES.values() if sandbox.level.unshare]  # empty where unshare is refused
BOUNDED = [sandbox for sandbox in SANDBOXES.values() if "a process limit" in sandbox.level.holds]


@pytest.fixture(params=SANDBOXES)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return SANDBOXES[request.param]


def open_to_all(folder: Path) -> None:
    """Let every user look into `folder`, so that only the sandbox can be what refuses."""
    for one in (folder, *folder.parents):
        if one.stat().st_uid == os.geteuid() and one.stat().st_mode & 0o005 != 0o005 and "pytest" in str(one):
            one.chmod(one.stat().st_mode | 0o005)


GOOD = {
    "empty": "",
    "imports": "import math, typing, collections, itertools, re, string, hashlib, random, datetime, heapq, functools",
    "future": "from __future__ import annotations\nx: int = 1",
    "unicode": "assert 'é€' == '\\u00e9\\u20ac'; assert open('f', 'w').write('é') == 1; assert open('f').read() == 'é'",
    "prints": "print('x' * 1000)",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nassert A(1) == A(1)",
    "namedtuple": "from collections import namedtuple\nassert namedtuple('P', 'x y')(1, 2).x == 1",
    "home is cwd and writable": "import os\nassert os.getcwd() == os.environ['HOME']\nopen('a', 'w').close()",
    "main module": "import sys\nassert __name__ == '__main__' and sys.modules['__main__'].__dict__ is globals()",
    "catches its own errors": "try:\n    assert False\nexcept AssertionError:\n    pass",
    "closes its output": "import os\nos.close(1); os.close(2)",
}


@pytest.mark.parametrize("name", GOOD)
def test_ordinary_programs_pass(sandbox: Sandbox, name: str) -> None:
    outcome = sandbox.run_script(GOOD[name], timeout_s=10.0)
    assert outcome.passed, outcome.reason


LIMITS = {
    "loop": ("while True: pass", "timed out"),
    "sleep": ("import time; time.sleep(60)", "timed out"),
    "ignores signals": (
        "import signal\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        "timed out",
    ),
    "closes everything and sleeps": ("import os, time\nos.closerange(0, 64)\ntime.sleep(60)", "timed out"),
    "memory": ("x = bytearray(8 << 30)", "MemoryError"),
    "memory in steps": ("x = []\nwhile True: x.append(bytearray(1 << 24))", "MemoryError"),
    "endless output": ("import sys\nwhile True: sys.stdout.write('x' * 65536)", "printed more than"),
    "endless output on stderr": ("import os\nwhile True: os.write(2, b'x' * 65536)", "printed more than"),
    "large file": ("f = open('f', 'wb')\nwhile True: f.write(b'x' * (1 << 20))", ""),
    "many descriptors": ("x = [open('/dev/null') for _ in range(1000)]", "OSError"),
    "deep recursion": ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()", ""),
    "large integer": ("x = 9 ** 9 ** 9", "timed out"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_end_a_program(sandbox: Sandbox, name: str) -> None:
    source, reason = LIMITS[name]
    timeout_s = 20.0 if reason and reason != "timed out" else 0.5
    outcome = sandbox.run_script(source, timeout_s=timeout_s, memory_mb=256)
    assert not outcome.passed
    assert reason in outcome.reason


def commands_with(mark: str) -> list[str]:
    """Command lines of living processes that contain `mark`. Read from /proc, not from the sandbox."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if mark in command:
                found.append(command)
    return found


def wait_until_gone(mark: str) -> list[str]:
    end = time.monotonic() + 5.0  # the kernel needs a moment to take a namespace down
    while (left := commands_with(mark)) and time.monotonic() < end:
        time.sleep(0.02)
    return left


CHILDREN = {
    "child": "import subprocess\nsubprocess.Popen(['/bin/sleep', '{mark}'])\n",
    "child of another session": "import os\nif os.fork() == 0:\n    os.setsid()\n"
    "    os.execv('/bin/sleep', ['sleep', '{mark}'])\n",
    "orphan": "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    "        os.execv('/bin/sleep', ['sleep', '{mark}'])\n    os._exit(0)\nos.wait()\n",
}
ENDINGS = {"passes": "", "fails": "assert False\n", "hangs": "while True: pass\n"}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("child", CHILDREN)
def test_no_process_is_left_behind(sandbox: Sandbox, child: str, ending: str) -> None:
    mark = f"7{time.time_ns() % 10**9:09d}.25"
    source = CHILDREN[child].format(mark=mark)
    outcome = sandbox.run_script(source + ENDINGS[ending], timeout_s=0.5 if ending == "hangs" else 20.0)
    assert outcome.passed == (ending == "passes"), outcome.reason
    assert wait_until_gone(mark) == []


def test_a_killed_harness_leaves_no_process(sandbox: Sandbox, tmp_path: Path) -> None:
    open_to_all(tmp_path)
    mark = f"5{time.time_ns() % 10**9:09d}.25"
    program = CHILDREN["child of another session"].format(mark=mark) + "while True: pass"
    script = (
        f"import sys\nsys.path.insert(0, {str(Path(sandbox_module.__file__).parents[1])!r})\n"
        f"from tasks.sandbox import Sandbox\nbox = Sandbox(level={sandbox.level.name!r})\n"
        f"box.run_script({program!r}, timeout_s=600.0)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as harness:
        end = time.monotonic() + 60.0
        while not any(command.startswith("sleep") for command in commands_with(mark)) and time.monotonic() < end:
            time.sleep(0.02)
        assert commands_with(mark)
        harness.kill()
    assert wait_until_gone(mark) == []


def test_the_search_for_processes_finds_them() -> None:
    """Negative control of the test above."""
    with subprocess.Popen(["/bin/sleep", "71234567.25"]) as control:
        end = time.monotonic() + 5.0
        while not commands_with("71234567.25") and time.monotonic() < end:
            time.sleep(0.01)
        assert commands_with("71234567.25")
        control.kill()


def test_children_really_started(sandbox: Sandbox) -> None:
    source = "import subprocess\nassert subprocess.run(['/bin/sleep', '0']).returncode == 0"
    assert sandbox.run_script(source, timeout_s=10.0).passed


def test_a_fork_bomb_meets_the_process_limit() -> None:
    for sandbox in BOUNDED:
        outcome = sandbox.run_script("import os\nwhile True: os.fork()", timeout_s=0.5)
        assert not outcome.passed
        outcome = sandbox.run_script(
            "import os, time\nchildren = 0\ntry:\n    while children < 100:\n"
            "        if os.fork() == 0: time.sleep(60)\n"
            "        children += 1\nexcept BlockingIOError: pass\nassert children < 10, children",
            timeout_s=20.0,
        )
        assert outcome.passed, outcome.reason


def test_a_fork_bomb_ends_with_its_namespace() -> None:
    for sandbox in NAMESPACED:
        mark = f"6{time.time_ns() % 10**9:09d}.25"
        source = (
            "import os\ntry:\n    for _ in range(40):\n        if os.fork() == 0:\n            os.setsid()\n"
            f"            os.execv('/bin/sleep', ['sleep', '{mark}'])\nexcept OSError: pass\nwhile True: pass"
        )
        assert not sandbox.run_script(source, timeout_s=0.5).passed
        assert wait_until_gone(mark) == []


def test_no_network_no_outside_no_privilege(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    open_to_all(tmp_path)
    checks = f"""
import os, socket
def refused(call, *args):
    try:
        call(*args)
    except OSError:
        return True
    return False
assert refused(open, {str(secret)!r}), 'reads a file of ours'
assert refused(open, {str(Path(__file__))!r}), 'reads the repository'
for path in ('/usr/x', '/tmp/x', '/etc/x', {str(tmp_path / "new")!r}):
    assert refused(open, path, 'w'), path
assert refused(socket.create_connection, ('127.0.0.1', 9), 1)
assert refused(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto, b'x', ('8.8.8.8', 53))
assert refused(os.listdir, '/proc/1')
assert refused(os.chroot, '.'), 'still has capabilities'
assert os.listdir('.') == []
"""
    for sandbox in NAMESPACED:
        outcome = sandbox.run_script(checks, timeout_s=20.0)
        assert outcome.passed, outcome.reason
    assert [path.name for path in tmp_path.iterdir()] == ["secret.txt"]


def test_the_checks_above_can_fail(tmp_path: Path) -> None:
    """Negative control: without namespaces the same program reads a file of ours."""
    (tmp_path / "secret.txt").write_text("secret")
    open_to_all(tmp_path)
    source = f"assert open({str(tmp_path / 'secret.txt')!r}).read() == 'secret'"
    assert SANDBOXES["limits only"].run_script(source, timeout_s=20.0).passed


def test_temporary_folders_are_removed(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_all(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').write('x')\nos.chmod('a/b', 0)\nos.chmod('a', 0)\n"
    for end in ("", "assert False", "import os; os._exit(0)", "while True: pass"):
        sandbox.run_script(source + end, timeout_s=0.5)
    assert list(tmp_path.iterdir()) == []


def test_no_descriptor_leaks(sandbox: Sandbox) -> None:
    sandbox.run_script("", timeout_s=5.0)
    before = len(os.listdir("/proc/self/fd"))
    for source in ("", "assert False", "import os; os._exit(0)"):
        sandbox.run_script(source, timeout_s=5.0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_isolation_is_told_honestly() -> None:
    for name, sandbox in SANDBOXES.items():
        told = sandbox.isolation
        assert told["level"] == name
        assert not set(told["holds"]) & set(told["lacks"])
        assert ("no network" in told["holds"]) == bool(sandbox.level.unshare)
        assert ("no network" in told["lacks"]) == (not sandbox.level.unshare)


def test_works_for_an_ordinary_user(tmp_path: Path) -> None:
    """As root, once more under another user id; else every test above already ran as an ordinary user."""
    package = shutil.copytree(Path(sandbox_module.__file__).parent, tmp_path / "code" / "tasks")
    open_to_all(tmp_path)
    script = tmp_path / "probe.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(package.parent)!r})\nfrom tasks.sandbox import Sandbox\nbox = Sandbox()\n"
        "assert box.run_script('assert 1', timeout_s=20).passed\n"
        "assert not box.run_script('assert 0', timeout_s=20).passed\n"
        "print(box.isolation['level'])\n"
    )
    python = Path(os.path.realpath(sys._base_executable))
    command = [str(python), "-S", "-P", str(script)]
    if os.geteuid() == 0:
        drop = (
            "import os, sys; os.setgroups([]); os.setgid(54321); os.setuid(54321); os.execv(sys.argv[1], sys.argv[1:])"
        )
        become = [sys.executable, "-c", drop]
        reachable = subprocess.run([*become, *command[:1], "-c", ""], capture_output=True).returncode == 0
        if reachable:
            command = [*become, *command]
        elif NAMESPACED:  # the interpreter stands below a home folder: show it elsewhere
            elsewhere = tmp_path / "python"
            elsewhere.mkdir()
            inner = [*become, str(elsewhere / python.relative_to(os.path.realpath(sys.base_prefix))), *command[1:]]
            mount = 'mount --rbind "$0" "$1" && shift && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", mount, sys.base_prefix, str(elsewhere), *inner]
        else:  # no ordinary user can run this interpreter at all
            with pytest.raises(PermissionError):
                subprocess.run(command, user=54321)
            return
    result = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == ("user namespace" if NAMESPACED else "limits only")
