"""What is wrong with an output, told from the output alone."""

from collections.abc import Sequence

import numpy as np

LOOP_TOKENS, LOOP_REPEATS, LOOP_PERIOD = 32, 3, 64


def quality_flags(output_ids: Sequence[int], text: str, finish_reason: str | None) -> dict[str, bool]:
    """`repetition` (a degenerate loop), `truncated` (the cap ended it) and `empty` (no visible character).

    Loops are looked for in the ids: a server that shows text alone gives no `repetition` flag.
    """
    flags = {"truncated": finish_reason == "length", "empty": not text.strip()}
    return flags if text and not output_ids else {"repetition": repetition(output_ids), **flags}


def repetition(ids: Sequence[int]) -> bool:
    """Whether the output holds a loop: one block of at most 64 tokens said 3 times or more in a row, 32 tokens or more.

    Looked for anywhere, so a stop id after the loop hides nothing, and a longer output never loses the flag.
    """
    tokens = np.asarray(ids)
    for period in range(1, min(LOOP_PERIOD, len(tokens) // LOOP_REPEATS) + 1):
        # A stretch of length n with this period is n - period equal pairs in a row.
        differs = np.flatnonzero(tokens[period:] != tokens[:-period])
        edges = np.concatenate(([-1], differs, [len(tokens) - period]))
        if np.diff(edges).max() - 1 + period >= max(LOOP_TOKENS, LOOP_REPEATS * period):
            return True
    return False
