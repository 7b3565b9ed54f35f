"""HumanEval on rows of our own, and all 164 real problems with right and wrong answers through the sandbox."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tasks.base import Sample, Score
from tasks.humaneval import HumanEval

FIXTURE = Path(__file__).parent / "fixtures" / "humaneval.jsonl"
ROWS = [json.loads(line) for line in FIXTURE.read_text().splitlines()]
TASK = HumanEval(timeout_s=10.0)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    elif path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_every_file_form_gives_the_same_samples(tmp_path: Path, name: str) -> None:
    samples = TASK.load(write(tmp_path / name, ROWS))
    assert samples == TASK.load(FIXTURE)
    assert [sample.id for sample in samples] == ["Own/0", "Own/1"]
    assert [message["role"] for message in samples[0].messages] == ["user"]
    assert ROWS[0]["prompt"].rstrip() in samples[0].messages[0]["content"]
    assert ROWS[0]["canonical_solution"].strip() not in samples[0].messages[0]["content"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": None}, r"a\.jsonl:2: field 'prompt' must be a string"),
        ({"test": "  "}, r"a\.jsonl:2: field 'test' must be a string that is not blank"),
        ({"entry_point": "other"}, r"a\.jsonl:2: the prompt does not define the entry point 'other'"),
        ({"entry_point": "is_mirror("}, r"a\.jsonl:2: the prompt does not define"),
        ({"task_id": "Own/0"}, r"a\.jsonl:2: id 'Own/0' occurs twice"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "a.jsonl", [ROWS[0], {**ROWS[1], **change}])
    with pytest.raises(ValueError, match=message):
        TASK.load(path)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{key: value for key, value in ROWS[0].items() if key != "test"}])
    with pytest.raises(ValueError, match=r"a\.jsonl:1: has no field 'test'; fields are 'task_id', 'prompt'"):
        TASK.load(path)


def score(sample: Sample, completion: str) -> Score:
    result = TASK.score(sample, completion)
    json.dumps(result.detail)
    return result


def test_scores_of_our_rows() -> None:
    for sample in TASK.load(FIXTURE):
        body = sample.reference["canonical_solution"]
        right = score(sample, f"Here:\n```python\n{sample.reference['prompt']}{body}```")
        assert (right.value, right.detail["reason"]) == (1.0, "passed")
        assert right.detail["sandbox"]["holds"]
        assert score(sample, body).value == 1.0  # the helper of the prompt is kept
        wrong = score(sample, "    return None\n")
        assert (wrong.value, wrong.detail["answer"]) == (0.0, "bare body")
        assert "AssertionError" in wrong.detail["reason"]


def test_no_answer_scores_zero_without_running() -> None:
    sample = TASK.load(FIXTURE)[0]
    assert score(sample, "").value == 0.0
    truncated = score(sample, "<think>Let me see\n```python\ndef count_even(numbers):\n    return 0\n```")
    assert truncated.detail == {"answer": truncated.detail["reason"], "reason": "no answer, truncated reasoning"}


def test_a_loop_ends_at_the_limit() -> None:
    """lm-evaluation-harness#2839: generated code that loops for ever must be killed and scored wrong."""
    result = HumanEval(timeout_s=0.5).score(TASK.load(FIXTURE)[0], "    while True: pass\n")
    assert (result.value, result.detail["reason"]) == (0.0, "timed out after 0.5 s")


def test_an_answer_cannot_pass_by_leaving() -> None:
    sample = TASK.load(FIXTURE)[0]
    for body in ("    import os; os._exit(0)", "    raise SystemExit(0)", "    print('passed'); quit()"):
        assert score(sample, body).value == 0.0


def test_all_real_solutions_pass_and_all_wrong_ones_fail(package_files: dict[str, Path]) -> None:
    samples = TASK.load(package_files["humaneval"])
    assert len(samples) == 164
    assert [sample.id for sample in samples] == [f"HumanEval/{number}" for number in range(164)]
    with ThreadPoolExecutor(2) as pool:
        right = list(pool.map(lambda sample: score(sample, sample.reference["canonical_solution"]), samples))
        wrong = list(pool.map(lambda sample: score(sample, "    return None\n"), samples))
    assert [sample.id for sample, result in zip(samples, right, strict=True) if result.value != 1.0] == []
    assert [sample.id for sample, result in zip(samples, wrong, strict=True) if result.value != 0.0] == []
