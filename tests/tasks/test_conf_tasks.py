"""Every file of conf/task: all keys of its class, pinned sources, and documents that name it."""

import inspect
import re
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from harness.config import DataConfig, Sources

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "conf/task").glob("*.yaml"))
CONF = {path.stem: yaml.safe_load(path.read_text()) for path in FILES}
OF_THE_PAPER = {"gsm8k", "math500", "aime24", "aime25", "humaneval"}
OF_THE_PAPER |= {"mbpp", "livecodebench", "swe_bench_lite", "mt_bench", "alpaca"}
each = pytest.mark.parametrize("name", CONF)


def task_class(name: str) -> Any:
    module, _, cls = CONF[name]["_target_"].rpartition(".")
    return getattr(import_module(module), cls)


def test_the_sets_of_the_paper_and_those_that_need_no_hub_are_there() -> None:
    assert set(CONF) == OF_THE_PAPER | {"gsm_symbolic", "champ", "jsonl"}


@each
def test_every_key_is_present_with_its_default(name: str) -> None:
    """So that each can be overridden without a `+`, and that the file and the class never drift apart."""
    values, cls = CONF[name], task_class(name)
    assert is_dataclass(cls)
    assert values["name"] == name
    own = {field.name: getattr(cls(), field.name) for field in fields(cls)}
    assert values.keys() == {"name", "_target_", *own, *(field.name for field in fields(DataConfig))}
    for key, default in own.items():
        plain = {f.name: getattr(default, f.name) for f in fields(default)} if is_dataclass(default) else default
        assert values[key] == plain, key


@each
def test_sources_are_offered_and_pinned(name: str) -> None:
    sources = TypeAdapter(Sources).validate_python(CONF[name]["sources"])
    if name == "jsonl":
        assert sources == Sources()
        return
    assert sources.path or getattr(sources, CONF[name]["source"])
    if sources.path:
        assert (ROOT / sources.path).is_file()
    if sources.hub:
        assert re.fullmatch(r"[0-9a-f]{40}", sources.hub.revision)
        assert sources.hub.file
        assert sources.hub.file.endswith((".parquet", ".jsonl"))  # data, never a script
    if sources.package:
        assert re.fullmatch(r"[\w-]+==[\w.]+", sources.package.requirement)
        assert re.fullmatch(r"[0-9a-f]{64}", sources.package.sha256)


@each
def test_the_docstring_holds_source_licence_row_prompt_and_version(name: str) -> None:
    cls = task_class(name)
    text = inspect.getmodule(cls).__doc__
    if name == "jsonl":
        assert '{"prompt": ' in text
        return
    assert f"Version {cls.version}." in text
    for part in ("source", "a row", "asked as one user message"):
        assert part in text.lower(), part
    assert re.search(r"licence|MIT|Apache|CC BY", text)


@each
def test_documents_name_it(name: str) -> None:
    for page in ("docs/tasks.md", "README.md"):
        assert f"`{name}`" in (ROOT / page).read_text(), page
