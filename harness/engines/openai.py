"""engine=openai: any running server that speaks OpenAI's API, with what it exposes; nothing is made up for the rest.

Source of the fields beyond OpenAI's own: SGLang 0.5.17 `entrypoints/openai/protocol.py` and vLLM 0.11
`entrypoints/openai/protocol.py` (top_k, min_p, return_token_ids).
"""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, MinLen

from harness.engines.base import WARM_UP_TOKENS, Generation, Request, Setup
from harness.engines.http_stream import NO_LOGPROBS, ServerError, Stream, concurrently
from harness.records import Totals

ABSENT = {
    "acceptance": "the server's API counts no rounds",
    "rounds/": "the server's API counts no rounds",
    "stage/": "the server's API has no stage times",
    "memory/": "the server's memory is not this process's",
    **NO_LOGPROBS,
}


@dataclass(frozen=True, kw_only=True)
class OpenAIEngine:
    owns_device: ClassVar[bool] = False
    loads_drafter: ClassVar[bool] = False
    base_url: Annotated[str, MinLen(1)]
    model: str | None = None
    api: Literal["chat", "completions"] = "chat"
    concurrency: Annotated[int, Ge(1)] = 1
    api_key_variable: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    timeout_s: Annotated[float, Gt(0)] = 600

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"engine.base_url={self.base_url}: must begin with http:// or https://")

    @property
    def prompts(self) -> Literal["ids", "messages"]:
        return "messages" if self.api == "chat" else "ids"

    @property
    def needs_files(self) -> bool:
        """The tokenizer, and with it the whole checkpoint, only where this harness makes the prompt ids."""
        return self.api == "completions"

    def open(self, setup: Setup) -> "OpenAISession":
        """Ask the server what it serves. Raises ValueError naming the key when it does not answer or not with that."""
        return OpenAISession(self, setup)


class OpenAISession:
    def __init__(self, engine: OpenAIEngine, setup: Setup):
        self.engine, self.setup = engine, setup
        self.headers = {}
        if engine.api_key_variable:
            key = os.environ.get(engine.api_key_variable)
            if not key:
                raise ValueError(f"engine.api_key_variable={engine.api_key_variable}: this variable is not set")
            self.headers = {"Authorization": f"Bearer {key}"}
        self.model = self._served_model()
        self.measured: dict[str, float] = {}
        self.resolved: dict[str, Any] = {
            "served_model": self.model,
            "concurrency": engine.concurrency,
            "warm_up_tokens": WARM_UP_TOKENS,
            "stops": "the server's own, and the target's stop ids" if setup.stop_ids else "the server's own",
        }
        self.absent = dict(ABSENT)
        self._warm = False

    def generate(
        self, requests: list[Request], *, profile: bool = False, observe: Callable[[int, int], None] | None = None
    ) -> Iterator[Generation]:
        """Generations in the order they finish, `engine.concurrency` at a time; nothing in the profile pass."""
        if profile or not requests:
            return
        if not self._warm:
            for _ in self._stream(requests[: self.engine.concurrency], WARM_UP_TOKENS):
                pass
            self._warm = True
        yield from self._stream(requests, self.setup.sampling.max_new_tokens)

    def peak_memory_bytes(self) -> None:
        return None

    def close(self) -> None:
        """The server is not ours."""

    def _stream(self, requests: list[Request], max_new_tokens: int) -> Iterator[Generation]:
        url = self.engine.base_url.rstrip("/")
        stream = Stream(url, self.engine.timeout_s, self.headers, self.engine.concurrency)

        async def one(request: Request) -> Generation:
            try:
                return await self._generate(stream, request, max_new_tokens)
            except Exception as error:  # one sample's failure is a record, never the end of the run
                return Generation(request=request, error=f"{type(error).__name__}: {error}")

        return concurrently(requests, one, self.engine.concurrency, stream.client.aclose)

    async def _generate(self, stream: Stream, request: Request, max_new_tokens: int) -> Generation:
        answer = Answer()
        path, body = self._body(request, max_new_tokens)
        with stream.watch() as watch:
            async with aclosing(stream.events(path, body)) as events:
                async for event in events:
                    if answer.add(event):
                        watch.seen(answer.events)
        result = answer.result()
        watch.tokens = max(watch.tokens, result["totals"].num_output)  # one event may have brought them all
        return Generation(request=request, batch_size=self.engine.concurrency, **watch.times(), **result)

    def _body(self, request: Request, max_new_tokens: int) -> tuple[str, dict[str, Any]]:
        asked = self.setup.sampling
        # All of them always: what is not sent would be the server's choice (generation_config), and nobody would know.
        body: dict[str, Any] = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": max_new_tokens,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "top_k": asked.top_k or -1,
            "min_p": asked.min_p,
            "seed": request.stream % 2**31,
        }
        if self.setup.stop_ids:
            body |= {"stop_token_ids": self.setup.stop_ids}
        if self.engine.api == "completions":
            return "/completions", {**body, "prompt": request.prompt_ids, "return_token_ids": True, **self.engine.extra}
        if self.setup.chat_template_kwargs:
            body |= {"chat_template_kwargs": self.setup.chat_template_kwargs}
        return "/chat/completions", {**body, "messages": request.messages, **self.engine.extra}

    def _served_model(self) -> str:
        url = f"{self.engine.base_url.rstrip('/')}/models"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=self.headers), timeout=30) as reply:
                names = [str(model["id"]) for model in json.load(reply)["data"]]
        except urllib.error.HTTPError as error:
            raise ValueError(
                f"engine.base_url={self.engine.base_url}: {url} answers {error.code} {error.reason}"
            ) from error
        except OSError as error:
            raise ValueError(f"engine.base_url={self.engine.base_url}: no server answers there ({error})") from error
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"engine.base_url={self.engine.base_url}: {url} is no list of models") from error
        wanted = self.engine.model
        if (wanted is None and len(names) != 1) or (wanted is not None and wanted not in names):
            raise ValueError(f"engine.model={wanted}: the server has {', '.join(names) or 'none'}. Choose one of them")
        return wanted or names[0]


@dataclass
class Answer:
    """One sample's events, read in order."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    ids_in_every_event: bool = True
    events: int = 0  # that brought text or ids
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)

    def add(self, event: dict[str, Any]) -> bool:
        """Whether it brought anything. Raises ServerError for an event of another shape."""
        self.usage = event.get("usage") or self.usage
        choices = event.get("choices")
        if not isinstance(choices, list):
            raise ServerError(f"an event has no choices: {str(event)[:80]}")
        if not choices:
            return False
        choice = choices[0]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        delta = choice.get("delta") or {}
        # A reasoning parser on the server takes the thinking out of `content`; it is output all the same.
        said = (delta.get("reasoning_content") or delta.get("reasoning") or "", delta.get("content") or "")
        text, ids = "".join(said) + (choice.get("text") or ""), choice.get("token_ids") or []
        if not text and not ids:
            return False
        self.text += text
        self.ids += ids
        self.ids_in_every_event &= bool(ids)
        self.events += 1
        return True

    def result(self) -> dict[str, Any]:
        """The fields of a Generation. Raises ServerError when the sample did not end or was not counted."""
        if self.finish_reason not in ("stop", "length"):
            raise ServerError(f"the server ended the sample: finish_reason {self.finish_reason}")
        completion = self.usage.get("completion_tokens")
        if not isinstance(completion, int):
            raise ServerError("the server sent no usage.completion_tokens: without it there is no count of tokens")
        # With ids the count is theirs; a server may leave the stop id out of them and count it all the same.
        ids = self.ids if self.ids_in_every_event and 0 <= completion - len(self.ids) <= 1 else []
        cached = (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        return {
            "output_ids": ids,
            "text": self.text,
            "prompt_tokens": self.usage.get("prompt_tokens"),
            "cached_tokens": cached,
            "finish_reason": self.finish_reason,
            "totals": Totals(num_output=len(ids) or completion),
        }
