"""What `certify.KEY=...` may set. Sizes are chosen so that the default cell is certified in minutes on two cores."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

MISTAKES = (
    "min_ratio",
    "stale_draft_probs",
    "duplicated_siblings",
    "temperature_off",
    "wrong_kv_row",
    "parent_bonus",
    "zero_coin",
)
Mistake = Literal[
    "min_ratio",
    "stale_draft_probs",
    "duplicated_siblings",
    "temperature_off",
    "wrong_kv_row",
    "parent_bonus",
    "zero_coin",
]


@dataclass(frozen=True, kw_only=True)
class CertifySettings:
    seed: Annotated[int, Ge(0)] = 0
    samples: Annotated[int, Ge(1)] = 8  # prompts of the cell's task
    equality_temperatures: list[Annotated[float, Ge(0), Le(100)]]
    equality_samples: Annotated[int, Ge(1)] = 2
    equality_tokens: Annotated[int, Ge(0)] = 48  # a sample, in the cell's dtype; 0 leaves the comparison out
    float64_samples: Annotated[int, Ge(0)] = 1  # 0 where a float64 copy of the target does not fit
    float64_tokens: Annotated[int, Ge(1)] = 16
    toy_draws: Annotated[int, Ge(1000)] = 1_000_000
    redraw_temperatures: list[Annotated[float, Gt(0), Le(100)]]
    contexts: Annotated[int, Ge(1)] = 32  # real (root, tree, logits) at each temperature
    detect: Annotated[float, Gt(0), Le(1)] = 0.05  # relative temperature error that the redraws must see
    most_draws: Annotated[int, Ge(1)] = 8000  # a context
    run_tokens: Annotated[int, Ge(2)] = 64  # a sample, in the real run
    served_tokens: Annotated[int, Ge(1)] = 8192  # tokens of the real run of a server, whose contexts are drawn once
    inject: Mistake | None = None  # a known mistake, for the negative controls
