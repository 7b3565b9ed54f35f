"""First program inside the sandbox: builds the private root, sets the limits, starts the graded program, cleans up.

Not imported: `sandbox.py` passes this text to `python -I -S -c` with one JSON argument, because the file itself is not
visible from inside. It runs as PID 1 of its namespace, or as a plain supervisor where namespaces are refused. It keeps
its own identity; only the child that becomes the graded program loses it, so the program cannot signal or trace it.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any, NoReturn

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 32, 4096, 16384  # <sys/mount.h>
PR_SET_CHILD_SUBREAPER, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 36, 24, 38  # <sys/prctl.h>
HOME_INSIDE = "/home/program"
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
SYSTEM_FOLDERS = ("/usr", "/lib", "/lib64", "/lib32", "/bin")
libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, data)]
    checked(libc.mount(*texts[:3], flags, texts[3]), f"mount {target}")


def bind_read_only(path: str, target: str) -> None:
    mount(path, target, None, MS_BIND | MS_REC)
    if os.path.isdir(path):
        # A user namespace may not drop the flags that the mount already has, so they are repeated.
        kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | 8 | 1024 | 2048)  # noexec, noatime, nodiratime
        mount(path, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | kept)


def enter_private_root(folder: str, visible: list[str], owner: int | None) -> None:
    """Make `folder` a small tmpfs that holds the system folders and `visible`, read-only, and chroot into it.

    The tmpfs dies with the mount namespace, so nothing the program writes is left. There is no /proc. A process in a
    chroot may not create user namespaces, and without capabilities it cannot leave.
    """
    mount("tmpfs", folder, "tmpfs", MS_NOSUID, "size=32m,nr_inodes=4096,mode=755")
    for path in SYSTEM_FOLDERS:
        if os.path.islink(path):
            os.symlink(os.readlink(path), folder + path)
        elif os.path.isdir(path):
            os.mkdir(folder + path)
            bind_read_only(path, folder + path)
    for path in visible:
        if not path.startswith(("/usr/", "/lib/", "/bin/")):
            os.makedirs(folder + path, exist_ok=True)
            bind_read_only(path, folder + path)
    os.makedirs(folder + "/dev", exist_ok=True)
    for path in DEVICES:
        with open(folder + path, "w"):
            pass
        mount(path, folder + path, None, MS_BIND)
    os.makedirs(folder + HOME_INSIDE)
    if owner is not None:
        os.chown(folder + HOME_INSIDE, owner, owner)
    os.chroot(folder)


def become_program(spec: dict[str, Any], runner: str, uid: int | None, descriptors: list[int]) -> None:
    """Give up identity, capabilities and resources, then become `runner`. Does not return."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    for capability in range(64):  # the root of a user namespace would regain them at exec
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    for kind, value in (
        (resource.RLIMIT_AS, spec["memory_bytes"]),
        (resource.RLIMIT_CPU, spec["cpu_s"]),
        (resource.RLIMIT_FSIZE, spec["file_bytes"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, spec["open_files"]),
        (resource.RLIMIT_NPROC, spec["processes"]),  # last: an old kernel counts all processes of the user
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    home = os.getcwd()
    environment = {"PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}
    arguments = [spec["python"], "-I", "-S", "-X", "utf8", "-c", runner, *map(str, descriptors)]
    os.execve(spec["python"], arguments, environment)


def kill_descendants() -> None:
    """Kill every process below this one, also those that left the session: orphans come to the subreaper."""
    while True:
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                if parent == os.getpid():
                    os.kill(int(name), signal.SIGKILL)
            except (OSError, ValueError, IndexError):
                continue  # it ended meanwhile
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def start_alone(spec: dict[str, Any]) -> int:
    """The graded program in one process; returns its id."""
    child = os.fork()
    if child == 0:
        become_program(spec, spec["runner"], spec["uid"], spec["descriptors"])
    return child


def start_with_test(spec: dict[str, Any]) -> int:
    """The graded program in one process and its test in another, under another user; returns the id of the test's."""
    ask_read, ask_write = os.pipe()
    reply_read, reply_write = os.pipe()
    if os.fork() == 0:
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)  # the payload with the mark stood there
        for descriptor in (null, *spec["descriptors"], ask_write, reply_read):
            os.close(descriptor)
        become_program(spec, spec["runner"], spec["uid"], [ask_read, reply_write])
    test = os.fork()
    if test == 0:
        os.close(ask_read)
        os.close(reply_write)
        become_program(spec, spec["test_runner"], spec["test_uid"], [*spec["descriptors"], ask_write, reply_read])
    for descriptor in (ask_read, ask_write, reply_read, reply_write):
        os.close(descriptor)
    return test


def main(spec: dict[str, Any]) -> int:
    if spec["private_root"]:
        enter_private_root(spec["folder"], spec["visible"], spec["uid"])
        os.chdir(HOME_INSIDE)
    else:
        if spec["uid"] is not None:
            os.chown(spec["folder"], spec["uid"], spec["uid"])
        os.chdir(spec["folder"])
        checked(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")
    child = start_with_test(spec) if spec["test_runner"] else start_alone(spec)
    for descriptor in (0, 2, *spec["descriptors"]):  # they hold the pass mark and would hide the end of the program
        os.close(descriptor)

    def give_up(*_: Any) -> NoReturn:
        if not spec["private_root"]:
            kill_descendants()
        os._exit(124)

    signal.signal(signal.SIGALRM, give_up)  # the sandbox asks for it where it cannot kill a namespace
    status = wait_for(child, spec["deadline_s"])
    if status is None:
        give_up()
    if not spec["private_root"]:
        kill_descendants()
    return os.waitstatus_to_exitcode(status)


def wait_for(child: int, deadline_s: float) -> int | None:
    """Wait status of `child`; None when its time is up or nobody reads our output: then the harness was killed."""
    poller = select.poll()
    poller.register(1, 0)  # an end without a reader reports POLLERR
    tick_ms = 10
    with contextlib.suppress(OSError, AttributeError):  # kernels before 5.3 have no such descriptor
        poller.register(os.pidfd_open(child), select.POLLIN)
        tick_ms = 100
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        events = poller.poll(tick_ms)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:  # orphans come here too
                if ended[0] == child:
                    return ended[1]
        if any(descriptor == 1 for descriptor, _ in events):
            return None
    return None


if __name__ == "__main__":
    code = main(json.loads(sys.argv[1]))
    os._exit(code if code >= 0 else 128 - code)  # as PID 1 the end of this process ends all others
