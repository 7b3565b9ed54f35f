"""What is known of a sample's rounds: one by one, as totals where a server does not tell them apart, and as drawn trees."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Round:
    """One target forward. Drafts are counted without the root; the bonus token is counted in `num_emitted` only."""

    num_accepted: int  # drafts the verifier accepted, before any stop or cap cut them
    num_emitted: int  # tokens that reached the output, bonus included, after the cut
    num_nodes: int  # draft nodes in the tree, root not counted
    context_length: int  # committed tokens before the round, root not counted
    expected_accepted: float | None = None  # sum over draft nodes of the target's probability of the path
    expected_variance: float | None = None  # variance of the number of accepted drafts under the target


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What a server counted over all rounds of a sample, in place of `rounds`, where it does not tell them apart.

    None = it does not say. Which server counts what, and how: docs/sglang.md.
    """

    num_output: int  # output tokens, the stop id included
    num_rounds: int | None = None
    num_accepted: int | None = None  # drafts the verifier accepted, before any stop or cap cut them
    num_nodes: int | None = None  # draft nodes of all rounds, as many as the server makes room for
    histogram: list[int] | None = None  # rounds by accepted drafts
    num_prefills: int = 1  # more when memory was short and the sample was prefilled again: each prefill gives a token

    @property
    def num_emitted(self) -> int:
        """Output tokens that came out of rounds."""
        return max(self.num_output - self.num_prefills, 0)

    def check(self) -> None:
        """Raises ValueError naming the identity that fails: 0 <= accepted + rounds - emitted <= the deepest accept."""
        rounds, accepted = self.num_rounds, self.num_accepted
        known = [name for name in ("num_accepted", "num_nodes", "histogram") if getattr(self, name) is not None]
        if rounds is None:
            if known:
                raise ValueError(f"totals have {', '.join(known)} but no num_rounds")
            return
        if min(rounds, self.num_output, self.num_prefills) < 0 or not rounds <= self.num_emitted:
            raise ValueError(f"totals: {rounds} rounds emitted {self.num_emitted} tokens")
        if rounds == 0 and self.num_emitted:
            raise ValueError(f"totals: {self.num_emitted} tokens were emitted in no round")
        if accepted is None:
            return
        if accepted < 0 or (self.num_nodes is not None and accepted > self.num_nodes):
            raise ValueError(f"totals: accepted {accepted} of {self.num_nodes} draft nodes")
        cut, deepest = accepted + rounds - self.num_emitted, accepted
        if self.histogram is not None:
            if sum(self.histogram) != rounds or min(self.histogram, default=0) < 0:
                raise ValueError(f"totals: the histogram {self.histogram} is not one of {rounds} rounds")
            if sum(i * count for i, count in enumerate(self.histogram)) != accepted:
                raise ValueError(
                    f"totals: the histogram {self.histogram} does not add up to {accepted} accepted drafts"
                )
            deepest = max((i for i, count in enumerate(self.histogram) if count), default=0)
        if not 0 <= cut <= deepest:
            raise ValueError(
                f"totals: {accepted} accepted drafts and {rounds} rounds gave {self.num_emitted} tokens, so {cut} were "
                f"cut from the last round; possible are 0 to {deepest}"
            )


@dataclass(frozen=True, kw_only=True)
class TreeTrace:
    """The tree of one round of a profiled sample: at most 64 draft nodes, with the accepted path always among them.

    Node 0 is the root, parents stand before children. Where the tree was larger, `Round.num_nodes` says by how much.
    """

    tokens: list[int]  # token ids, the root's first
    texts: list[str]  # what each token says on its own; may be empty or broken characters
    parents: list[int]  # places in `tokens`, -1 for the root
    scores: list[float]  # the drafter's natural log-probability of the path, 0 for the root
    probabilities: list[float]  # the target's probability of the token given its parent, 1 for the root
    path: list[int]  # accepted nodes, root first, before any stop or cap cut them
    bonus: int  # token id drawn after the path
    bonus_text: str = ""
