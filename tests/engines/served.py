"""A small real HTTP server whose answers a test writes: server-sent events, refusals, silence, broken connections."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DONE = "data: [DONE]\n\n"


class Served:
    """`answer(path, body)` gives a status with a JSON body, or an iterable of events.

    An event is a JSON value, raw text to send as it is, a number of seconds to wait, or None to break the connection.
    """

    def __init__(self, answer: Callable[[str, dict[str, Any]], Any]):
        self.answer = answer
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = self.most_in_flight = self.hung_up = 0
        self.lock = threading.Lock()
        served = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.reply({})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                self.reply(json.loads(body or b"{}"))

            def reply(self, body: dict[str, Any]) -> None:
                with served.lock:
                    served.bodies.append((self.path, body))
                    served.headers.append(dict(self.headers))
                    served.in_flight += 1
                    served.most_in_flight = max(served.most_in_flight, served.in_flight)
                try:
                    self.send(served.answer(self.path, body))
                except (BrokenPipeError, ConnectionResetError):
                    served.hung_up += 1
                finally:
                    with served.lock:
                        served.in_flight -= 1

            def send(self, answer: Any) -> None:
                if isinstance(answer, tuple):
                    status, value = answer
                    self.send_response(status)
                    self.end_headers()
                    self.wfile.write(json.dumps(value).encode())
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for event in answer:
                    if event is None:
                        return
                    if isinstance(event, (int, float)):
                        time.sleep(event)
                        continue
                    data = event if isinstance(event, str) else f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
                    self.wfile.write(data.encode())
                    self.wfile.flush()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def serving(answer: Callable[[str, dict[str, Any]], Any]) -> Iterator[Served]:
    served = Served(answer)
    thread = threading.Thread(target=served.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.server.shutdown()
        served.server.server_close()
