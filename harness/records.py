"""What a run leaves behind, and the only truth about it: run.json, records.jsonl, profile.jsonl, summary.json.

A record is one line a sample and repeat (of a conversation, a turn and repeat), appended and flushed when the sample is
finished. A kill can tear the last line; reading drops it, so the sample is decoded again and no finished one is lost.
Decoded samples that wait for their grade stand in ungraded.jsonl, which is gone when the run ends.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from harness.rounds import Round, Totals, TreeTrace

SCHEMA = 2  # 2: turn, grader, graded_at, earlier_scores; a file of schema 1 reads as one without them
UNGRADED = "ungraded.jsonl"


@dataclass(frozen=True, kw_only=True)
class SampleRecord:
    schema: int = SCHEMA
    task: str
    sample_id: str
    repeat: int
    turn: int = 1  # of its conversation; the history of a later one is what this run wrote
    status: Literal["ok", "error"]
    error: str | None = None
    prompt_sha256: str = ""  # of the rendered prompt's token ids
    prompt_tokens: int = 0
    output_ids: list[int] = field(default_factory=list)  # the stop id included
    output_text: str = ""
    finish_reason: Literal["stop", "length"] | None = None
    rounds: list[Round] = field(default_factory=list)
    totals: Totals | None = None  # of a server that does not tell rounds apart; then `rounds` is empty
    cached_tokens: int | None = None  # prompt tokens whose keys and values a server had from before, where it says so
    ttft_s: float | None = None  # prefill and the first token, which is drawn from it
    decode_s: float | None = None  # every round, prefill excluded; drafting included
    batch_size: int = 1  # samples that shared the decode time, where they began and ended together
    decode_share_s: float | None = None  # its share of the decode time beside others that came and went
    stage_s: dict[str, float] | None = None  # profile pass only: draft, build, verify, sample, commit
    trees: list[TreeTrace] | None = None  # profile pass only: entry i is the tree of round i, for the first 64 rounds
    score: float | None = None  # None = unscored or failed
    score_detail: dict[str, Any] = field(default_factory=dict)
    grader: int | None = None  # version of the task that gave the score; None = not graded, or before schema 2
    graded_at: str = ""  # ISO 8601, UTC
    earlier_scores: list[dict[str, Any]] = field(default_factory=list)  # score, score_detail, grader, graded_at
    flags: dict[str, bool] = field(default_factory=dict)  # repetition, truncated, empty, open_reasoning, grader_error
    target_logprob: float | None = None  # mean natural log-probability of an output token, where computed: profile pass
    finished_at: str = ""  # ISO 8601, UTC

    @property
    def key(self) -> tuple[str, int]:
        return self.sample_id, self.repeat

    @property
    def num_output(self) -> int:
        """Output tokens, the stop id included; a server may count them without showing their ids."""
        return self.totals.num_output if self.totals else len(self.output_ids)

    def check(self) -> None:
        """The identities of design.md, "Metrics". Raises ValueError naming the sample and the one that fails."""
        if self.status == "error":
            return
        if self.totals:
            self._check_totals(self.totals)
            return
        emitted = sum(r.num_emitted for r in self.rounds)
        if self.output_ids and 1 + emitted != len(self.output_ids):
            raise self._broken(f"1 + sum of num_emitted = {1 + emitted}, but {len(self.output_ids)} output tokens")
        for place, (r, tree) in enumerate(zip(self.rounds, self.trees or [], strict=False)):
            if len(tree.path) != r.num_accepted + 1:
                raise self._broken(f"round {place} accepted {r.num_accepted}, its tree a path of {len(tree.path) - 1}")
        for place, r in enumerate(self.rounds):
            last = place == len(self.rounds) - 1
            if r.num_accepted < 0 or r.num_accepted > r.num_nodes:
                raise self._broken(f"round {place} accepted {r.num_accepted} of {r.num_nodes} draft nodes")
            if not (1 <= r.num_emitted <= r.num_accepted + 1):
                raise self._broken(f"round {place} emitted {r.num_emitted} of {r.num_accepted} + 1 tokens")
            if not last and r.num_emitted != r.num_accepted + 1:
                raise self._broken(f"round {place} was cut, but it is not the last")

    def _check_totals(self, totals: Totals) -> None:
        if self.rounds:
            raise self._broken("has rounds and totals: totals are for a server that does not tell rounds apart")
        if self.output_ids and len(self.output_ids) != totals.num_output:
            raise self._broken(f"totals count {totals.num_output} output tokens, there are {len(self.output_ids)}")
        try:
            totals.check()
        except ValueError as error:
            raise self._broken(str(error)) from error

    def _broken(self, what: str) -> ValueError:
        return ValueError(f"record of {self.task}/{self.sample_id} repeat {self.repeat}: {what}")


@dataclass(kw_only=True)
class RunManifest:
    """run.json. `asked` is the composed config; `resolved` is what it came to on this machine."""

    schema: int = SCHEMA
    id: str
    name: str
    command: list[str]
    asked: dict[str, Any]
    resolved: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    hardware_seen: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)  # peak_memory_bytes, setup_s: differ from try to try
    status: Literal["running", "finished", "failed", "interrupted"] = "running"
    started_at: str = ""
    finished_at: str | None = None
    samples_planned: int = 0


class RunFolder:
    """One run on disk. Reading never writes; only `append`, `write_manifest` and `write_summary` do."""

    def __init__(self, path: Path | str):
        self.path = Path(path)

    @property
    def manifest_path(self) -> Path:
        return self.path / "run.json"

    def manifest(self) -> RunManifest:
        """Raises ValueError when the folder holds no readable run.json of this schema."""
        if not self.manifest_path.is_file():
            raise ValueError(f"{self.path} holds no run.json: it is not the folder of a run")
        try:
            values = json.loads(self.manifest_path.read_text())
        except json.JSONDecodeError as error:
            raise ValueError(f"{self.manifest_path} is not JSON: {error}") from error
        return _read(RunManifest, values, str(self.manifest_path))

    def write_manifest(self, manifest: RunManifest) -> None:
        self._write_json("run.json", asdict(manifest))

    def write_summary(self, summary: dict[str, Any]) -> None:
        self._write_json("summary.json", summary)

    def summary(self) -> dict[str, Any] | None:
        path = self.path / "summary.json"
        return json.loads(path.read_text()) if path.is_file() else None

    def records(self, file: str = "records.jsonl") -> list[SampleRecord]:
        """All whole records in file order; a later record of the same sample and repeat replaces an earlier one."""
        latest: dict[tuple[str, int], SampleRecord] = {}
        for record in _whole_lines(self.path / file):
            latest[record.key] = record
        return list(latest.values())

    def finished(self) -> set[tuple[str, int]]:
        """The (sample id, repeat) pairs that need not be decoded again. Error records are tried again."""
        return {record.key for record in (*self.records(), *self.records(UNGRADED)) if record.status == "ok"}

    def ungraded(self) -> list[SampleRecord]:
        """Decoded records without the grade that they should have: a kill or a grader that did not work cost it."""
        kept = {record.key: record for record in self.records() if record.status == "ok"}
        failed = [record for record in kept.values() if record.flags.get("grader_error")]
        return [*failed, *(record for record in self.records(UNGRADED) if record.key not in kept)]

    def append_ungraded(self, record: SampleRecord) -> None:
        self.append(record, file=UNGRADED)

    def drop_ungraded(self) -> None:
        """Remove the file of ungraded records once each of them is in records.jsonl. Else it stays."""
        kept = {record.key for record in self.records() if record.status == "ok"}
        if all(record.key in kept for record in self.records(UNGRADED)):
            (self.path / UNGRADED).unlink(missing_ok=True)

    def append(self, record: SampleRecord, file: str = "records.jsonl") -> None:
        """Check the record's identities, then append it as one line and force it to disk."""
        record.check()
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / file).open("ab") as out:
            if out.tell() and not _ends_with_newline(self.path / file):
                out.write(b"\n")  # close a line that a kill tore, so that only that line is lost
            out.write(json.dumps(asdict(record), ensure_ascii=False).encode() + b"\n")
            out.flush()
            os.fsync(out.fileno())

    def _write_json(self, name: str, values: dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        partial = self.path / f"{name}.partial"
        partial.write_text(json.dumps(values, indent=1, ensure_ascii=False, default=str) + "\n")
        partial.replace(self.path / name)


def _whole_lines(path: Path) -> Iterator[SampleRecord]:
    if not path.is_file():
        return
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError):
            continue  # torn by a kill: the sample is decoded again
        if type(values) is not dict:
            raise ValueError(f"{path}:{number} is not a record but {line[:40]!r}")
        rounds = [_read(Round, r, f"{path}:{number}") for r in values.pop("rounds", [])]
        if values.get("trees") is not None:
            values["trees"] = [_read(TreeTrace, tree, f"{path}:{number}") for tree in values["trees"]]
        if values.get("totals") is not None:
            values["totals"] = _read(Totals, values["totals"], f"{path}:{number}")
        yield _read(SampleRecord, {**values, "rounds": rounds}, f"{path}:{number}")


def _read(cls: type, values: dict[str, Any], where: str) -> Any:
    if type(values) is not dict:
        raise ValueError(f"{where} is not a JSON object")
    schema = values.get("schema", SCHEMA)
    if schema > SCHEMA:
        raise ValueError(f"{where} has schema {schema}; this version reads up to {SCHEMA}: update the harness")
    known = {f.name for f in fields(cls)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"{where} has unknown keys {unknown}")
    required = {f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING}
    if missing := sorted(required - set(values)):
        raise ValueError(f"{where} lacks {missing}: written by another program, or edited")
    return cls(**values)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
