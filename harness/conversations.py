"""The later turns of a conversation: asked once the answer before is there, so each run has a history of its own."""

from dataclasses import dataclass
from typing import Any

from harness.engines.base import Request
from harness.plan import Plan, positions, request
from harness.records import RunFolder, SampleRecord
from harness.runs import now
from tasks.base import Sample
from tasks.reasoning import strip_reasoning


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request and the sample behind it; a later turn's sample holds the history of its repeat."""

    request: Request
    sample: Sample

    @property
    def key(self) -> tuple[str, int]:
        return self.request.sample_id, self.request.repeat


def first_turns(plan: Plan) -> list[Asked]:
    return [Asked(request=request, sample=plan.samples[request.sample_id]) for request in plan.requests]


def later_turns(plan: Plan, asked: list[Asked], run: RunFolder) -> tuple[list[Asked], list[SampleRecord]]:
    """What follows the answers to `asked` that stand in the run's records, and an error record for every turn that cannot
    be asked: because the one before failed, or because the conversation has grown longer than the target's positions."""
    records = {record.key: record for record in run.records()}
    most = positions(plan.setup.target)
    following, failed = [], []
    for one in asked:
        record = records.get(one.key)
        if not one.sample.follow_ups or record is None:
            continue
        if record.status == "error":
            failed += unasked(plan, one, f"turn {one.sample.turn} of this conversation failed")
            continue
        sample = one.sample.next_turn(answer_of(plan, record))
        assert sample is not None
        ids = plan.prompter.ids(sample.messages)
        longest = len(ids) + plan.setup.sampling.max_new_tokens
        if ids and most and longest > most:
            failed += unasked(
                plan, one, f"prompt and answer can come to {longest} tokens, the target has {most} positions"
            )
            continue
        made = request(sample, one.request.repeat, ids, plan.seed, plan.task_name)
        following.append(Asked(request=made, sample=sample))
    return following, failed


def answer_of(plan: Plan, record: SampleRecord) -> str:
    """What of an answer goes into the history: no reasoning; nothing when reasoning was cut off."""
    return (strip_reasoning(plan.prompter.graded(record.output_text)) or "").strip()


def unasked(plan: Plan, one: Asked, why: str) -> list[SampleRecord]:
    """Error records for all turns after `one`."""
    records, sample = [], one.sample.next_turn("")
    while sample is not None:
        records.append(
            SampleRecord(
                task=plan.task_name,
                sample_id=sample.id,
                repeat=one.request.repeat,
                turn=sample.turn,
                status="error",
                error=why,
                finished_at=now(),
            )
        )
        sample = sample.next_turn("")
    return records


def facts_of(one: Asked, plan: Plan) -> dict[str, Any]:
    """What a record says of its request."""
    return {
        "task": plan.task_name,
        "sample_id": one.sample.id,
        "repeat": one.request.repeat,
        "turn": one.sample.turn,
        "prompt_sha256": plan.prompter.fingerprint(one.request.messages, one.request.prompt_ids),
        "prompt_tokens": len(one.request.prompt_ids),
        "finished_at": now(),
    }
