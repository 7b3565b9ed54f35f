"""MT-Bench, Alpaca and SWE-bench Lite: what is asked, histories of one's own, and no score where nobody judges."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.alpaca import Alpaca
from tasks.base import Sample
from tasks.judge import Judge
from tasks.mt_bench import MtBench
from tasks.swe_bench_lite import SweBenchLite

FIXTURES = Path(__file__).parent / "fixtures"
FILES = {
    "mt_bench_hub": (MtBench(), FIXTURES / "mt_bench_hub.jsonl"),
    "mt_bench_package": (MtBench(), FIXTURES / "mt_bench_package.jsonl"),
    "alpaca": (Alpaca(), FIXTURES / "alpaca.jsonl"),
    "swe_bench_lite": (SweBenchLite(), FIXTURES / "swe_bench_lite.jsonl"),
}


@pytest.mark.parametrize("name", FILES)
def test_without_a_judge_there_is_no_score(name: str) -> None:
    task, path = FILES[name]
    assert task.metric is None
    for sample in task.load(path):
        for completion in ("A fine answer.", "", "<think>"):
            assert task.score(sample, completion).value is None


def test_ids() -> None:
    ids = {name: [sample.id for sample in task.load(path)] for name, (task, path) in FILES.items()}
    assert ids == {
        "mt_bench_hub": ["mt_bench-hub/81001", "mt_bench-hub/81002"],
        "mt_bench_package": ["mt_bench/81", "mt_bench/111"],
        "alpaca": ["alpaca/0", "alpaca/1"],
        "swe_bench_lite": ["swe_bench_lite/own__project-1", "swe_bench_lite/own__other-7"],
    }


def test_what_alpaca_asks() -> None:
    first, second = [sample.messages[0]["content"] for sample in Alpaca().load(FIXTURES / "alpaca.jsonl")]
    assert first == "Name the odd one out.\n\napple, pear, hammer"
    assert second == "Give two tips for sleeping well."


def test_what_swe_bench_asks() -> None:
    [content, _] = [s.messages[0]["content"] for s in SweBenchLite().load(FIXTURES / "swe_bench_lite.jsonl")]
    assert "own/project" in content
    assert "`parse('')` raises IndexError" in content
    assert "Look at" not in content  # no hints
    assert "t.py" not in content  # and none of the tests


def test_each_run_has_a_history_of_its_own() -> None:
    [first, _] = MtBench().load(FIXTURES / "mt_bench_package.jsonl")
    assert first.messages == [{"role": "user", "content": "Write a short poem about rain."}]
    one, other = first.next_turn("Rain falls."), first.next_turn("It pours.")
    assert one is not None
    assert other is not None
    assert one.id == other.id == "mt_bench/81/turn-2"
    assert one.conversation == first.conversation == "mt_bench/81"
    assert [message["content"] for message in one.messages] == [
        "Write a short poem about rain.",
        "Rain falls.",
        "Rewrite it without the letter e.",
    ]
    assert [message["role"] for message in one.messages] == ["user", "assistant", "user"]
    assert other.messages[1]["content"] == "It pours."
    assert one.next_turn("Fin.") is None
    assert first.next_turn("Rain falls.") == one


def test_three_turns_count_on() -> None:
    sample: Sample | None = Sample(id="a", messages=[{"role": "user", "content": "1"}], follow_ups=("2", "3"))
    ids = []
    while sample is not None:
        ids.append((sample.id, sample.turn, len(sample.messages), sample.conversation))
        sample = sample.next_turn("yes")
    assert ids == [("a", 1, 1, "a"), ("a/turn-2", 2, 3, "a"), ("a/turn-3", 3, 5, "a")]


@pytest.fixture
def judge() -> Iterator[tuple[Judge, list[dict[str, Any]]]]:
    """An endpoint that gives every answer an 8, and what it was asked."""
    asked: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps({"choices": [{"message": {"content": "Good.\nRating: [[8]]"}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Judge(url=f"http://127.0.0.1:{server.server_port}/v1", model="judge"), asked
    server.shutdown()
    server.server_close()


def test_with_a_judge_each_turn_is_rated_with_its_reference(judge: tuple[Judge, list[dict[str, Any]]]) -> None:
    rater, asked = judge
    task = MtBench(judge=rater)
    assert task.metric == "judge score"
    first = task.load(FIXTURES / "mt_bench_package.jsonl")[1]
    second = first.next_turn("It is 9.")
    assert second is not None
    assert task.score(first, "It is 9.").value == 0.8
    assert task.score(second, "It is 4 pi.").value == 0.8
    seen = [json.dumps(request["messages"]) for request in asked]
    assert "4 pi" not in seen[0]
    assert "It is 9." in seen[1]
    assert "It is 4 pi." in seen[1]
    assert Alpaca(judge=rater).score(Alpaca().load(FIXTURES / "alpaca.jsonl")[0], "hammer").value == 0.8
    assert len(asked) == 3


def test_the_real_package_file(package_files: dict[str, Path]) -> None:
    samples = MtBench().load(package_files["mt_bench"])
    assert [sample.id for sample in samples] == [f"mt_bench/{number}" for number in range(81, 161)]
    assert all(len(sample.follow_ups) == 1 for sample in samples)
    assert sum(bool(sample.reference["answers"]) for sample in samples) == 39


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("mt_bench_hub", {"prompt": ["a"], "prompt_id": "x"}, r'"prompt_id" must be a whole number'),
        ("mt_bench_hub", {"prompt": [], "prompt_id": 1}, r"field 'prompt' must hold at least one turn"),
        ("mt_bench_package", {"turns": ["a", " "], "question_id": 1}, r"field 'turns' must hold at least one turn"),
        ("mt_bench_package", {"turns": "a", "question_id": 1}, r"field 'turns' must be a list of strings"),
        ("mt_bench_package", {"turns": ["a"]}, r'"question_id" must be a whole number'),
        ("alpaca", {"instruction": "a"}, r"field 'input' must be a string"),
        ("alpaca", {"instruction": "", "input": ""}, r"field 'instruction' must be a string that is not blank"),
        ("swe_bench_lite", {"instance_id": "a", "repo": "b"}, r"has no field 'problem_statement'"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, name: str, row: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=rf"a\.jsonl:1: {message}"):
        FILES[name][0].load(path)
