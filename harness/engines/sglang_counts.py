"""What SGLang says of a sample's rounds, as the harness's own counts. Pure functions of parsed events.

Source: SGLang 0.5.17, `managers/tokenizer_manager.py` and `scheduler_components/batch_result_processor.py`. The last event
alone carries the counts of rounds and accepted drafts. A round in which the sample ends is counted whole (its raw
accepts); the further round that overlap scheduling has begun by then is not. Each event brings the tokens of one scheduler
step, unless the server was slower in sending than in decoding and put several together. So where there are as many
events behind the first as there were rounds, each event is one round; else only the totals are known.
"""

from dataclasses import dataclass, field
from typing import Any

from harness.engines.http_stream import ServerError
from harness.records import Round, SampleRecord, Totals


@dataclass
class Counted:
    """One sample's events, read in order."""

    prompt_tokens: int
    speculates: bool  # False: without speculation every token after the first is a round of its own
    output_ids: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # tokens of each event that brought any
    meta: dict[str, Any] = field(default_factory=dict)  # the newest

    def add(self, event: dict[str, Any]) -> None:
        """Raises ServerError for an event that lacks what every event has."""
        try:
            new_ids, self.meta = list(event["output_ids"]), dict(event["meta_info"])
            completion_tokens = int(self.meta["completion_tokens"])
        except (KeyError, TypeError, ValueError) as error:
            raise ServerError(f"an event lacks {error}: is this SGLang's own /generate?") from error
        self.output_ids += new_ids
        self.steps += [len(new_ids)] if new_ids else []
        if completion_tokens != len(self.output_ids):
            raise ServerError(
                f"the events brought {len(self.output_ids)} token ids and the server counts {completion_tokens}: start "
                "it with --incremental-streaming-output"
            )

    def result(self, stop_ids: list[int]) -> dict[str, Any]:
        """output_ids, finish_reason, rounds or totals, cached_tokens: the fields of a Generation.

        Raises ServerError when the sample did not end by itself or when the counts contradict each other. A stop id
        ends the sample: where one round held it and the cap behind it, SGLang goes on to the cap
        (sgl-project/sglang#31599), and what stands behind the stop id is cut here.
        """
        reason = self.meta.get("finish_reason") or {}
        if reason.get("type") not in ("stop", "length"):
            raise ServerError(f"the server ended the sample: {reason.get('message') or reason.get('type') or 'no end'}")
        end = next((place for place, token in enumerate(self.output_ids) if token in stop_ids), None)
        if end is None and reason["type"] == "stop":
            raise ServerError(f"the server stopped at {reason.get('matched')!r}, which is no end token of the target")
        ids = self.output_ids if end is None else self.output_ids[: end + 1]
        result: dict[str, Any] = {
            "output_ids": ids,
            "finish_reason": "length" if end is None else "stop",
            "cached_tokens": self.meta.get("cached_tokens"),
        }
        totals = self._totals(len(ids))
        _check({**result, "totals": totals})
        rounds = self._rounds(totals)
        result |= {"totals": totals} if rounds is None else {"rounds": rounds}
        _check(result)
        return result

    def _totals(self, num_output: int) -> Totals:
        prefills = 1 + int(self.meta.get("num_retractions") or 0)
        if not self.speculates:
            rounds = max(num_output - prefills, 0)
            counts: dict[str, Any] = dict(num_rounds=rounds, num_accepted=0, num_nodes=0, histogram=[rounds])
        else:
            none = not self.meta.get("spec_verify_ct")  # then the sample ended at its first token
            counts = dict(
                num_rounds=self.meta.get("spec_verify_ct", 0),
                num_accepted=self.meta.get("spec_num_correct_drafts", 0),
                num_nodes=self.meta.get("spec_num_proposed_drafts", 0),
                histogram=self.meta.get("spec_correct_drafts_histogram", [] if none else None),
            )
        return Totals(num_output=num_output, num_prefills=prefills, **counts)

    def _rounds(self, totals: Totals) -> list[Round] | None:
        """One for each event behind the first; None where events and rounds are not the same in number."""
        emitted = self.steps[1:]
        if not self.speculates:
            emitted = [1] * (len(self.output_ids) - 1)
        elif self.steps[0] != 1 or len(emitted) != totals.num_rounds:
            return None
        if totals.num_prefills != 1 or totals.num_accepted is None or totals.num_nodes is None:
            return None
        accepted = [count - 1 for count in emitted]
        if accepted:  # the last round's raw accepts are what the others leave: its own end may have been cut
            accepted[-1] += totals.num_accepted - sum(accepted)
            emitted[-1] -= len(self.output_ids) - totals.num_output
        nodes = totals.num_nodes // len(emitted) if emitted else 0
        before = self.prompt_tokens
        rounds = []
        for num_accepted, num_emitted in zip(accepted, emitted, strict=True):
            rounds.append(
                Round(num_accepted=num_accepted, num_emitted=num_emitted, num_nodes=nodes, context_length=before)
            )
            before += num_emitted
        histogram = [accepted.count(i) for i in range(max(accepted, default=-1) + 1)]
        if totals.histogram is not None and histogram != totals.histogram and self.speculates:
            raise ServerError(
                f"the server's counts contradict each other: its histogram is {totals.histogram}, the events tell "
                f"{histogram}"
            )
        return rounds


def _check(result: dict[str, Any]) -> None:
    try:
        SampleRecord(task="", sample_id="", repeat=0, status="ok", **result).check()
    except ValueError as error:
        raise ServerError(f"the server's counts contradict each other: {error}") from error
