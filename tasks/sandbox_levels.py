"""The kinds of isolation that a host may allow, and what each holds and lacks."""

from dataclasses import dataclass

COMMON = ["limits on memory, CPU time, file size and open files", "own temporary folder, removed", "clean interpreter"]
NAMESPACED = ["own process namespace: all end together", "no network", "private read-only root", "own IPC"]


@dataclass(frozen=True, kw_only=True)
class Level:
    """`is_weak`: a program may signal the processes of root and use its files, though it has no capabilities."""

    name: str
    unshare: tuple[str, ...]  # empty: no namespaces
    drop_user: bool
    holds: list[str]
    lacks: list[str]
    is_weak: bool = False


def levels(is_root: bool) -> list[Level]:
    """What may be tried, strongest first."""
    spaces = ("unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child")
    process_limit, no_process_limit = "a process limit", "a process limit (it does not bind root)"
    direct = Level(
        name="namespaces",
        unshare=spaces,
        drop_user=True,
        holds=[*COMMON, *NAMESPACED, "unprivileged user", process_limit],
        lacks=[],
    )
    by_user = Level(
        name="user namespace",
        unshare=(*spaces, "--user", "--map-root-user"),
        drop_user=False,
        holds=[*COMMON, *NAMESPACED, "no capabilities", *([] if is_root else [process_limit])],
        lacks=[no_process_limit] if is_root else [],
    )
    missing = ["no network", "private read-only root", "own process namespace"]
    dropped = Level(
        name="unprivileged user",
        unshare=(),
        drop_user=True,
        holds=[*COMMON, "unprivileged user", process_limit, "a supervisor kills all descendants"],
        lacks=missing,
    )
    plain = Level(
        name="limits only",
        unshare=(),
        drop_user=False,
        holds=[*COMMON, *([] if is_root else [process_limit]), "a supervisor kills all descendants"],
        lacks=[*missing, "unprivileged user", *([no_process_limit] if is_root else [])],
        is_weak=is_root,
    )
    return [direct, by_user, dropped, plain] if is_root else [by_user, plain]
