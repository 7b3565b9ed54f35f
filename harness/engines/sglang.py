"""engine=sglang: a real SGLang server on this machine, started for the run and stopped after it.

Requests go to its own /generate as token ids, so that prompts are those of every other engine, and stream back with the
counts of each sample. docs/sglang.md tells what it shows and what it does not.
"""

from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Lt, MinLen

from harness.engines.base import WARM_UP_TOKENS, Generation, Request, Setup
from harness.engines.http_stream import NO_LOGPROBS, ServerError, Stream, concurrently

ABSENT = {
    "stage/": "the server does not time the stages of a round",
    "acceptance/expected": "the server does not show its trees and their probabilities",
    **NO_LOGPROBS,
}


@dataclass(frozen=True, kw_only=True)
class SGLangEngine:
    owns_device: ClassVar[bool] = True
    python: str | None = None
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    attention: Annotated[str, MinLen(1)] = "auto"
    concurrency: Annotated[int, Ge(1)] = 1
    tokenizer: Literal["harness", "server"] = "harness"
    trust_remote_code: bool = False
    memory_fraction: Annotated[float, Gt(0), Lt(1)] | None = None
    max_total_tokens: Annotated[int, Ge(64)] | None = None
    context_length: Annotated[int, Ge(16)] | None = None
    cuda_graphs: bool = True
    overlap_schedule: bool = True
    radix_cache: bool = True
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    startup_s: Annotated[float, Gt(0)] = 1800
    timeout_s: Annotated[float, Gt(0)] = 600

    @property
    def prompts(self) -> Literal["ids", "messages"]:
        return "messages" if self.tokenizer == "server" else "ids"

    @property
    def remote_code(self) -> bool:
        return self.trust_remote_code

    def open(self, setup: Setup) -> "SGLangSession":
        """Start the server. Raises ValueError naming the key, or with the end of the server's log."""
        return SGLangSession(self, setup)


class SGLangSession:
    def __init__(self, engine: SGLangEngine, setup: Setup):
        from harness.engines import sglang_launch
        from harness.engines.sglang_server import Server
        from harness.speculative.autoregressive import Autoregressive
        from harness.speculative.ddtree import DDTree

        sglang_launch.refuse(engine, setup)
        python = sglang_launch.interpreter(engine.python)
        self.engine, self.setup = engine, setup
        self.launch = sglang_launch.launch(engine, setup, python)
        self.speculates = not isinstance(setup.mode, Autoregressive)
        self.seeds_requests = isinstance(setup.mode, DDTree)
        versions = sglang_launch.versions(python, plugin=self.seeds_requests)
        self.measured: dict[str, float] = {}
        self.resolved: dict[str, Any] = {
            **self.launch.resolved,
            "concurrency": engine.concurrency,
            "warm_up_tokens": WARM_UP_TOKENS,
            "server_versions": versions,
        }
        self.absent = dict(ABSENT)
        if setup.hardware.device == "cuda":
            self.absent["memory/"] = "the server reserves its memory at the start, whatever it needs"
        self._warm = False
        self.server = Server(self.launch.command, self.launch.environment, engine.startup_s)

    def generate(
        self, requests: list[Request], *, profile: bool = False, observe: Callable[[int, int], None] | None = None
    ) -> Iterator[Generation]:
        """Generations in the order they finish, `engine.concurrency` at a time; nothing in the profile pass, in which a
        server shows no more than in the timed one. Raises ServerError when the server is no longer there."""
        if profile or not requests:
            return
        if not self._warm:
            for _ in self._stream(requests[: self.engine.concurrency], WARM_UP_TOKENS):
                pass
            self._warm = True
        self.server.flush()
        for generation in self._stream(requests, self.setup.sampling.max_new_tokens):
            yield generation
            if generation.error is not None:
                self.server.check_after(generation.error)
            elif observe:
                rounds = len(generation.rounds) or (generation.totals.num_rounds if generation.totals else 0) or 0
                observe(rounds, max(len(generation.output_ids) - 1, 0))

    def peak_memory_bytes(self) -> int | None:
        """On a CPU, the resident memory of the server's processes; None on CUDA, where it is what was reserved."""
        from harness.engines.sglang_server import memory_of

        return None if self.setup.hardware.device == "cuda" else memory_of(self.server.process.pid)

    def close(self) -> None:
        self.server.stop()

    def _stream(self, requests: list[Request], max_new_tokens: int) -> Iterator[Generation]:
        stream = Stream(self.server.url, self.engine.timeout_s, {}, self.engine.concurrency)

        async def one(request: Request) -> Generation:
            try:
                return await self._generate(stream, request, max_new_tokens)
            except Exception as error:  # one sample's failure is a record, never the end of the run
                return Generation(request=request, error=f"{type(error).__name__}: {error}")

        return concurrently(requests, one, self.engine.concurrency, stream.client.aclose)

    async def _generate(self, stream: Stream, request: Request, max_new_tokens: int) -> Generation:
        from harness.engines.sglang_counts import Counted

        ids = request.prompt_ids or await self._tokenize(stream, request)
        if not ids:
            raise ServerError("a prompt has no tokens: check the task's messages and the tokenizer's chat template")
        counted = Counted(len(ids), self.speculates)
        body = {"input_ids": ids, "stream": True, "sampling_params": self._sampling(request, max_new_tokens)}
        with stream.watch() as watch:
            async with aclosing(stream.events("/generate", body)) as events:  # left early, the server stops too
                async for event in events:
                    counted.add(event)
                    watch.seen(len(counted.output_ids))
        result = counted.result(self.setup.stop_ids)
        text = None if self.engine.tokenizer == "harness" else await self._detokenize(stream, result["output_ids"])
        return Generation(
            request=request,
            text=text,
            prompt_tokens=len(ids),
            batch_size=self.engine.concurrency,
            **watch.times(),
            **result,
        )

    def _sampling(self, request: Request, max_new_tokens: int) -> dict[str, Any]:
        from harness.engines.sglang_launch import min_p_to_send

        asked = self.setup.sampling
        values: dict[str, Any] = {
            "temperature": asked.temperature,
            "top_k": asked.top_k or -1,
            "top_p": asked.top_p,
            "min_p": min_p_to_send(self.setup),
            "max_new_tokens": max_new_tokens,
            "stop_token_ids": self.setup.stop_ids,
            "skip_special_tokens": False,
        }
        return values | ({"sampling_seed": request.stream} if self.seeds_requests else {})

    async def _tokenize(self, stream: Stream, request: Request) -> list[int]:
        body = {"messages": request.messages, "chat_template_kwargs": self.setup.chat_template_kwargs}
        return list((await stream.post("/v1/tokenize", body))["tokens"])

    async def _detokenize(self, stream: Stream, ids: list[int]) -> str:
        return str((await stream.post("/v1/detokenize", {"tokens": ids, "skip_special_tokens": True}))["text"])
