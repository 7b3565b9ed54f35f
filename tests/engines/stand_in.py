"""What `engine.python` names in tests of the client: runs as an interpreter would, and serves like SGLang's HTTP server.

    stand_in.py -c CODE PACKAGES...                    the versions of a made-up environment
    stand_in.py -m sglang.launch_server OPTIONS...     /health, /flush_cache and /generate

Environment: STAND_IN_DIES=N ends the process in the middle of the N-th answer; STAND_IN_HANGS=N is silent in it;
STAND_IN_FAILS=TEXT fails at the start; STAND_IN_NO_PLUGIN=1 has no plugin; STAND_IN_LOG=FILE gets a line a request.
"""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COUNT = [0]
LOCK = threading.Lock()


def versions() -> None:
    plugin = None if os.environ.get("STAND_IN_NO_PLUGIN") else str(ROOT / "harness")
    print(json.dumps([{"python": "3.11", "sglang": "0.5.17", "torch": "2.11.0"}, plugin]))


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")
        with LOCK:
            with open(os.environ["STAND_IN_LOG"], "a") as log:
                log.write(json.dumps([self.path, body]) + "\n")
            if self.path == "/generate":
                COUNT[0] += 1
            number = COUNT[0]
        self.send_response(200)
        self.end_headers()
        if self.path == "/generate":
            self.generate(body["input_ids"], body["sampling_params"]["max_new_tokens"], number)

    def generate(self, prompt: list[int], cap: int, number: int) -> None:
        """Rounds of three tokens: two accepted drafts of six and the bonus token."""
        sent = 0
        while sent < cap:
            count = 1 if sent == 0 else min(3, cap - sent)
            ids = [30 + (sum(prompt) + sent + i) % 200 for i in range(count)]
            sent += count
            meta = {"completion_tokens": sent, "cached_tokens": 0, "finish_reason": None}
            if sent == cap:
                rounds = -(-(cap - 1) // 3)
                meta |= {"finish_reason": {"type": "length"}, "spec_verify_ct": rounds}
                meta |= {"spec_num_correct_drafts": 2 * rounds, "spec_num_proposed_drafts": 6 * rounds}
                meta |= {"spec_correct_drafts_histogram": [0, 0, rounds]}
            self.wfile.write(f"data: {json.dumps({'output_ids': ids, 'meta_info': meta})}\n\n".encode())
            self.wfile.flush()
            if sent > 4 and number == int(os.environ.get("STAND_IN_DIES", "0")):
                print("CUDA error: an illegal memory access was encountered", flush=True)
                os._exit(1)
            if sent > 4 and number == int(os.environ.get("STAND_IN_HANGS", "0")):
                time.sleep(30)
            time.sleep(0.01)
        self.wfile.write(b"data: [DONE]\n\n")


if __name__ == "__main__":
    if sys.argv[1] == "-c":
        versions()
        sys.exit()
    assert sys.argv[1:3] == ["-m", "sglang.launch_server"], sys.argv
    if why := os.environ.get("STAND_IN_FAILS"):
        sys.exit(why)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
