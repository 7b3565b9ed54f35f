"""Your own prompts, decoded and measured but not scored.

One JSON object a line: {"prompt": "Write a haiku."} or {"messages": [{"role": "user", "content": "..."}]}, each with an
optional "id". Without one the id is `line-N`, so it changes when lines are inserted. Other keys are ignored.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tasks.base import Sample, Score
from tasks.rows import Row, read_rows, text_fields, unique_ids

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, kw_only=True)
class Jsonl:
    version: ClassVar[int] = 1
    metric: ClassVar[str | None] = None

    def load(self, path: Path) -> list[Sample]:
        rows = read_rows(path)
        ids = unique_ids(rows, [identity(row, number) for number, row in enumerate(rows, start=1)])
        return [Sample(id=name, messages=messages(row)) for name, row in zip(ids, rows, strict=True)]

    def score(self, sample: Sample, completion: str) -> Score:
        return Score(value=None)


def identity(row: Row, number: int) -> str:
    value = row.data.get("id")
    if value is None:
        line = row.where.rpartition(":")[2]
        return f"line-{line}" if line.isdigit() else f"row-{number}"
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise ValueError(f'{row.where}: "id" must be a string or a whole number')
    return str(value)


def messages(row: Row) -> list[dict[str, str]]:
    if ("prompt" in row.data) == ("messages" in row.data):
        raise ValueError(f'{row.where}: needs either "prompt" or "messages"')
    if "prompt" in row.data:
        return [{"role": "user", "content": text_fields(row, "prompt")[0]}]
    given = row.data["messages"]
    if not isinstance(given, list) or not given:
        raise ValueError(f'{row.where}: "messages" must be a list that is not empty')
    return [message(one, f'{row.where}: "messages"[{place}]') for place, one in enumerate(given)]


def message(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or set(value) != {"role", "content"}:
        raise ValueError(f'{where} must be an object with "role" and "content" and nothing else')
    if value["role"] not in ROLES:
        raise ValueError(f'{where}: "role" must be one of {", ".join(ROLES)}, not {value["role"]!r}')
    if not isinstance(value["content"], str):
        raise ValueError(f'{where}: "content" must be a string')
    return {"role": value["role"], "content": value["content"]}
