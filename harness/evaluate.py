"""One run, in call order: check, plan, decode, score, record, summarise. Read this page first.

Everything a user can get wrong raises before a model loads. From then on every finished sample is a line in
records.jsonl, and whatever happens next (Ctrl-C, a kill, a failing sample) loses none of them: the same command goes
on where the last one stopped.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from rich.console import Console

from harness import hardware, screen
from harness.certificate.scope import certificate_status
from harness.compose import build
from harness.config import EvalConfig
from harness.engines.base import Engine, Generation, Session
from harness.metrics import quality_flags, summarize
from harness.plan import Plan, make_plan
from harness.records import RunFolder, RunManifest, SampleRecord, TreeTrace
from harness.runs import now, open_run
from harness.tracking.base import Tracker
from tasks.base import Score, Task

EXIT_STATUS = {"finished": 0, "failed": 1, "interrupted": 130}


def evaluate(config: EvalConfig, console: Console) -> int:
    """Run one cell to its end. Returns the exit status: 0, 1 when a sample failed, 130 when interrupted."""
    engine: Engine = build(config.engine, "engine")
    task: Task = build(config.task, "task")
    tracker: Tracker = build(config.tracking, "tracking")
    found = hardware.seen(config.hardware)
    if engine.owns_device:
        hardware.check(config.hardware, found)

    plan = make_plan(config, task)
    with closing(engine.open(plan.setup)) as session:  # a server must end, whatever happens from here on
        plan.resolved["engine"] = session.resolved
        run, manifest = open_run(config, plan.resolved, found, len(plan.requests))
        manifest.measured["certificate"] = certificate_status(run.path, manifest)
        manifest.measured["absent"] = getattr(session, "absent", {})
        screen.show_plan(console, plan, run)

        with recorded(run, manifest, tracker):
            decode(session, plan, task, run, tracker, console)
            profile(session, plan, run, config.run.profile)
            manifest.measured["peak_memory_bytes"] = session.peak_memory_bytes()

    screen.show_summary(console, run, tracker)
    return EXIT_STATUS[manifest.status]


def decode(session: Session, plan: Plan, task: Task, run: RunFolder, tracker: Tracker, console: Console) -> None:
    """The timed pass: decode what is not finished yet, grade it, record it."""
    done = run.finished()
    todo = [request for request in plan.requests if (request.sample_id, request.repeat) not in done]
    with screen.progress(console, len(plan.requests), len(plan.requests) - len(todo)) as live:
        for generation in session.generate(todo, observe=live.add_tokens):
            record = to_record(generation, plan, task)
            run.append(record)
            tracker.log(record)
            live.add_sample(record)


def profile(session: Session, plan: Plan, run: RunFolder, num_samples: int) -> None:
    """Decode a few samples again with every stage timed; slower for it, so these times enter no speed figure."""
    profiled = {record.key for record in run.records("profile.jsonl")}
    requests = [r for r in plan.requests[:num_samples] if (r.sample_id, r.repeat) not in profiled]
    for generation in session.generate(requests, profile=True):
        run.append(to_record(generation, plan, None), file="profile.jsonl")


def to_record(generation: Generation, plan: Plan, task: Task | None) -> SampleRecord:
    """Everything that is known of one generation, graded where a task is given."""
    request, sample = generation.request, plan.samples[generation.request.sample_id]
    facts: dict[str, Any] = dict(
        task=plan.task_name,
        sample_id=sample.id,
        repeat=request.repeat,
        prompt_sha256=plan.prompt_sha256[sample.id],
        prompt_tokens=generation.prompt_tokens or len(request.prompt_ids),
        finished_at=now(),
    )
    if generation.error is not None:
        return SampleRecord(status="error", error=generation.error, **facts)
    text = plan.prompter.text(generation.output_ids) if generation.text is None else generation.text
    graded = task.score(sample, text) if task else Score(value=None)
    return SampleRecord(
        status="ok",
        output_ids=generation.output_ids,
        output_text=text,
        finish_reason=generation.finish_reason,
        rounds=generation.rounds,
        totals=generation.totals,
        cached_tokens=generation.cached_tokens,
        ttft_s=generation.ttft_s,
        decode_s=generation.decode_s,
        batch_size=generation.batch_size,
        decode_share_s=generation.decode_share_s,
        stage_s=generation.stage_s,
        trees=generation.trees and [spelled(tree, plan) for tree in generation.trees],
        score=graded.value,
        score_detail=graded.detail,
        flags=quality_flags(generation.output_ids, text, generation.finish_reason),
        **facts,
    )


def spelled(tree: TreeTrace, plan: Plan) -> TreeTrace:
    """The trace with what its tokens say, so that a report needs no tokenizer."""
    texts = [plan.prompter.text([token]) for token in tree.tokens]
    return replace(tree, texts=texts, bonus_text=plan.prompter.text([tree.bonus]))


@contextmanager
def recorded(run: RunFolder, manifest: RunManifest, tracker: Tracker) -> Iterator[None]:
    """Whatever happens inside, run.json tells how it ended, and the summary and the tracker say what there is."""
    tracker.start(run, manifest)
    run.write_manifest(manifest)
    manifest.status = "failed"
    try:
        yield
        errors = any(record.status == "error" for record in run.records())
        manifest.status = "failed" if errors else "finished"
    except KeyboardInterrupt:
        manifest.status = "interrupted"
    finally:
        manifest.finished_at = now()
        run.write_manifest(manifest)
        summary = summarize(run.records(), run.records("profile.jsonl"), manifest)
        run.write_summary(summary)
        tracker.finish(summary, exit_code=EXIT_STATUS[manifest.status])
