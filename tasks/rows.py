"""Reads data files of any supported form as plain rows that know where they stand."""

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

FORMATS = ".jsonl, .jsonl.gz, .json (an array of objects) and .parquet"


class Row(NamedTuple):
    where: str  # "FILE:LINE" for lines, "FILE: row N" (from 1) otherwise
    data: dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """All rows of `path`, in file order. ValueError names the file, and the line where there is one."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        rows = read_lines(path)
    elif path.suffix == ".json":
        rows = read_array(path)
    elif path.suffix == ".parquet":
        rows = read_parquet(path)
    else:
        raise ValueError(f"{path}: unknown kind of data file; supported are {FORMATS}")
    if not rows:
        raise ValueError(f"{path}: holds no rows")
    return rows


def read_lines(path: Path) -> list[Row]:
    rows = []
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise ValueError(f"{path}: not a readable gzip file ({error})") from None
    for number, line in enumerate(raw.split(b"\n"), start=1):  # not splitlines: U+2028 may stand inside a string
        if not line.strip():
            continue
        where = f"{path}:{number}"
        rows.append(Row(where, as_object(parse_json(line, where), where)))
    return rows


def read_array(path: Path) -> list[Row]:
    rows = parse_json(path.read_bytes(), str(path))
    if not isinstance(rows, list):
        raise ValueError(f"{path}: expected a JSON array of objects, found {type(rows).__name__}")
    wheres = (f"{path}: row {number}" for number in range(1, len(rows) + 1))
    return [Row(where, as_object(row, where)) for where, row in zip(wheres, rows, strict=True)]


def read_parquet(path: Path) -> list[Row]:
    import datasets

    with tempfile.TemporaryDirectory() as cache:  # the file itself is the cache
        try:
            rows = datasets.Dataset.from_parquet(str(path), cache_dir=cache, keep_in_memory=True).to_list()
        except (ValueError, OSError, datasets.exceptions.DatasetGenerationError) as error:  # Arrow's are ValueErrors
            raise ValueError(f"{path}: not a readable parquet file ({error})") from None
    return [Row(f"{path}: row {number}", row) for number, row in enumerate(rows, start=1)]


def parse_json(text: bytes, where: str) -> Any:
    try:
        return json.loads(text.decode("utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{where}: not valid JSON in UTF-8 ({error})") from None


def as_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value


def read_mapping(path: Path, key: str) -> list[Row]:
    """The named objects under `key` of a JSON file that is one object, in file order. `where` holds each one's name."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    whole = as_object(parse_json(path.read_bytes(), str(path)), str(path))
    if key not in whole:
        raise ValueError(f"{path}: has no {key!r}; keys are {', '.join(map(repr, whole))}")
    named = as_object(whole[key], f"{path}: {key!r}")
    if not named:
        raise ValueError(f"{path}: {key!r} holds no rows")
    rows = ((f"{path}: {key}[{name!r}]", value) for name, value in named.items())
    return [Row(where, as_object(value, where)) for where, value in rows]


def text_fields(row: Row, *names: str) -> list[str]:
    """The named fields of `row`, which must be there and be strings that are not blank."""
    for name in names:
        if name not in row.data:
            raise ValueError(f"{row.where}: has no field {name!r}; fields are {', '.join(map(repr, row.data))}")
        if not isinstance(row.data[name], str) or not row.data[name].strip():
            raise ValueError(f"{row.where}: field {name!r} must be a string that is not blank")
    return [row.data[name] for name in names]


def integer_field(row: Row, name: str) -> int:
    """The named field of `row`, which must be there and be a whole number."""
    value = row.data.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f'{row.where}: "{name}" must be a whole number')
    return value


def text_list(row: Row, name: str) -> list[str]:
    """The named field of `row`, which must be there and be a list of strings; it may be empty."""
    value = row.data.get(name)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{row.where}: field {name!r} must be a list of strings")
    return value


def unique_ids(rows: list[Row], ids: list[str]) -> list[str]:
    """`ids` again. ValueError names the second row of the first id that occurs twice."""
    seen: set[str] = set()
    for row, identity in zip(rows, ids, strict=True):
        if identity in seen:
            raise ValueError(f"{row.where}: id {identity!r} occurs twice")
        seen.add(identity)
    return ids
