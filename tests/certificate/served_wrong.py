"""Mistakes of a server: engines that wrap a correct one. Only the speculative mode is wrong, as it would be."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from harness.engines.base import Generation
from harness.speculative.autoregressive import Autoregressive


class Session:
    def __init__(self, session: Any, engine: "Wrong"):
        self.session, self.engine = session, engine
        self.resolved, self.setup = session.resolved, session.setup

    def generate(self, requests):
        self.session.setup = self.setup
        wrong = not isinstance(self.setup.mode, Autoregressive)
        if wrong:
            self.session.setup = replace(self.setup, sampling=self.engine.sampling(self.setup.sampling))
            requests = [self.engine.request(request) for request in requests]
        for generation in self.session.generate(requests):
            if self.engine.error:
                generation = Generation(request=generation.request, error=self.engine.error)
            ids = self.engine.ids(generation.output_ids) if wrong else generation.output_ids
            yield replace(generation, output_ids=ids)

    def close(self):
        self.session.close()


@dataclass(frozen=True)
class Wrong:
    engine: Any
    dtype: str = "float32"
    sampling: Callable[[Any], Any] = lambda sampling: sampling
    request: Callable[[Any], Any] = lambda request: request
    ids: Callable[[list[int]], list[int]] = lambda ids: ids
    error: str | None = None

    def open(self, setup):
        return Session(self.engine.open(setup), self)


def _warm(sampling):
    return replace(sampling, temperature=sampling.temperature * 1.5)


WRONG: dict[str, Callable[[Any], Wrong]] = {
    "too_warm": lambda engine: Wrong(engine, sampling=_warm),
    "greedy": lambda engine: Wrong(engine, sampling=lambda sampling: replace(sampling, temperature=0.0)),
    "forgets_top_p": lambda engine: Wrong(engine, sampling=lambda sampling: replace(sampling, top_p=1.0)),
    "one_token_off": lambda engine: Wrong(engine, ids=lambda ids: [*ids[:-1], (ids[-1] + 1) % 300]),
    "cut_short": lambda engine: Wrong(engine, ids=lambda ids: ids[:-1]),
    "other_seed": lambda engine: Wrong(engine, request=lambda request: replace(request, stream=request.stream + 1)),
    "fails": lambda engine: Wrong(engine, error="out of memory"),
    "shifted_noise": lambda engine: Wrong(engine, ids=lambda ids: [*ids[1:], *ids[:1]]),
}
