"""Runs one command and outlives whoever asked for it by just long enough to stop it. Standard library alone.

    python sglang_watchdog.py PARENT_PID LOG_FILE GRACE_S COMMAND...

The parent holds the other end of standard input and never writes: the pipe closes when it asks for a stop, and also when it
dies, whatever killed it. A process that the parent forked may keep the pipe open, so the parent itself is watched as well
(pidfd). Then everything that the command started gets SIGTERM, and SIGKILL after GRACE_S seconds.

Processes are found as descendants: this process is their reaper (prctl PR_SET_CHILD_SUBREAPER), so one whose own parent
died, or that moved to another session, still hangs below it. And the command dies with this process
(PR_SET_PDEATHSIG), should somebody kill that. Linux only. Exit status: the command's; 143 when it was stopped.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STOPPED = 143
POLL_S = 0.05


def main(arguments: list[str]) -> int:
    parent, log, grace_s, command = int(arguments[0]), arguments[1], float(arguments[2]), arguments[3:]
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    asked_to_stop = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: asked_to_stop.append(True))
    watched = [0, *parent_fd(parent)]
    if len(watched) == 1:
        return STOPPED  # the parent died before this process began
    with open(log, "ab", buffering=0) as out:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, 9)
        )
    while child.poll() is None and not asked_to_stop:
        readable, _, _ = select.select(watched, [], [], POLL_S)
        if readable:
            break
    stopped = child.poll() is None
    stop(grace_s)
    status = child.wait()
    return STOPPED if stopped else status if status >= 0 else 128 - status


def prctl(option: int, value: int) -> None:
    """Raises OSError where the kernel refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def parent_fd(parent: int) -> list[int]:
    """A descriptor that becomes readable when the parent dies; none when it has died already."""
    try:
        fd = os.pidfd_open(parent)
    except ProcessLookupError:
        return []
    return [fd] if os.getppid() == parent else []  # another process may have got the number since


def stop(grace_s: float) -> None:
    """SIGTERM to all descendants, then SIGKILL to those that are left, until there are none."""
    deadline = time.monotonic() + grace_s
    for pid in descendants(os.getpid()):
        send(pid, signal.SIGTERM)
    while left := descendants(os.getpid()):
        if time.monotonic() > deadline:
            for pid in left:
                send(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def descendants(root: int) -> list[int]:
    """Every living process below `root`, by the parents that /proc names; zombies are not living."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                state, ppid = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state not in "ZX":
            children.setdefault(int(ppid), []).append(int(name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
