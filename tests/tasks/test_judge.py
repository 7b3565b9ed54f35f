"""The judge against a real HTTP server on this machine that speaks chat completions, well and badly."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import tasks.judge
from tasks.judge import Judge
from tasks.reasoning import TRUNCATED

MESSAGES = [
    {"role": "user", "content": "Name a prime."},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "Really?"},
]


class Endpoint:
    """Answers each request with the next of `replies`, (status, body), the last one for ever; keeps what was asked."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, Any]] = []
        self.asked: list[dict[str, Any]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.asked.append({"path": self.path, "key": self.headers["Authorization"], "body": body})
                status, reply = endpoint.replies.pop(0) if len(endpoint.replies) > 1 else endpoint.replies[0]
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", f"{endpoint.url}/elsewhere")
                self.end_headers()
                self.wfile.write(reply if isinstance(reply, bytes) else json.dumps(reply).encode())

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def says(self, text: str | None) -> None:
        self.replies.append((200, {"choices": [{"message": {"role": "assistant", "content": text}}]}))


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setattr(tasks.judge, "PAUSES_S", (0.0, 0.0))
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = Endpoint()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()


def judge(endpoint: Endpoint) -> Judge:
    return Judge(url=endpoint.url, model="some-judge", timeout_s=5.0)


def test_a_rating_becomes_a_score(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    endpoint.says("<think>[[2]]</think>Not [[3]]. It is fine.\nRating: [[7]]")
    score = judge(endpoint).score(MESSAGES, "<think>hm</think>No, 4 is not; 5 is.", "5")
    assert score.value == pytest.approx(0.7)
    assert (score.detail["rating"], score.detail["judge"]) == (7.0, "some-judge")
    assert "secret-key" not in json.dumps(score.detail)
    [asked] = endpoint.asked
    assert (asked["path"], asked["key"]) == ("/v1/chat/completions", "Bearer secret-key")
    assert (asked["body"]["model"], asked["body"]["temperature"]) == ("some-judge", 0)
    said = asked["body"]["messages"][-1]["content"]
    for part in ("Name a prime.", "Really?", "No, 4 is not; 5 is.", "<reference>\n5\n"):
        assert part in said
    assert "hm" not in said


def test_no_key_no_header(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    endpoint.says("Rating: [[10]]")
    assert judge(endpoint).score(MESSAGES, "5").value == 1.0
    assert endpoint.asked[0]["key"] is None


@pytest.mark.parametrize(("completion", "reason"), [("<think>well", TRUNCATED), ("  ", "no answer")])
def test_no_answer_is_not_sent(endpoint: Endpoint, completion: str, reason: str) -> None:
    score = judge(endpoint).score(MESSAGES, completion)
    assert (score.value, score.detail["reason"]) == (0.0, reason)
    assert endpoint.asked == []


@pytest.mark.parametrize("said", ["I like it.", "Rating: [[11]]", "Rating: [[0]]", "Rating: 7", "", None])
def test_no_rating_is_no_score(endpoint: Endpoint, said: str | None) -> None:
    endpoint.says(said)
    score = judge(endpoint).score(MESSAGES, "5")
    assert score.value is None
    assert "no rating" in score.detail["grader_error"]


def test_what_passes_is_tried_again(endpoint: Endpoint) -> None:
    endpoint.replies = [(429, b"slow down"), (503, b"busy")]
    endpoint.says("Rating: [[4]]")
    assert judge(endpoint).score(MESSAGES, "5").value == pytest.approx(0.4)
    assert len(endpoint.asked) == 3


@pytest.mark.parametrize(
    ("reply", "tries", "part"),
    [
        ((500, b"broken"), 3, "answered 500"),
        ((401, b"who are you"), 1, "answered 401"),
        ((302, b""), 1, "answered 302"),
        ((200, b"<html>"), 1, "form of chat completions"),
        ((200, {"error": "x"}), 1, "no choices"),
    ],
)
def test_a_failing_judge_is_no_score(endpoint: Endpoint, reply: tuple[int, Any], tries: int, part: str) -> None:
    endpoint.replies = [reply]
    score = judge(endpoint).score(MESSAGES, "5")
    assert score.value is None
    assert part in score.detail["grader_error"]
    assert len(endpoint.asked) == tries


def test_nobody_there(endpoint: Endpoint) -> None:
    endpoint.server.shutdown()
    endpoint.server.server_close()
    score = judge(endpoint).score(MESSAGES, "5")
    assert score.value is None
    assert "cannot be reached" in score.detail["grader_error"]


def test_off_is_unscored_not_zero() -> None:
    assert not Judge().enabled
    assert Judge().score(MESSAGES, "5").value is None


@pytest.mark.parametrize("values", [{"url": "http://x/v1"}, {"model": "m"}, {"url": "host:80", "model": "m"}])
def test_half_a_judge_is_refused(values: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"task\.judge"):
        Judge(**values)
