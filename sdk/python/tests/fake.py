"""A service for the tests: it answers what a test tells it to, and keeps what it was sent."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

Reply = tuple[int, dict[str, str], bytes]
JSON = {"Content-Type": "application/json"}
PROBLEM = {"Content-Type": "application/problem+json"}


class Request:
    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.method, self.path, self.headers = method, path, headers
        self.body = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        self.sent = body

    def events(self) -> list[dict[str, Any]]:
        return json.loads(self.body)["events"]

    def ids(self) -> list[str]:
        return [e["eventId"] for e in self.events()]


def answer(value: Any, status: int = 200) -> Reply:
    return status, JSON, json.dumps(value).encode()


def problem(status: int, code: str, **members: Any) -> Reply:
    return status, PROBLEM, json.dumps({"code": code, "status": status, "detail": "detail of " + code, "traceId": "t1", **members}).encode()


def about(request: Request, value: dict[str, Any], status: int = 200) -> Reply:
    """Answer with the ids of the request, as the service does."""
    parts = request.path.partition("?")[0].split("/")
    named = {"reservations": "reservationId", "events": "eventId"}
    ids = {named[a]: unquote(b) for a, b in zip(parts, parts[1:]) if a in named}
    sent = json.loads(request.body) if request.body else {}
    return answer({**value, **{k: v for k, v in sent.items() if k in ("eventId", "reservationId")}, **ids}, status)


def verdicts(request: Request, **other: dict[str, Any]) -> Reply:
    """Accept all events, but those of other (by eventId)."""
    return answer({"events": [{"index": i, "eventId": id, "status": "accepted", "position": f"1-{i}", **other.get(id, {})} for i, id in enumerate(request.ids())]}, 202)


class Fake:
    """replies are taken in order; after them `then` answers. None: the connection is closed without an answer."""

    def __init__(self) -> None:
        self.replies: list[Reply | Callable[[Request], Reply | None] | None] = []
        self.then: Callable[[Request], Reply | None] = verdicts
        self.requests: list[Request] = []
        self.changed = threading.Condition()
        self.connections = 0
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def setup(self) -> None:
                super().setup()
                fake.connections += 1

            def serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                request = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                with fake.changed:
                    fake.requests.append(request)
                    reply: Any = fake.replies.pop(0) if fake.replies else fake.then
                    fake.changed.notify_all()
                if callable(reply):
                    reply = reply(request)
                if reply is None:
                    self.close_connection = True
                    return
                status, headers, content = reply
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = serve

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def wait(self, n: int, seconds: float = 20) -> list[Request]:
        """Wait for n requests."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.requests) >= n, seconds), f"{len(self.requests)} of {n} requests"
            return list(self.requests)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
