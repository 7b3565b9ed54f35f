"""A real one-node Slurm for tests: munged, slurmctld and slurmd on loopback, no accounting, nothing outside one folder.

`python tests/launch/loopback_slurm.py stop FOLDER` stops what a killed test run left behind, by its own pid files.

The node pretends four CPUs and two GPUs, so that a small machine runs a few cells at once. Jobs of the partition
`urgent` preempt those of `main`, which are requeued. Written for Slurm 22.05 as Debian 12 packages it; run as root.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
PACKAGES = ["slurm-wlm", "munge"]
DAEMONS = ("slurmd", "slurmctld", "munged")  # in the order in which they stop


def require_programs() -> None:
    """Installs the Debian packages where that is allowed. Raises RuntimeError with the command where it is not."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    if all(shutil.which(program, path=path) for program in PROGRAMS):
        return
    from tests import apt  # not at the top: `stop` runs without the repository on the path

    apt.install(*PACKAGES)


class LoopbackSlurm:
    def __init__(self, folder: Path):
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.socket = folder / "run/munge.socket"
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(self.conf),
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        }

    def start(self) -> None:
        for name in ("munge", "run", "log", "state", "spool"):
            (self.folder / name).mkdir(parents=True, exist_ok=True, mode=0o755)
        (self.folder / "munge").chmod(0o700)
        key = self.folder / "munge/munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        node = socket.gethostname().split(".")[0]
        self.conf.write_text(self._conf(node, _free_port(), _free_port()))
        (self.folder / "gres.conf").write_text(f"NodeName={node} Name=gpu File=/dev/tty[1-2]\n")
        self._run(
            "munged", "--force", f"--socket={self.socket}", f"--key-file={key}", "--num-threads=2",
            f"--pid-file={self.folder}/run/munged.pid", f"--log-file={self.folder}/log/munged.log",
            f"--seed-file={self.folder}/munge/munged.seed",
        )  # fmt: skip
        self._wait_for("munge", "-n", f"--socket={self.socket}")
        self._run("slurmctld", "-f", str(self.conf))
        self._wait_for("scontrol", "ping")
        self._run("slurmd", "-f", str(self.conf), "-N", node)
        self._wait_for("sh", "-c", "sinfo -h -o %T | grep -qx idle")

    def stop(self) -> None:
        """Ends only processes of our own pid files, and only while they are what the file says."""
        if self.socket.exists():
            subprocess.run(["scancel", "--user=root"], env=self.environment, capture_output=True)
            time.sleep(0.5)
        for name in DAEMONS:
            file = self.folder / f"run/{name}.pid"
            pid = int(file.read_text()) if file.is_file() and file.read_text().strip() else None
            if pid is not None and _name_of(pid) == name:
                os.kill(pid, 15)
                deadline = time.monotonic() + 10
                while _name_of(pid) == name and time.monotonic() < deadline:
                    time.sleep(0.1)
                if _name_of(pid) == name:
                    os.kill(pid, 9)
            file.unlink(missing_ok=True)

    def command(self, *words: str) -> str:
        return subprocess.run(words, env=self.environment, check=True, capture_output=True, text=True).stdout

    def _run(self, *words: str) -> None:
        log = (self.folder / "log/start.log").open("ab")  # a daemon keeps its output open: a pipe would never end
        subprocess.run(words, env=self.environment, check=True, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _wait_for(self, *words: str) -> None:
        deadline = time.monotonic() + 20
        while subprocess.run(words, env=self.environment, capture_output=True).returncode:
            if time.monotonic() > deadline:
                logs = "\n".join(f"{p.name}: {p.read_text()[-800:]}" for p in sorted((self.folder / "log").iterdir()))
                raise RuntimeError(f"Slurm did not come up: {' '.join(words)} keeps failing\n{logs}")
            time.sleep(0.1)

    def _conf(self, node: str, control_port: int, node_port: int) -> str:
        run, log = self.folder / "run", self.folder / "log"
        return f"""
ClusterName=loopback
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={control_port}
SlurmdPort={node_port}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
CredType=cred/munge
# The default of 120 s is also how long a preempted job waits before it starts again.
AuthInfo=socket={self.socket},cred_expire=10
SlurmUser=root
SlurmdUser=root
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd.pid
SlurmctldLogFile={log}/slurmctld.log
SlurmdLogFile={log}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=512
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
MailProg=/bin/true
KillWait=10
InactiveLimit=0
Waittime=0
GresTypes=gpu
NodeName={node} NodeAddr=127.0.0.1 CPUs=4 RealMemory=8000 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes={node} Default=YES MaxTime=01:00:00 State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=urgent Nodes={node} MaxTime=01:00:00 State=UP PriorityTier=10 PreemptMode=OFF
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _name_of(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("start", "stop"):
        sys.exit("usage: loopback_slurm.py start|stop FOLDER")
    require_programs()
    getattr(LoopbackSlurm(Path(sys.argv[2]).resolve()), sys.argv[1])()
