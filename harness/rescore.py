"""`python -m harness.rescore RUN ... [task.KEY=VALUE ...]`: grade the stored answers of runs again, decoding nothing.

For a new version of a grader, for answers whose grader did not work, or for a judge that the run did not have. Nothing is
lost: a changed record is appended as a new line, which holds the earlier scores, and the old line stays in the file.
"""

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.compose import ConfigError, build, from_values, plain_words
from harness.config import EvalConfig
from harness.evaluate import outcome
from harness.grading import MAX_WORKERS, Grading, GradingPlan, usable_cores
from harness.metrics import summarize
from harness.records import RunFolder, RunManifest, SampleRecord
from harness.runs import hold, now
from harness.sources import fetch
from harness.tracking.base import Tracker
from tasks.base import ChecksHost, Sample, Task
from tasks.reasoning import strip_reasoning, with_opened

USAGE = "usage: python -m harness.rescore RUN ... [task.KEY=VALUE ...]"


def main(arguments: list[str]) -> int:
    """0 all graded, 1 some answer could not be, 2 what was asked cannot be done, 130 interrupted."""
    words = [word for word in arguments if "=" in word and not Path(word).exists()]
    folders = [word for word in arguments if word not in words]
    if not folders or any(word.startswith("-") for word in folders):
        print(USAGE, file=sys.stderr)
        return 2
    console = Console()
    try:
        return max(rescore(RunFolder(folder), words, console) for folder in folders)
    except ValueError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        return 130


def rescore(run: RunFolder, words: list[str], console: Console) -> int:
    """Grade every decoded answer of `run` with the task as it is now. Raises ValueError when that cannot be done."""
    manifest = run.manifest()
    hold(run.path)
    config = from_values(changed(manifest.asked, words), words)
    task: Task = build(config.task, "task")
    if task.metric is None:
        raise ValueError(
            f"{run.path}: task={config.task.name} has no grader. A chat task needs task.judge.url and .model"
        )
    if isinstance(task, ChecksHost):
        task.check_host()
    records = {record.key: record for record in (*run.records(), *run.ungraded())}
    answers = samples_of(task, read_samples(task, manifest, config), list(records.values()), manifest)

    changes: Counter[str] = Counter()

    def keep(record: SampleRecord) -> None:
        before = records[record.key]
        changes["graded"] += record.score is not None
        changes["failed"] += record.score is None
        changes["changed"] += record.score != before.score
        if facts(record) != facts(before) or record.key not in kept:
            run.append(record)

    kept = {record.key for record in run.records()}
    plan = GradingPlan(workers=min(usable_cores(), MAX_WORKERS), beside=True)
    with console.status(f"grading {len(answers)} answers"), Grading(task, plan, keep) as grading:
        for record, sample in answers:
            grading.add(record, sample, with_opened(opens(manifest), record.output_text))
    run.drop_ungraded()
    finish(run, manifest, task, words, dict(changes), build(config.tracking, "tracking"))
    console.print(
        f"{run.path}: {changes['graded']} graded, {changes['changed']} scores changed, {changes['failed']} without a grade",
        soft_wrap=True,
        highlight=False,
    )
    return 1 if changes["failed"] else 0


def changed(asked: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """A copy of a run's composed values with `task.KEY=VALUE` words applied; their keys are checked with the rest."""
    copy = json.loads(json.dumps(asked))
    for key, value in plain_words(words).items():
        path, node = key.split("."), copy
        if path[0] != "task" or len(path) < 2:
            raise ConfigError(f"{key}: only words of the form task.KEY=VALUE are taken here")
        for part in path[:-1]:
            node = node.get(part)
            if not isinstance(node, dict):
                raise ConfigError(f"{key}: no such key, {part} has no keys of its own")
        node[path[-1]] = value
    return copy


def facts(record: SampleRecord) -> tuple[Any, ...]:
    """What of a grade is worth a new line; how long a grader took is not."""
    return record.score, record.grader, record.flags.get("grader_error"), record.score_detail.get("reason")


def opens(manifest: RunManifest) -> str:
    return manifest.resolved.get("prompts", {}).get("opens_reasoning", "")


def read_samples(task: Task, manifest: RunManifest, config: EvalConfig) -> dict[str, Sample]:
    """First turns by id. Raises ValueError when the data is not that of the run: a grade would be of another question."""
    sources = config.data.sources if config.data.path is None else replace(config.data.sources, path=config.data.path)
    fetched = fetch(sources, config.data.source, key="task")
    used = manifest.resolved.get("sources", {}).get("data", {})
    if sorted(fetched.sha256.values()) != sorted(used.get("sha256", {}).values()):
        raise ValueError(f"{fetched.location}: not the data that {manifest.name} was made with (sha256 differs)")
    return {sample.id: sample for sample in task.load(fetched.path)}


def samples_of(
    task: Task, first: dict[str, Sample], records: list[SampleRecord], manifest: RunManifest
) -> list[tuple[SampleRecord, Sample]]:
    """Each decoded record with its sample; a later turn's holds the history of its own repeat."""
    by_key = {record.key: record for record in records}
    found = []
    for sample in first.values():
        for repeat in sorted({record.repeat for record in records}):
            turn: Sample | None = sample
            while turn is not None and (record := by_key.get((turn.id, repeat))) is not None and record.status == "ok":
                found.append((record, turn))
                answer = strip_reasoning(with_opened(opens(manifest), record.output_text))
                turn = turn.next_turn((answer or "").strip())
    unknown = {r.key for r in records if r.status == "ok"} - {record.key for record, _ in found}
    if unknown:
        raise ValueError(
            f"the task's data has no sample {sorted(unknown)[0][0]}, which {manifest.name} has an answer to"
        )
    return found


def finish(
    run: RunFolder, manifest: RunManifest, task: Task, words: list[str], changes: dict[str, int], tracker: Tracker
) -> None:
    """Summary, manifest and tracker from the records as they are now."""
    manifest.resolved["task"] = {"version": task.version, "metric": task.metric}
    graded = {"at": now(), "grader": task.version, "words": words, **changes}
    manifest.measured["rescored"] = [*manifest.measured.get("rescored", []), graded]
    records = run.records()
    if manifest.status in ("finished", "failed") and len(records) >= manifest.samples_planned:
        manifest.status = outcome(run)
    run.write_manifest(manifest)
    summary = summarize(records, run.records("profile.jsonl"), manifest)
    run.write_summary(summary)
    tracker.start(run, manifest)
    tracker.finish(summary, exit_code=0 if manifest.status == "finished" else 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
