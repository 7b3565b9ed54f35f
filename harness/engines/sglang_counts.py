"""What SGLang's meta_info says of a sample's rounds, as the harness's own counts. Pure functions of parsed events.

Source: SGLang 0.5.17, `managers/tokenizer_manager.py` and `scheduler_components/batch_result_processor.py`. A round in which
the sample ends is counted whole (its raw accepts); the further round that overlap scheduling has begun by then is not.
The counts in an event are cumulative. Each event brings what one scheduler step made, unless the server was slower in
sending than in decoding and put several together: then the rounds in between cannot be told apart.
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
    rounds: list[Round] = field(default_factory=list)
    apart: bool = True  # every round so far came in an event of its own
    meta: dict[str, Any] = field(default_factory=dict)  # the newest
    verified: int = 0
    accepted: int = 0

    def add(self, event: dict[str, Any]) -> None:
        """Raises ServerError for an event that lacks what every event has."""
        try:
            new_ids, meta = list(event["output_ids"]), dict(event["meta_info"])
            completion_tokens = int(meta["completion_tokens"])
        except (KeyError, TypeError, ValueError) as error:
            raise ServerError(f"an event lacks {error}: is this SGLang's own /generate?") from error
        before = len(self.output_ids)
        self.output_ids += new_ids
        if completion_tokens != len(self.output_ids):
            raise ServerError(
                f"the events brought {len(self.output_ids)} token ids and the server counts {completion_tokens}: start "
                "it with --incremental-streaming-output"
            )
        verified, accepted = int(meta.get("spec_verify_ct", 0)), int(meta.get("spec_num_correct_drafts", 0))
        if self.speculates:
            self._add_round(before, verified - self.verified, accepted - self.accepted, meta)
        else:
            first = max(before, 1)
            self.rounds += [_round(self.prompt_tokens + t - 1, 0, 1, 0) for t in range(first, len(self.output_ids))]
        self.verified, self.accepted, self.meta = verified, accepted, meta

    def _add_round(self, before: int, verified: int, accepted: int, meta: dict[str, Any]) -> None:
        emitted = len(self.output_ids) - before
        if verified == 0 and (emitted == 0 or (before == 0 and emitted == 1)):
            return  # prefill, or nothing new
        if verified != 1 or before == 0:
            self.apart = False
            return
        nodes = int(meta["spec_num_proposed_drafts"]) // int(meta["spec_verify_ct"])
        self.rounds.append(_round(self.prompt_tokens + before - 1, accepted, emitted, nodes))

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
        result = {
            "output_ids": ids,
            "finish_reason": "length" if end is None else "stop",
            "cached_tokens": self.meta.get("cached_tokens"),
            **self._counts(ids),
        }
        try:
            SampleRecord(task="", sample_id="", repeat=0, status="ok", **result).check()
        except ValueError as error:
            raise ServerError(f"the server's counts contradict each other: {error}") from error
        return result

    def _counts(self, ids: list[int]) -> dict[str, Any]:
        cut = len(self.output_ids) - len(ids)
        retracted = int(self.meta.get("num_retractions") or 0)
        if self.apart and not retracted:
            rounds = list(self.rounds)
            if cut:
                last = rounds.pop()
                if cut >= last.num_emitted:
                    raise ServerError(f"{cut} tokens stand behind a stop id: more than one round makes")
                kept = last.num_emitted - cut
                rounds.append(_round(last.context_length, last.num_accepted, kept, last.num_nodes))
            return {"rounds": rounds}
        if not self.speculates:
            return {"totals": Totals(num_output=len(ids), num_prefills=1 + retracted, **_plain(len(ids), retracted))}
        totals: dict[str, Any] = dict(
            num_output=len(ids),
            num_rounds=self.verified,
            num_accepted=self.accepted,
            num_nodes=self.meta.get("spec_num_proposed_drafts", 0),
            histogram=self.meta.get("spec_correct_drafts_histogram", [] if not self.verified else None),
            num_prefills=1 + retracted,
        )
        return {"totals": Totals(**totals)}


def _plain(num_output: int, retracted: int) -> dict[str, Any]:
    """Without speculation a round accepts nothing and gives one token."""
    rounds = num_output - 1 - retracted
    return {"num_rounds": rounds, "num_accepted": 0, "num_nodes": 0, "histogram": [rounds]}


def _round(context_length: int, accepted: int, emitted: int, nodes: int) -> Round:
    return Round(num_accepted=accepted, num_emitted=emitted, num_nodes=nodes, context_length=context_length)
