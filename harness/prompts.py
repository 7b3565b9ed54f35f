"""From chat messages to the target's prompt ids, and the ids that end an answer."""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from tasks.reasoning import opened_reasoning, with_opened


class Prompter:
    """The target's tokenizer with its chat template.

    Without a template the messages' contents are joined by blank lines, and `resolved` says so. Where the tokenizer puts a
    BOS in front of plain text the model expects one, and the prompt gets exactly one, whether the template writes it,
    forgets it or doubles it.
    """

    def __init__(self, path: Path, template_kwargs: dict[str, Any]):
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.template_kwargs = template_kwargs
        self.bos = _expected_bos(self.tokenizer)
        shown = self._render([{"role": "user", "content": "x"}])
        self.opens = opened_reasoning(shown)
        self.resolved = {
            "chat_template_sha256": _sha256(self.tokenizer.chat_template) if self.tokenizer.chat_template else None,
            "chat_template_kwargs": template_kwargs,
            "thinking": self._thinking(shown),
            "opens_reasoning": self.opens,  # the mark of the block that every prompt leaves open, "" if none
            "bos": None if self.bos is None else {"id": self.bos, "text": self.tokenizer.bos_token},
            "stops": stops(path),
        }

    def ids(self, messages: list[dict[str, str]]) -> list[int]:
        """Prompt ids with the generation prompt added; special tokens come from the template, but for the one BOS."""
        ids = self.tokenizer.encode(self._render(messages), add_special_tokens=False)
        if self.bos is not None:
            while ids[:1] == [self.bos]:
                ids = ids[1:]
            ids = [self.bos, *ids]
        return ids

    def fingerprint(self, messages: list[dict[str, str]], ids: list[int]) -> str:
        """Hash of the rendered prompt's token ids."""
        return _sha256(json.dumps(ids))

    def text(self, ids: list[int]) -> str:
        """The answer as a person reads it: special tokens, the stop id among them, left out."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def graded(self, output_text: str) -> str:
        """The answer as a grader reads it: with the mark of a reasoning block that the prompt left open."""
        return with_opened(self.opens, output_text)

    def _render(self, messages: list[dict[str, str]], **kwargs: Any) -> str:
        if not self.tokenizer.chat_template:
            return "\n\n".join(message["content"] for message in messages)
        kwargs = {**self.template_kwargs, **kwargs}
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **kwargs)
        return str(text)

    def _thinking(self, shown: str) -> Literal["on", "off"] | None:
        """Whether the model is asked to think first; None where the template has no such switch.

        The switch is `enable_thinking` (Qwen3, GLM, Hunyuan) or `thinking` (DeepSeek, Granite); a template that opens the
        block itself asks for it without one.
        """
        for name in ("enable_thinking", "thinking") if self.tokenizer.chat_template else ():
            on, off = (self._render([{"role": "user", "content": "x"}], **{name: value}) for value in (True, False))
            if on != off:
                return "on" if shown == on else "off"
        return "on" if self.opens else None


def _expected_bos(tokenizer: Any) -> int | None:
    ids = tokenizer.encode("x")
    return ids[0] if ids and ids[0] == tokenizer.bos_token_id else None


class ServedPrompter:
    """Stands in where a server applies the chat template: there are no prompt ids here, and no text without them."""

    def __init__(self, template_kwargs: dict[str, Any]):
        self.template_kwargs = template_kwargs
        self.resolved = {"chat_template_sha256": None, "chat_template_kwargs": template_kwargs, "by": "server"}

    def ids(self, messages: list[dict[str, str]]) -> list[int]:
        return []

    def fingerprint(self, messages: list[dict[str, str]], ids: list[int]) -> str:
        """In place of a hash of ids: equal messages and arguments, equal hash."""
        return _sha256(json.dumps([messages, self.template_kwargs], sort_keys=True))

    def text(self, ids: list[int]) -> str:
        raise ValueError("the server that tokenizes must also send the text")

    def graded(self, output_text: str) -> str:
        return output_text


def stop_ids(path: Path, tokenizer: bool = True) -> list[int]:
    """Every id that ends an answer: those of generation_config.json, config.json and the tokenizer, sorted.

    tokenizer: False where it is Python code of the checkpoint, which the harness does not run.
    """
    return [stop["id"] for stop in stops(path)] if tokenizer else sorted(_named_stops(path))


def stops(path: Path) -> list[dict[str, Any]]:
    """The ids that end an answer, sorted, each with its text and the files that name it."""
    from transformers import AutoTokenizer

    found, tokenizer = _named_stops(path), AutoTokenizer.from_pretrained(path)
    if tokenizer.eos_token_id is not None:
        found.setdefault(tokenizer.eos_token_id, []).append("tokenizer")
    texts = {token: tokenizer.convert_ids_to_tokens(token) for token in found}
    return [{"id": token, "text": texts[token], "from": found[token]} for token in sorted(found)]


def _named_stops(path: Path) -> dict[int, list[str]]:
    """The ids in the checkpoint's own files, and which name them."""
    found: dict[int, list[str]] = {}
    for name in ("generation_config.json", "config.json"):
        config = read_json(path / name)
        for eos in (part.get("eos_token_id") for part in (config, config.get("text_config") or {})):
            for token in eos if isinstance(eos, list) else [] if eos is None else [eos]:
                if name not in found.setdefault(token, []):
                    found[token].append(name)
    return found


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one when the file is not there."""
    return json.loads(path.read_text()) if path.is_file() else {}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
