"""Prompts as the model expects them: one BOS, thinking as asked, the stop ids and where they come from."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.prompts import Prompter, stop_ids

CHAT = [{"role": "user", "content": "hi"}]
TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
PLAIN = TURNS + "{% if add_generation_prompt %}assistant: {% endif %}"
SWITCH = PLAIN + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
OPENS = PLAIN + "<think>\n"


def target(tiny: Path, folder: Path, template: str | None, *, adds_bos: bool) -> Path:
    """The tiny target with this template, and with a tokenizer that puts a BOS in front of plain text or does not."""
    shutil.copytree(tiny, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if adds_bos:
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        }
        special = {"id": 0, "content": "<s>", "special": True}
        rest = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        tokenizer["added_tokens"] = [{**special, **rest}]
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.parametrize("template", [None, PLAIN, "{{ bos_token }}" + PLAIN, "{{ bos_token }}{{ bos_token }}" + PLAIN])
def test_exactly_one_bos(tiny_pair: dict[str, Path], tmp_path: Path, template: str | None) -> None:
    """Whether the template writes it, forgets it, or the two of them double it."""
    prompter = Prompter(target(tiny_pair["target"], tmp_path / "t", template, adds_bos=True), {})
    ids = prompter.ids(CHAT)
    assert ids[0] == 0
    assert ids.count(0) == 1
    assert prompter.resolved["bos"] == {"id": 0, "text": "<s>"}


@pytest.mark.parametrize("template", [None, PLAIN])
def test_no_bos_where_the_model_expects_none(tiny_pair: dict[str, Path], tmp_path: Path, template: str | None) -> None:
    prompter = Prompter(target(tiny_pair["target"], tmp_path / "t", template, adds_bos=False), {})
    assert 0 not in prompter.ids(CHAT)
    assert prompter.resolved["bos"] is None
    text = "hi" if template is None else "user: hi\nassistant: "
    assert prompter.tokenizer.decode(prompter.ids(CHAT)) == text


@pytest.mark.parametrize(
    ("template", "kwargs", "thinking", "opened"),
    [
        (PLAIN, {}, None, ""),
        (None, {}, None, ""),
        (SWITCH, {}, "on", ""),
        (SWITCH, {"enable_thinking": True}, "on", ""),
        (SWITCH, {"enable_thinking": False}, "off", ""),
        (OPENS, {}, "on", "<think>"),
    ],
)
def test_thinking_is_recorded(
    tiny_pair: dict[str, Path],
    tmp_path: Path,
    template: str | None,
    kwargs: dict[str, Any],
    thinking: str | None,
    opened: str,
) -> None:
    prompter = Prompter(target(tiny_pair["target"], tmp_path / "t", template, adds_bos=False), kwargs)
    assert prompter.resolved["thinking"] == thinking
    assert prompter.resolved["chat_template_kwargs"] == kwargs
    assert prompter.resolved["opens_reasoning"] == opened
    assert (prompter.resolved["chat_template_sha256"] is None) == (template is None)
    assert prompter.graded("17") == ("<think>\n17" if opened else "17")


def test_stop_ids_say_where_they_come_from(tiny_pair: dict[str, Path]) -> None:
    assert stop_ids(tiny_pair["target"]) == [1, 2]
    stops = Prompter(tiny_pair["target"], {}).resolved["stops"]
    assert [(stop["id"], stop["text"]) for stop in stops] == [(1, "</s>"), (2, "<end>")]
    assert stops[1]["from"] == ["generation_config.json"]
    assert set(stops[0]["from"]) == {"generation_config.json", "config.json", "tokenizer"}


def test_cut_off_reasoning_that_the_template_opened_is_no_answer(
    harness, tiny_pair: dict[str, Path], tmp_path: Path
) -> None:
    """The output holds no mark: only the prompt tells that all of it is reasoning."""
    from harness.records import RunFolder

    folder = target(tiny_pair["target"], tmp_path / "t", OPENS, adds_bos=False)
    harness(f"model.target={folder}", "task._target_=tests.grading_tasks.Unmarked", "run.limit=2", "run.profile=0")
    [run] = [RunFolder(path) for path in harness.outputs.iterdir()]
    assert all(record.flags["open_reasoning"] and record.score == 0.0 for record in run.records())
    assert run.summary()["rate/open_reasoning"] == 1.0
    assert run.manifest().resolved["prompts"]["thinking"] == "on"
