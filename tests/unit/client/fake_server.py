"""A scripted HTTP server on a free port, for what a real one does only rarely."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """What to answer; `close`: nothing at all."""

    content: Any = field(default_factory=dict)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    close: bool = False


Respond = Callable[[Asked], Answer]


@dataclass
class FakeServer:
    """Answers by `respond`, or by the answers in `script` first; `asked` is what came."""

    url: str
    respond: Respond
    script: list[Answer] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    def answer(self, asked: Asked) -> Answer:
        """The answer to one request."""
        self.asked.append(asked)
        return self.script.pop(0) if self.script else self.respond(asked)


@contextmanager
def running(respond: Respond = lambda asked: Answer()) -> Iterator[FakeServer]:
    """A server that runs while the block does."""
    server = FakeServer("", respond)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = server.answer(Asked(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body))
            if answer.close:
                self.close_connection = True
                return
            content = answer.content if isinstance(answer.content, bytes) else json.dumps(answer.content).encode()
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(content)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = handle_any

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        server.url = f"http://127.0.0.1:{http.server_address[1]}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
