"""Synthetic runs for the tests of the report."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.metrics import summarize
from harness.records import Round, RunFolder, RunManifest, SampleRecord, TreeTrace

NASTY = "</script><script>alert('x')</script><img src=x onerror=alert(1)>&amp;$\\frac{1}{2}$"

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
        "command": ["python"],
        **changes,
    }
    folder = RunFolder(path)
    folder.write_manifest(RunManifest(id=path.name, name=path.name, asked=asked, **fields))
    for one in records:
        folder.append(one)
    return folder


def tree(accepted: int, nodes: int, text: str = " token") -> TreeTrace:
    """A chain of the accepted nodes, and the other nodes under the root."""
    others = nodes - accepted
    return TreeTrace(
        tokens=list(range(1, nodes + 2)),
        texts=[text] * (nodes + 1),
        parents=[-1, *range(accepted), *[0] * others],
        scores=[-0.5 * i for i in range(nodes + 1)],
        probabilities=[1.0, *[0.75] * accepted, *[0.25 / max(others, 1)] * others],
        path=list(range(accepted + 1)),
        bonus=99,
        bonus_text="<i>",
    )


def profiled(one: SampleRecord, text: str = " token") -> SampleRecord:
    """The sample as the profile pass leaves it."""
    rounds = [replace(r, expected_accepted=r.num_accepted + 0.25, expected_variance=1.0) for r in one.rounds]
    stages = {"prefill": 0.5, "draft": 0.1, "build": 0.05, "verify": 0.6, "sample": 0.02, "commit": 0.03}
    trees = [tree(r.num_accepted, r.num_nodes, text) for r in rounds]
    return replace(one, rounds=rounds, trees=trees, stage_s=stages, score=None)


def ladder(root: Path, temperatures: tuple[float, ...] = (0.0, 1.0), samples: int = 12, text: str = " token") -> Path:
    """outputs/ of a baseline, a chain and trees of two budgets at each temperature, and their summaries."""
    for heat in temperatures:
        for mode, budget, rate in (
            ("autoregressive", 0, 0.0),
            ("dflash", 0, 2.0),
            ("ddtree", 4, 2.5),
            ("ddtree", 16, 4),
        ):
            rng, records = random.Random(f"{mode} {budget} {heat}"), []
            for i in range(samples):
                accepted = [min(4, rng.randrange(int(2 * rate) + 1)) for _ in range(8)] if rate else [0] * 20
                seconds = len(accepted) * (0.1 if not rate else 0.12) * rng.uniform(0.9, 1.1)
                values = {"output_text": text, "score": float(rng.random() < 0.5)}
                nodes = budget or (4 if rate else 0)
                records.append(record(f"p/{i}", accepted, nodes=nodes, seconds=seconds, **values))
            name = f"{mode}-{budget}-{heat}"
            folder = write(
                root / name,
                records,
                mode,
                speculative={"tree_budget": budget} if budget else {},
                asked={
                    "sampling": {"name": f"t{heat}", "temperature": heat},
                    "hardware": {"name": "gpu", "bandwidth_gb_s": 1000, "count": 2},
                    "tracking": {"name": "offline", "project": "ddtree-eval", "entity": None},
                },
                resolved={"engine": {"target_weight_bytes": 8_000_000_000}, "sampling": {"temperature": heat}},
                versions={"torch": "2.13.0", "commit": "abc123", "code": "def456"},
                command=["python", "-m", "harness", f"speculative={mode}", "task.path=my file.jsonl"],
            )
            folder.append(profiled(records[0], text), file="profile.jsonl")
            folder.write_summary(summarize(folder.records(), folder.records("profile.jsonl"), folder.manifest()))
    return root


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight runs with an ordinary text."""
    return ladder(tmp_path_factory.mktemp("ladder"))


@pytest.fixture(scope="session")
def nasty_outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs whose model wrote markup."""
    return ladder(tmp_path_factory.mktemp("nasty"), temperatures=(0.0,), samples=3, text=NASTY)


@pytest.fixture(scope="session")
def page_file(outputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the eight runs, and report.md beside it."""
    from harness.report.__main__ import main

    folder = tmp_path_factory.mktemp("page")
    runs = sorted(str(path.parent) for path in outputs.rglob("run.json"))
    assert main([*runs, "--html", str(folder / "index.html"), "--markdown", str(folder / "report.md")]) == 0
    return folder / "index.html"


@pytest.fixture(scope="session")
def sample() -> Callable[..., SampleRecord]:
    return record


@pytest.fixture(scope="session")
def profile() -> Callable[..., SampleRecord]:
    return profiled


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., RunFolder]:
    """`run(name, records, mode, ...)` writes the run folder `name`."""
    return lambda name, records, mode="ddtree", **changes: write(tmp_path / name, records, mode, **changes)
