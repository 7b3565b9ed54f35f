"""The ways of decoding that `benchmarks.decode` compares: ours through the engine's interface, the official loop's own."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from benchmarks.official import Method, OfficialLoop
from harness.config import HardwareConfig
from harness.engines.base import Request, Sampling, Setup
from harness.engines.hf import HFEngine
from harness.speculative.autoregressive import Autoregressive
from harness.speculative.base import Mode, VerifierName
from harness.speculative.ddtree import DDTree
from harness.speculative.dflash import DFlash

PRIME_TOKENS = 16


@dataclass(frozen=True)
class Prompt:
    task: str
    sample_id: str
    stream: int  # key of the random stream, as the harness makes it
    prompt_ids: list[int]


@dataclass(frozen=True)
class Decoded:
    """One sample under one arm. Prefill and the token drawn from it are in neither `tokens` nor `seconds`."""

    output_ids: list[int]
    tokens: int  # that reached the output
    rounds: int
    seconds: float


class Arm(Protocol):
    def decode(self, prompt: Prompt, temperature: float, max_new_tokens: int) -> Decoded | None:
        """None where the sample has no round (it ended with the first token) or could not be decoded."""


class OurArm:
    """A session of engine=hf, opened once; temperature and length are set for every sample."""

    def __init__(
        self,
        mode: Mode,
        engine: HFEngine,
        *,
        target: Path,
        drafter: Path,
        device: str,
        stop_ids: list[int],
    ):
        self.setup = Setup(
            target=target,
            drafter=drafter if mode.needs_drafter else None,
            mode=mode,
            hardware=HardwareConfig(name=device, device=device),  # type: ignore[arg-type]
            sampling=_sampling(0.0, PRIME_TOKENS),
            stop_ids=stop_ids,
        )
        self.session = engine.open(self.setup)
        self.failed: list[str] = []

    def decode(self, prompt: Prompt, temperature: float, max_new_tokens: int) -> Decoded | None:
        # A session reads its sampling values when it generates, so one session serves all. `guard` checks.
        self.session.setup = replace(self.setup, sampling=_sampling(temperature, max_new_tokens))
        request = Request(sample_id=prompt.sample_id, repeat=0, prompt_ids=prompt.prompt_ids, stream=prompt.stream)
        [found] = self.session.generate([request])
        if found.error:
            self.failed.append(f"{self.setup.mode} T={temperature} {prompt.task} {prompt.sample_id}: {found.error}")
            return None
        if not found.rounds or found.decode_s is None:
            return None
        return Decoded(found.output_ids, sum(r.num_emitted for r in found.rounds), len(found.rounds), found.decode_s)

    def prime(self, prompts: list[Prompt], temperature: float, max_new_tokens: int) -> None:
        """Leave nothing to be captured or compiled later: the longest prompt, then a context of every power of two."""
        longest = max(prompts, key=lambda prompt: len(prompt.prompt_ids))
        self.decode(longest, temperature, max_new_tokens)
        end = len(longest.prompt_ids) + max_new_tokens - PRIME_TOKENS
        for length in [*(96 * 2**i for i in range(16) if 96 * 2**i < end), end]:
            ids = (longest.prompt_ids * (1 + length // len(longest.prompt_ids)))[:length]
            self.decode(replace(longest, prompt_ids=ids), temperature, PRIME_TOKENS)

    def guard(self, prompt: Prompt) -> None:
        """RuntimeError when the temperature does not reach the sampler: two streams must agree at 0 and part at 5."""
        for temperature in (0.0, 5.0):
            both = [self.decode(replace(prompt, stream=s), temperature, PRIME_TOKENS) for s in (1, 2)]
            same = [b.output_ids if b else [] for b in both]
            if (same[0] == same[1]) != (temperature == 0):
                raise RuntimeError(f"{self.setup.mode}: temperature {temperature} does not reach the sampler")


class OfficialArm:
    def __init__(self, loop: OfficialLoop, method: Method, tree_budget: int | None, stop_ids: list[int]):
        self.loop, self.method, self.tree_budget, self.stop_ids = loop, method, tree_budget, stop_ids
        self.dropped = 0

    def decode(self, prompt: Prompt, temperature: float, max_new_tokens: int) -> Decoded | None:
        try:
            found = self.loop.generate(
                prompt.prompt_ids,
                method=self.method,
                temperature=temperature,
                max_new_tokens=max_new_tokens,
                stop_ids=self.stop_ids,
                stream=prompt.stream,
                tree_budget=self.tree_budget,
            )
        except ValueError:  # it dropped an id that equals the mask id: its counts mean nothing here
            self.dropped += 1
            return None
        if not found.emitted:
            return None
        return Decoded(found.output_ids, sum(found.emitted), len(found.emitted), found.decode_s)


def our_modes(budgets: list[int], verifier: VerifierName, baselines: list[VerifierName]) -> dict[str, Mode]:
    """Arms by name. Several autoregressive ones compete to be the baseline: the fastest is taken."""
    modes: dict[str, Mode] = {f"autoregressive-{v}": Autoregressive(verifier=v) for v in baselines}
    modes["dflash"] = DFlash(verifier=verifier)
    return modes | {ddtree(budget): DDTree(tree_budget=budget, verifier=verifier) for budget in budgets}


def ddtree(budget: int) -> str:
    return f"ddtree-{budget}"


def parse_engine(words: list[str]) -> HFEngine:
    """HFEngine from KEY=VALUE words. Raises ValueError for keys it has not."""
    values: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        values[key] = int(value) if value.isdigit() else {"true": True, "false": False}.get(value, value)
    try:
        return HFEngine(**values)
    except TypeError as error:
        raise ValueError(f"--engine {' '.join(words)}: {error}") from error


def _sampling(temperature: float, max_new_tokens: int) -> Sampling:
    return Sampling(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, max_new_tokens=max_new_tokens)
