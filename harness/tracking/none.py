"""Tracking switched off: the run folder is all there is."""

from dataclasses import dataclass
from typing import Any

from harness.records import RunFolder, RunManifest, SampleRecord


@dataclass
class NoTracker:
    """Does nothing."""

    name: str = "none"

    def start(self, run: RunFolder, manifest: RunManifest) -> None:
        pass

    def log(self, record: SampleRecord) -> None:
        pass

    def finish(self, summary: dict[str, Any], *, exit_code: int = 0) -> None:
        pass

    def location(self) -> str | None:
        return None
