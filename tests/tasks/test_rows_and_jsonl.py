"""Data files: every form reads the same, every fault names file and line."""

import gzip
import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.base import Sample
from tasks.jsonl import Jsonl
from tasks.rows import read_rows

FIXTURE = Path(__file__).parent / "fixtures" / "prompts.jsonl"
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))
ROWS = st.lists(st.dictionaries(st.text(string.ascii_letters), JSON, max_size=4), min_size=1, max_size=5)


@given(ROWS, st.booleans())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_forms_agree(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], ascii_only: bool) -> None:
    folder = tmp_path_factory.mktemp("rows")
    lines = "\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows).encode("utf-8", "surrogatepass")
    try:
        lines.decode()
    except UnicodeDecodeError:
        return  # a lone surrogate cannot stand in a UTF-8 file
    (folder / "a.jsonl").write_bytes(lines)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines + b"\n\n"))
    (folder / "a.json").write_text(json.dumps(rows), encoding="utf-8")
    for name in ("a.jsonl", "a.jsonl.gz", "a.json"):
        assert [row.data for row in read_rows(folder / name)] == rows
    assert [row.where for row in read_rows(folder / "a.jsonl")] == [
        f"{folder / 'a.jsonl'}:{number}" for number in range(1, len(rows) + 1)
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"a": 1}\n\n{"a": \n', r"a\.jsonl:3: not valid JSON"),
        ("a.jsonl", b'{"a": 1}\n[1]\n', r"a\.jsonl:2: expected a JSON object, found list"),
        ("a.jsonl", b'{"a": "\xff"}\n', r"a\.jsonl:1: not valid JSON in UTF-8"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl:1: not valid JSON"),
        ("a.jsonl", b"\n \n", r"a\.jsonl: holds no rows"),
        ("a.jsonl.gz", b"plain text", r"a\.jsonl\.gz: not a readable gzip file"),
        ("a.jsonl.gz", gzip.compress(b"{}\n", mtime=0)[:-9], r"a\.jsonl\.gz: not a readable gzip file"),
        ("a.json", b'{"a": 1}', r"a\.json: expected a JSON array of objects, found dict"),
        ("a.json", b"[{}, 3]", r"a\.json: row 2: expected a JSON object, found int"),
        ("a.parquet", b"PAR1", r"a\.parquet: not a readable parquet file"),
        ("a.csv", b"a,b", r"a\.csv: unknown kind of data file; supported are \.jsonl"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_rows(tmp_path / name)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(ValueError, match="no such file"):
            read_rows(path)


def test_prompts() -> None:
    samples = Jsonl().load(FIXTURE)
    haiku = [{"role": "user", "content": "Write a haiku about trees."}]
    greeting = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]
    assert samples == [Sample(id="line-1", messages=haiku), Sample(id="greeting", messages=greeting)]
    assert Jsonl().score(samples[0], "anything").value is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", 'needs either "prompt" or "messages"'),
        ('{"prompt": "a", "messages": []}', 'needs either "prompt" or "messages"'),
        ('{"prompt": " "}', "field 'prompt' must be a string that is not blank"),
        ('{"prompt": 3}', "field 'prompt' must be a string"),
        ('{"messages": []}', '"messages" must be a list that is not empty'),
        ('{"messages": ["hi"]}', r'"messages"\[0\] must be an object with "role" and "content"'),
        ('{"messages": [{"role": "user", "content": "a", "name": "b"}]}', r'"messages"\[0\] must be an object'),
        ('{"messages": [{"role": "robot", "content": "a"}]}', '"role" must be one of system, user, assistant'),
        ('{"messages": [{"role": "user", "content": null}]}', '"content" must be a string'),
        ('{"id": true, "prompt": "a"}', '"id" must be a string or a whole number'),
        ('{"id": " ", "prompt": "a"}', '"id" must be a string or a whole number'),
        ('{"id": "first", "prompt": "a"}', "id 'first' occurs twice"),
    ],
)
def test_bad_prompts_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"id": "first", "prompt": "a"}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"own\.jsonl:2: ?.*" + message):
        Jsonl().load(path)
