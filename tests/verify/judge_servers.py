"""OpenAI-compatible servers of each temper, on this machine."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, dict[str, str], bytes]


def completion(text: object) -> Reply:
    body = {"choices": [{"message": {"role": "assistant", "content": text}}]}
    return 200, {}, json.dumps(body).encode()


def verdict(correct: bool) -> Reply:
    return completion(
        json.dumps({"reason": "because", "verdict": "correct" if correct else "incorrect"})
    )


def records(body: dict[str, Any]) -> dict[str, str]:
    """The records of a request by name, cut as an honest judge cuts them: by the code."""
    user = body["messages"][1]["content"]
    code = re.search(r"\[CANDIDATE ([0-9a-f]+)\]\n", user)
    assert code is not None
    parts = re.split(rf"\[(PROBLEM|REFERENCE|CANDIDATE|END) {code[1]}\]", user)
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def honest(body: dict[str, Any]) -> Reply:
    """Accepts what is written like the reference."""
    found = records(body)
    return verdict(found["CANDIDATE"] == found["REFERENCE"])


class Fake:
    """A server that answers by ``act(body)`` and remembers what it was asked."""

    def __init__(self, act: Callable[[dict[str, Any]], Reply]) -> None:
        self.act = act
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers["Content-Length"])
        body = json.loads(handler.rfile.read(length))
        with self._lock:
            self.bodies.append(body)
            self.headers.append({"path": handler.path, **handler.headers})
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            status, headers, reply = self.act(body)
        finally:
            with self._lock:
                self._now -= 1
        with contextlib.suppress(OSError):
            handler.send_response(status)
            for name, value in {"Content-Length": str(len(reply)), **headers}.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(reply)

    def candidates(self) -> list[str]:
        return [records(body)["CANDIDATE"] for body in self.bodies]


@contextlib.contextmanager
def serving(act: Callable[[dict[str, Any]], Reply]) -> Iterator[Fake]:
    fake = Fake(act)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            fake.handle(self)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def slow(body: dict[str, Any]) -> Reply:
    time.sleep(0.5)
    return honest(body)
