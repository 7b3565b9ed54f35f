"""One run, in call order: check, plan, decode, grade, record, summarise. Read this page first.

Everything a user can get wrong raises before a model loads. From then on every finished sample is a line in
records.jsonl, and whatever happens next (Ctrl-C, a kill, a failing sample) loses none of them: the same command goes
on where the last one stopped.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from typing import Any, Literal, cast

from rich.console import Console

from harness import hardware, screen
from harness.certificate.scope import certificate_status
from harness.compose import build
from harness.config import EvalConfig
from harness.conversations import Asked, facts_of, first_turns, later_turns
from harness.engines.base import Engine, Generation, ScoresOutputs, Session
from harness.grading import Grading, GradingPlan, grading_plan
from harness.metrics import quality_flags, summarize
from harness.plan import Plan, make_plan
from harness.records import RunFolder, RunManifest, SampleRecord, TreeTrace
from harness.runs import now, open_run
from harness.tracking.base import Tracker
from tasks.base import ChecksHost, Task
from tasks.reasoning import strip_reasoning

EXIT_STATUS = {"finished": 0, "failed": 1, "interrupted": 130}


def evaluate(config: EvalConfig, console: Console) -> int:
    """Run one cell to its end. Returns the exit status: 0, 1 when a sample failed, 130 when interrupted."""
    engine: Engine = build(config.engine, "engine")
    task: Task = build(config.task, "task")
    if isinstance(task, ChecksHost):
        task.check_host()
    tracker: Tracker = build(config.tracking, "tracking")
    found = hardware.seen(config.hardware)
    if engine.owns_device:
        hardware.check(config.hardware, found)

    plan = make_plan(config, task)
    with closing(engine.open(plan.setup)) as session:  # a server must end, whatever happens from here on
        plan.resolved["engine"] = session.resolved
        run, manifest = open_run(config, plan.resolved, found, plan.num_records)
        manifest.measured["certificate"] = certificate_status(run.path, manifest)
        manifest.measured["absent"] = getattr(session, "absent", {})
        graders = grading_plan(config.hardware.device, session.resolved.get("threads", 1))
        manifest.measured["grading"] = asdict(graders)
        screen.show_plan(console, plan, run)

        with recorded(run, manifest, tracker):
            decode(session, plan, task, graders, run, tracker, console)
            profiled = profile(session, plan, run, config.run.profile)
            manifest.measured |= {"peak_memory_bytes": session.peak_memory_bytes(), **session.measured}
            for record in with_logprob(session, plan, profiled):
                run.append(record, file="profile.jsonl")

    screen.show_summary(console, run, tracker)
    return EXIT_STATUS[manifest.status]


def decode(
    session: Session, plan: Plan, task: Task, graders: GradingPlan, run: RunFolder, tracker: Tracker, console: Console
) -> None:
    """The timed pass: decode what is not finished yet, have it graded, record it. Conversations go turn by turn."""

    def keep(record: SampleRecord) -> None:
        run.append(record)
        tracker.log(record)

    done = len(run.finished())
    with screen.progress(console, plan.num_records, done) as live, Grading(task, graders, keep, run) as grading:
        asked = first_turns(plan)
        while asked:
            decode_turn(session, asked, plan, run, grading, live)
            asked, failed = later_turns(plan, asked, run)
            for record in failed:
                keep(record)


def decode_turn(
    session: Session, asked: list[Asked], plan: Plan, run: RunFolder, grading: Grading, live: screen.Live
) -> None:
    """One turn of every conversation: the ungraded answers of an earlier try are graded, the missing ones decoded."""
    done, ungraded, by_key = run.finished(), run.ungraded(), {one.key: one for one in asked}
    todo = [one.request for one in asked if one.key not in done]
    for record in ungraded:
        if record.key in by_key:
            grading.add(record, by_key[record.key].sample, plan.prompter.graded(record.output_text))
    for generation in session.generate(todo, observe=live.add_tokens):
        one = by_key[generation.request.sample_id, generation.request.repeat]
        record = to_record(generation, one, plan)
        live.add_sample(record)
        grading.add(record, one.sample, plan.prompter.graded(record.output_text))
    grading.collect()


def profile(session: Session, plan: Plan, run: RunFolder, num_samples: int) -> list[SampleRecord]:
    """Decode a few samples again with every stage timed; slower for it, so these times enter no speed figure."""
    before = {record.key for record in run.records("profile.jsonl")}
    requests = [r for r in plan.requests[:num_samples] if (r.sample_id, r.repeat) not in before]
    records = []
    for generation in session.generate(requests, profile=True):
        one = Asked(request=generation.request, sample=plan.samples[generation.request.sample_id])
        records.append(to_record(generation, one, plan))
    return records


def with_logprob(session: Session, plan: Plan, records: list[SampleRecord]) -> Iterator[SampleRecord]:
    """The profiled records with the target's log-probability of their outputs, where the engine can tell it.

    After the peak of memory was read: a forward over a whole output is larger than any that decodes it.
    """
    requests = {(request.sample_id, request.repeat): request for request in plan.requests}
    scorer = cast(ScoresOutputs, session) if hasattr(session, "target_logprob") else None
    for record in records:
        if scorer is not None and record.output_ids:
            logprob = scorer.target_logprob(requests[record.key], record.output_ids)
            record = replace(record, target_logprob=logprob)
        yield record


def to_record(generation: Generation, one: Asked, plan: Plan) -> SampleRecord:
    """Everything that is known of one generation before it is graded."""
    facts: dict[str, Any] = facts_of(one, plan)
    if generation.prompt_tokens is not None:
        facts["prompt_tokens"] = generation.prompt_tokens
    if generation.error is not None:
        return SampleRecord(status="error", error=generation.error, **facts)
    text = plan.prompter.text(generation.output_ids) if generation.text is None else generation.text
    flags = quality_flags(generation.output_ids, text, generation.finish_reason)
    flags["open_reasoning"] = strip_reasoning(plan.prompter.graded(text)) is None
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
        flags=flags,
        **facts,
    )


def spelled(tree: TreeTrace, plan: Plan) -> TreeTrace:
    """The trace with what its tokens say, so that a report needs no tokenizer."""
    texts = [plan.prompter.text([token]) for token in tree.tokens]
    return replace(tree, texts=texts, bonus_text=plan.prompter.text([tree.bonus]))


def outcome(run: RunFolder) -> Literal["finished", "failed"]:
    """`failed` when a sample could not be decoded, or its answer not graded."""
    return "failed" if any(r.status == "error" or r.flags.get("grader_error") for r in run.records()) else "finished"


@contextmanager
def recorded(run: RunFolder, manifest: RunManifest, tracker: Tracker) -> Iterator[None]:
    """Whatever happens inside, run.json tells how it ended, and the summary and the tracker say what there is."""
    tracker.start(run, manifest)
    run.write_manifest(manifest)
    manifest.status = "failed"
    try:
        yield
        manifest.status = outcome(run)
    except KeyboardInterrupt:
        manifest.status = "interrupted"
    finally:
        manifest.finished_at = now()
        run.write_manifest(manifest)
        summary = summarize(run.records(), run.records("profile.jsonl"), manifest)
        run.write_summary(summary)
        tracker.finish(summary, exit_code=EXIT_STATUS[manifest.status])
