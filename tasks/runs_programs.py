"""What tasks that run a model's programs share: the keys of the sandbox, and whether this host may be one."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from tasks.sandbox import GraderError, Sandbox, default_sandbox

ADVICE = (
    "Run as an ordinary user, or let root use `unshare` and `mount` (for a container: CAP_SYS_ADMIN, with seccomp and "
    "AppArmor unconfined), or install Python where other users may read it. task.allow_weak_sandbox=true runs the "
    "programs all the same"
)


@dataclass(frozen=True, kw_only=True)
class RunsPrograms:
    """`memory_mb` (2**20 bytes) of address space for each process of a program.

    `allow_weak_sandbox`: where root has neither namespaces nor another user for a program, it could end every process of
    root and read or change root's files, so nothing is run there unless this is true.
    """

    memory_mb: Annotated[int, Ge(64)] = 1024
    allow_weak_sandbox: bool = False

    def sandbox(self) -> Sandbox:
        """The strongest of this host, probed once a process. Raises GraderError where there is none to use."""
        return default_sandbox(self.allow_weak_sandbox)

    def check_host(self) -> None:
        """Raises ValueError where `sandbox` has none to give."""
        try:
            self.sandbox()
        except GraderError as error:
            raise ValueError(f"this host cannot grade the task: {error}. {ADVICE}") from None
