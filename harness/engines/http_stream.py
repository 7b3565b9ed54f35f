"""Many requests to one HTTP server at a time, each read as a stream of server-sent events.

Source of the wire format: the HTML standard's server-sent events, as OpenAI's API uses them: lines `data: JSON`, the last
one `data: [DONE]`. Requests run on an event loop in a thread of their own, so that reading never waits for scoring;
leaving the generator cancels what is in flight, and the server sees its connection close.
"""

import asyncio
import contextlib
import json
import queue
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

CONNECT_S = 10.0
# Metrics that no server gives here, with the reason.
NO_LOGPROBS = dict.fromkeys(
    ("quality/target_logprob", "quality/n_target_logprob"),
    "the server is asked for tokens, not for their probabilities",
)


class ServerError(ValueError):
    """A server that did not give what it was asked for. The message says what it gave instead."""


class BusyClock:
    """Shares the time that passes among the samples that are decoding: each gets dt / n while n of them are."""

    def __init__(self, now: Callable[[], float] = time.perf_counter):
        self.now = now
        self.count, self.per_sample_s, self.last = 0, 0.0, now()

    def enter(self) -> float:
        """A reading, for `leave`."""
        self._advance()
        self.count += 1
        return self.per_sample_s

    def leave(self, entered: float) -> float:
        """Seconds that fell to the sample since `enter`."""
        self._advance()
        self.count -= 1
        return self.per_sample_s - entered

    def _advance(self) -> None:
        now = self.now()
        if self.count:
            self.per_sample_s += (now - self.last) / self.count
        self.last = now


@dataclass
class Watch:
    """When the tokens of one sample came; use it as a context, so that the clock forgets a sample that failed."""

    clock: BusyClock
    started: float
    first: float | None = None
    last: float = 0.0
    entered: float = 0.0
    tokens: int = 0
    share_s: float = 0.0

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *error: object) -> None:
        if self.first is not None:
            self.share_s = self.clock.leave(self.entered)

    def seen(self, tokens: int) -> None:
        """There are so many tokens now; an event that brings none changes nothing."""
        if tokens <= self.tokens:
            return
        self.last, self.tokens = self.clock.now(), tokens
        if self.first is None:
            self.first, self.entered = self.last, self.clock.enter()

    def times(self) -> dict[str, Any]:
        """`ttft_s`, `decode_s` and `decode_share_s`, after the end; None is what cannot be told from one event."""
        if self.first is None or self.last == self.first:
            ttft_s = None if self.first is None or self.tokens > 1 else self.first - self.started
            return {"ttft_s": ttft_s, "decode_s": None, "decode_share_s": None}
        return {
            "ttft_s": self.first - self.started,
            "decode_s": self.last - self.first,
            "decode_share_s": self.share_s,
        }


class Stream:
    """The HTTP side: one POST, its events. `timeout_s` is the longest silence."""

    def __init__(self, base_url: str, timeout_s: float, headers: dict[str, str], concurrency: int):
        import httpx

        limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
        self.client = httpx.AsyncClient(
            base_url=base_url, timeout=timeout, limits=limits, headers=headers, trust_env=False
        )
        self.clock = BusyClock()

    def watch(self) -> Watch:
        return Watch(self.clock, self.clock.now())

    async def events(self, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The JSON of each event. Raises ServerError for a refusal, a broken stream, and silence."""
        import httpx

        whole = False
        try:
            async with self.client.stream("POST", path, json=body) as reply:
                if reply.status_code != 200:
                    raise ServerError(refusal(reply.status_code, await reply.aread()))
                async for line in lines(reply.aiter_bytes()):
                    if not line.startswith(b"data:"):
                        continue
                    data = line.removeprefix(b"data:").strip()
                    if data == b"[DONE]":
                        whole = True
                    elif not whole:
                        yield parsed(data)
        except httpx.TimeoutException as error:
            raise ServerError(f"the server was silent for too long ({type(error).__name__})") from error
        except httpx.HTTPError as error:
            raise ServerError(f"the connection failed: {type(error).__name__}: {error}") from error
        if not whole:
            raise ServerError("the stream ended before its [DONE]: the answer is not whole")

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON of one answer. Raises ServerError for a refusal, a broken answer, and silence."""
        import httpx

        try:
            reply = await self.client.post(path, json=body)
        except httpx.TimeoutException as error:
            raise ServerError(f"the server was silent for too long ({type(error).__name__})") from error
        except httpx.HTTPError as error:
            raise ServerError(f"the connection failed: {type(error).__name__}: {error}") from error
        if reply.status_code != 200:
            raise ServerError(refusal(reply.status_code, reply.content))
        return parsed(reply.content)


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """At newlines alone: text in an event may hold U+2028 and others that Python calls line ends."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


def parsed(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ServerError(f"an event is not JSON: {data[:80]!r}") from error
    if not isinstance(value, dict):
        raise ServerError(f"an event is not an object: {data[:80]!r}")
    if "error" in value:
        raise ServerError(f"the server reports: {message(value['error'])}")
    return value


def refusal(status: int, body: bytes) -> str:
    """What the server said in words, where it did."""
    text = body.decode(errors="replace")
    try:
        value = json.loads(text)
        text = message(value.get("error", value)) if isinstance(value, dict) else text
    except json.JSONDecodeError:
        pass
    return f"the server refused with status {status}: {text[:500]}"


def message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def concurrently(
    items: list[Any], work: Callable[[Any], Awaitable[Any]], concurrency: int, close: Callable[[], Awaitable[Any]]
) -> Iterator[Any]:
    """`work(item)` for all, at most `concurrency` at a time, begun in order; results in the order they finish.

    `work` must not raise: what it raises ends the iteration. `close` is awaited at the end, on the same loop.
    """
    results: queue.Queue[Any] = queue.Queue()
    done = object()
    loop = asyncio.new_event_loop()

    async def all_of_them() -> None:
        todo = iter(items)

        async def worker() -> None:
            for item in todo:
                results.put(await work(item))

        workers = [asyncio.ensure_future(worker()) for _ in range(min(concurrency, len(items)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for one in workers:
                one.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await close()

    task = loop.create_task(all_of_them())

    def run() -> None:
        try:
            loop.run_until_complete(task)
            results.put(done)
        except asyncio.CancelledError:
            results.put(done)
        except BaseException as error:  # goes to the reader, in its thread
            results.put(error)
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while (result := results.get()) is not done:
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        if thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop may have closed since the look
                loop.call_soon_threadsafe(task.cancel)
        thread.join()
