"""From chat messages to the target's prompt ids, and the ids that end an answer."""

import hashlib
import json
from pathlib import Path
from typing import Any


class Prompter:
    """The target's tokenizer with its chat template.

    Without a template the messages' contents are joined by blank lines, and `resolved` says so.
    """

    def __init__(self, path: Path, template_kwargs: dict[str, Any]):
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.template_kwargs = template_kwargs
        self.resolved = {
            "chat_template_sha256": _sha256(self.tokenizer.chat_template) if self.tokenizer.chat_template else None,
            "chat_template_kwargs": template_kwargs,
        }

    def ids(self, messages: list[dict[str, str]]) -> list[int]:
        """Prompt ids with the generation prompt added; special tokens come from the template alone."""
        if self.tokenizer.chat_template:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **self.template_kwargs
            )
            return self.tokenizer.encode(text, add_special_tokens=False)
        return self.tokenizer.encode("\n\n".join(m["content"] for m in messages))

    def text(self, ids: list[int]) -> str:
        """The answer as a grader reads it: special tokens, the stop id among them, left out."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


class ServedPrompter:
    """Stands in where a server applies the chat template: there are no prompt ids here, and no text without them."""

    def __init__(self, template_kwargs: dict[str, Any]):
        self.resolved = {"chat_template_sha256": None, "chat_template_kwargs": template_kwargs, "by": "server"}

    def ids(self, messages: list[dict[str, str]]) -> list[int]:
        return []

    def text(self, ids: list[int]) -> str:
        raise ValueError("the server that tokenizes must also send the text")


def stop_ids(path: Path, tokenizer: bool = True) -> list[int]:
    """Every id that ends an answer: those of generation_config.json, config.json and the tokenizer, sorted.

    tokenizer: False where it is Python code of the checkpoint, which the harness does not run.
    """
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        config = read_json(path / name)
        for eos in (part.get("eos_token_id") for part in (config, config.get("text_config") or {})):
            found.update(eos if isinstance(eos, list) else [] if eos is None else [eos])
    if tokenizer:
        from transformers import AutoTokenizer

        eos = AutoTokenizer.from_pretrained(path).eos_token_id
        found.update([] if eos is None else [eos])
    return sorted(found)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one when the file is not there."""
    return json.loads(path.read_text()) if path.is_file() else {}


def prompt_sha256(ids: list[int]) -> str:
    return _sha256(json.dumps(ids))


def messages_sha256(messages: list[dict[str, str]], template_kwargs: dict[str, Any]) -> str:
    """In place of `prompt_sha256` where a server makes the ids: equal messages and arguments, equal hash."""
    return _sha256(json.dumps([messages, template_kwargs], sort_keys=True))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
