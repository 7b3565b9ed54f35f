"""What a run will decode, settled before any model loads: sources, sampling values, prompts, requests."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.compose import build
from harness.config import EvalConfig, RunConfig, SamplingConfig, Sources
from harness.decoding.noise import stream_key
from harness.engines.base import Engine, Request, Sampling, Setup
from harness.prompts import Prompter, ServedPrompter, read_json, stop_ids
from harness.sources import Fetched, fetch
from harness.speculative.base import Mode
from tasks.base import Sample, Task


@dataclass(frozen=True, kw_only=True)
class Plan:
    task_name: str
    seed: int
    samples: dict[str, Sample]  # first turns, by id
    requests: list[Request]  # of the first turns; a later one is made from the answer before it, see conversations.py
    num_records: int  # what the whole run comes to: every turn of every repeat
    prompter: Prompter | ServedPrompter
    setup: Setup
    resolved: dict[str, Any]  # for run.json: everything that a checkpoint or an "auto" decided


def make_plan(config: EvalConfig, task: Task) -> Plan:
    """Fetch what the run needs and settle every open value. Raises ValueError naming the key that cannot be met."""
    mode: Mode = build(config.speculative, "speculative")
    engine: Engine = build(config.engine, "engine")
    check_mode(config, mode)
    served = getattr(engine, "prompts", "ids") == "messages"
    has_files = getattr(engine, "needs_files", True)
    fetched = fetch_sources(config, mode, engine)
    target = fetched["target"].path if has_files else Path()
    template_kwargs = config.model.chat_template_kwargs
    prompter = ServedPrompter(template_kwargs) if served else Prompter(target, template_kwargs)
    sampling = resolve_sampling(config.sampling, target if has_files else None)
    setup = Setup(
        target=target,
        drafter=fetched["drafter"].path if "drafter" in fetched else None,
        mode=mode,
        hardware=config.hardware,
        sampling=sampling,
        stop_ids=stop_ids(target, tokenizer=not served) if has_files else [],
        seed=config.sampling.seed,
        chat_template_kwargs=template_kwargs,
    )
    samples = subset(task.load(fetched["data"].path), config.run)
    prompts = {sample.id: prompter.ids(sample.messages) for sample in samples}
    if isinstance(prompter, Prompter):
        check_lengths(prompts, sampling, target)
        check_conversations(samples, prompts, prompter, sampling, target)
    requests = [
        request(sample, repeat, prompts[sample.id], config.sampling.seed, config.task.name)
        for repeat in range(config.sampling.repeats)
        for sample in samples
    ]
    resolved = {
        "sources": {name: source.record() for name, source in fetched.items()},
        "sampling": vars(sampling),
        "stop_ids": setup.stop_ids,
        "prompts": prompter.resolved,
        "task": {"version": task.version, "metric": task.metric},
    }
    return Plan(
        task_name=config.task.name,
        seed=config.sampling.seed,
        samples={sample.id: sample for sample in samples},
        requests=requests,
        num_records=config.sampling.repeats * sum(1 + len(sample.follow_ups) for sample in samples),
        prompter=prompter,
        setup=setup,
        resolved=resolved,
    )


def request(sample: Sample, repeat: int, prompt_ids: list[int], seed: int, task_name: str) -> Request:
    """A request with the stream that belongs to this sample and repeat, in every mode and on every machine."""
    stream = stream_key(seed, task_name, sample.id, repeat)
    return Request(sample_id=sample.id, repeat=repeat, prompt_ids=prompt_ids, stream=stream, messages=sample.messages)


def check_mode(config: EvalConfig, mode: Mode) -> None:
    """Raises ValueError for a mode that only a server has, in an engine that is none."""
    engines = getattr(mode, "engines", None)
    if engines and config.engine.name not in engines:
        raise ValueError(
            f"speculative={config.speculative.name}: engine={config.engine.name} does not have this mode. "
            f"Allowed with it: engine={' or engine='.join(engines)}"
        )


def fetch_sources(config: EvalConfig, mode: Mode, engine: Engine) -> dict[str, Fetched]:
    """Target, drafter (for the modes that draft) and data as local files; data alone where a server has the rest."""
    data = config.data.sources if config.data.path is None else replace(config.data.sources, path=config.data.path)
    wanted: dict[str, tuple[str | Sources, Any, str]] = {"data": (data, config.data.source, "task")}
    if not getattr(engine, "needs_files", True):
        return {"data": fetch(data, config.data.source, key="task")}
    if mode.needs_drafter and getattr(engine, "loads_drafter", True):
        own = config.speculative.params.get("drafter")
        drafter = own if own is not None else config.model.drafter
        if drafter is None:
            raise ValueError(
                f"model={config.model.name} names no drafter, and speculative={config.speculative.name} needs one: "
                "set speculative.drafter=PATH or a hub id, or use speculative=autoregressive"
            )
        wanted["drafter"] = (drafter, config.model.source, "speculative.drafter" if own else "model.drafter")
    wanted["target"] = (config.model.target, config.model.source, "model.target")
    code = getattr(engine, "remote_code", False)
    return {name: fetch(sources, choice, key=key, code=code) for name, (sources, choice, key) in wanted.items()}


def resolve_sampling(asked: SamplingConfig, target: Path | None) -> Sampling:
    """Fill in what is left to the checkpoint's generation_config.json.

    A checkpoint that states no temperature samples at 1 when it says do_sample, else greedily, which is how
    transformers reads it; filters that it does not state are off. Raises ValueError without a
    checkpoint (None: a server has it) when something is left to it.
    """
    left = [key for key in ("temperature", "top_k", "top_p", "min_p") if getattr(asked, key) == "checkpoint"]
    if left and target is None:
        raise ValueError(
            f"sampling.{left[0]}=checkpoint: the checkpoint is on the server and cannot be read here. Give a number: what "
            "is not sent would be the server's choice, and no record would tell it"
        )
    stated = read_json(target / "generation_config.json") if target else {}
    defaults = {"temperature": 1.0 if stated.get("do_sample") else 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    values: dict[str, Any] = {}
    for key, default in defaults.items():
        value = getattr(asked, key)
        if value == "checkpoint":
            value = stated.get(key)
            value = default if value is None else value
        values[key] = type(default)(value)
    return Sampling(**values, max_new_tokens=asked.max_new_tokens)


def check_lengths(prompts: dict[str, list[int]], sampling: Sampling, target: Path) -> None:
    """Raises ValueError when a sample cannot fit the target's positions: past them a model answers nonsense."""
    most = positions(target)
    for sample_id, ids in prompts.items():
        if most and len(ids) + sampling.max_new_tokens > most:
            raise ValueError(
                f"sampling.max_new_tokens={sampling.max_new_tokens}: sample {sample_id} has {len(ids)} prompt tokens, "
                f"and the target has {most} positions. Allowed here: at most {max(most - len(ids), 0)}"
            )


def check_conversations(
    samples: list[Sample], prompts: dict[str, list[int]], prompter: Prompter, sampling: Sampling, target: Path
) -> None:
    """Raises ValueError when a conversation of answers at full length cannot fit the target's positions."""
    most, turn_tokens = positions(target), 16  # role marks and line ends of a question and an answer
    for sample in samples:
        asked = [len(prompter.tokenizer.encode(text, add_special_tokens=False)) for text in sample.follow_ups]
        fixed = len(prompts[sample.id]) + sum(asked) + turn_tokens * len(asked)
        if most and fixed + (1 + len(asked)) * sampling.max_new_tokens > most:
            raise ValueError(
                f"sampling.max_new_tokens={sampling.max_new_tokens}: the {1 + len(asked)} turns of {sample.id} can come to "
                f"{fixed} tokens and as many answers, and the target has {most} positions. "
                f"Allowed here: at most {max((most - fixed) // (1 + len(asked)), 0)}"
            )


def positions(target: Path) -> int | None:
    """What the target's config gives as its number of positions, None when it gives none."""
    config = read_json(target / "config.json")
    return (config.get("text_config") or config).get("max_position_embeddings")


def subset(samples: list[Sample], run: RunConfig) -> list[Sample]:
    """The first `run.limit` samples in an order that the seed and the ids alone decide.

    So it is the same for every mode and machine, and a larger limit only adds samples.
    """
    order = {s.id: hashlib.sha256(f"{run.subset_seed}/{s.id}".encode()).digest() for s in samples}
    if len(order) != len(samples):
        raise ValueError("task: two samples have the same id; ids must be distinct")
    return sorted(samples, key=lambda sample: order[sample.id])[: run.limit]
