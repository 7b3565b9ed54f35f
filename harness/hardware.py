"""Does the machine match its profile? Asked before anything is fetched or loaded."""

import os
import platform
from typing import Any

from harness.config import HardwareConfig


def seen(profile: HardwareConfig) -> dict[str, Any]:
    """What this process finds: the CPU, and the CUDA devices when the profile asks for them."""
    found: dict[str, Any] = {"cpu": _cpu_name(), "cores": os.cpu_count(), "system": platform.platform()}
    if profile.device == "cuda":
        import torch

        found["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        found["cuda"] = torch.version.cuda
    return found


def check(profile: HardwareConfig, found: dict[str, Any]) -> None:
    """Raises ValueError when a process that owns the device finds another than its profile describes."""
    if profile.device == "cpu":
        return
    devices = found["devices"]
    if not devices:
        raise ValueError(
            f"hardware={profile.name} wants {profile.count} × {profile.device_name or 'a CUDA device'}, but this machine "
            "has no usable CUDA device. Use hardware=cpu here, or run on the machine that the profile describes"
        )
    wrong = [name for name in devices[: profile.count] if profile.device_name and profile.device_name not in name]
    if wrong or len(devices) < profile.count:
        raise ValueError(
            f"hardware={profile.name} wants {profile.count} × {profile.device_name}, but this machine has "
            f"{', '.join(devices)}. Choose the profile of this machine, so that figures are held against the right peaks"
        )


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
