"""Synthetic runs for the tests of the report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.records import Round, RunFolder, RunManifest, SampleRecord

ASKED: dict[str, Any] = {
    "model": {"name": "tiny"},
    "engine": {"name": "hf", "dtype": "float32"},
    "sampling": {"name": "t06", "temperature": 0.6},
    "task": {"name": "humaneval"},
    "run": {"limit": 8, "subset_seed": 0},
    "tracking": {"name": "offline"},
}


def record(
    sample_id: str,
    accepted: list[int],
    *,
    nodes: int = 8,
    seconds: float = 1.0,
    score: float | None = 1.0,
    **values: Any,
) -> SampleRecord:
    """A sample whose rounds accepted so many drafts and were never cut."""
    rounds, context = [], 10
    for count in accepted:
        rounds.append(Round(num_accepted=count, num_emitted=count + 1, num_nodes=nodes, context_length=context))
        context += count + 1
    given = {
        "task": "humaneval",
        "repeat": 0,
        "status": "ok",
        "prompt_sha256": f"prompt of {sample_id}",
        "prompt_tokens": 10,
        "output_ids": list(range(1 + sum(r.num_emitted for r in rounds))),
        "output_text": f"text of {sample_id}",
        "finish_reason": "stop",
        "rounds": rounds,
        "ttft_s": 0.1,
        "decode_s": seconds,
        "score": score,
        "flags": {"repetition": False, "truncated": False, "empty": False},
    }
    return SampleRecord(sample_id=sample_id, **{**given, **values})


def write(path: Path, records: list[SampleRecord], mode: str = "ddtree", **changes: Any) -> RunFolder:
    """`changes`: speculative (dict), asked (dict merged over ASKED), and any field of RunManifest."""
    speculative = {"name": mode, "verifier": "kernel", **changes.pop("speculative", {})}
    asked = {**ASKED, "speculative": speculative, **changes.pop("asked", {})}
    fields = {
        "status": "finished",
        "started_at": "2026-01-01T00:00:00+00:00",
        "samples_planned": len(records),
        **changes,
    }
    folder = RunFolder(path)
    folder.write_manifest(RunManifest(id=path.name, name=path.name, command=["python"], asked=asked, **fields))
    for one in records:
        folder.append(one)
    return folder


@pytest.fixture(scope="session")
def sample() -> Callable[..., SampleRecord]:
    return record


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., RunFolder]:
    """`run(name, records, mode, ...)` writes the run folder `name`."""
    return lambda name, records, mode="ddtree", **changes: write(tmp_path / name, records, mode, **changes)
