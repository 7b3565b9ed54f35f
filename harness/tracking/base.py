"""What a tracker is: it sees the manifest, each record and the summary, and changes none of them."""

from typing import Any, Protocol

from harness.records import RunFolder, RunManifest, SampleRecord


class Tracker(Protocol):
    """Implementations are dataclasses: their fields are the keys that `tracking.KEY=...` may set."""

    def start(self, run: RunFolder, manifest: RunManifest) -> None:
        """Called once, before decoding, with the records of an earlier, interrupted try already in `run`."""

    def log(self, record: SampleRecord) -> None:
        """Called for each record as it is appended."""

    def finish(self, summary: dict[str, Any], *, exit_code: int = 0) -> None:
        """Called once, also when the run fails or is interrupted."""

    def location(self) -> str | None:
        """Where a person finds what was logged; None when nothing is kept."""
