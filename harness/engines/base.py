"""What an engine is: it is opened once for a setting, then turns requests into generations."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from harness.config import HardwareConfig
from harness.records import Round, Totals, TreeTrace
from harness.speculative.base import Mode

WARM_UP_TOKENS = 8  # decoded from the first prompts before anything is timed


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """What the target's logits go through, every value resolved: nothing is left to the checkpoint."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    max_new_tokens: int


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Everything an engine may know of the run."""

    target: Path
    drafter: Path | None
    mode: Mode
    hardware: HardwareConfig
    sampling: Sampling
    stop_ids: list[int]
    seed: int = 0
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)  # for a server that applies the template


@dataclass(frozen=True, kw_only=True)
class Request:
    sample_id: str
    repeat: int
    prompt_ids: list[int]  # empty where a server tokenizes `messages`
    stream: int  # key of the request's random stream: a function of (seed, task, sample, repeat) alone
    messages: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What came back for one request. A failed one carries `error` and nothing else."""

    request: Request
    error: str | None = None
    output_ids: list[int] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] | None = None
    rounds: list[Round] = field(default_factory=list)
    totals: Totals | None = None  # in place of rounds, from a server that does not tell them apart
    cached_tokens: int | None = None
    text: str | None = None  # of a server that detokenizes; None = the harness does
    prompt_tokens: int | None = None  # of a server that tokenizes
    ttft_s: float | None = None
    decode_s: float | None = None
    batch_size: int = 1
    decode_share_s: float | None = None
    stage_s: dict[str, float] | None = None
    trees: list[TreeTrace] | None = None  # profile pass only; `texts` are filled in by whoever has the tokenizer


class Session(Protocol):
    """A session of a server also has `absent`: name (or prefix) of each metric that it cannot show -> the reason."""

    resolved: dict[str, Any]  # what "auto" came to: dtype, attention, threads, device, block size
    measured: dict[str, float]  # what start-up cost, where it is known: seconds

    def generate(
        self, requests: list[Request], *, profile: bool = False, observe: Callable[[int, int], None] | None = None
    ) -> Iterator[Generation]:
        """Generations in the order they finish. `observe(rounds, tokens)` is called as they are added."""

    def peak_memory_bytes(self) -> int | None: ...

    def close(self) -> None: ...


class ScoresOutputs(Protocol):
    """A session that can also tell how probable an output is; not every engine can."""

    def target_logprob(self, request: Request, output_ids: list[int]) -> float:
        """Mean natural log-probability of an output token under the target, at temperature 1 and without filters."""


class Engine(Protocol):
    """Implementations are dataclasses: their fields are the keys that `engine.KEY=...` may set.

    A client of a server may also have `prompts`, "ids" (the default) or "messages": then the server tokenizes, and
    nothing here needs the target's tokenizer; `needs_files` and `loads_drafter`, False when the server has files of its own;
    and `remote_code`, True when the server may run the checkpoint's Python code, which must then be fetched with it.
    """

    owns_device: ClassVar[bool]  # False for the client of a server: its host need not match the hardware profile

    def open(self, setup: Setup) -> Session:
        """Load what the setting needs. Raises ValueError naming the key when the setting cannot be honoured."""
