"""uvicorn's HTTP protocol, with inference requests taken out before any ASGI cycle: no task, no future, no scope for them.

Order on a connection is uvicorn's own: an exchange stands where it has a request cycle, so pipelined requests of both kinds are answered one
by one, in the order they came.
"""

from __future__ import annotations

import re
import urllib.parse
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from modelpool.errors import BodyTooLarge, InvalidRequest
from modelpool.gateway.exchange import Exchange

_INFER = re.compile(rb"/+v2/models/(.+?)(?:/versions/([^/]+))?/infer(?:\?.*)?")
_PLAIN = re.compile(rb"[A-Za-z0-9_.~+/-]+")


class InferenceProtocol(HttpToolsProtocol):
    """One connection. `controller` is set on the subclass that `bind` makes."""

    controller: Any = None
    body_limit_bytes: int = 0
    running: Exchange | None = None

    def on_message_begin(self) -> None:
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def _make_scope(self) -> None:
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,  # type: ignore[typeddict-item]
            "root_path": self.root_path,
            "headers": self.headers,
            "state": self.app_state.copy(),
        }  # type: ignore[typeddict-item]

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"POST" and (match := _INFER.fullmatch(self.url)) is not None:
            self._take(match)
            return
        self._make_scope()
        super().on_headers_complete()

    def _take(self, match: re.Match[bytes]) -> None:
        exchange = self._exchange(match)
        earlier = self.cycle
        self.cycle = exchange  # type: ignore[assignment]
        if earlier is None or earlier.response_complete:
            self._start_exchange(exchange)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, None))  # type: ignore[arg-type]

    def _exchange(self, match: re.Match[bytes]) -> Exchange:
        json_bytes, length, encoding = -1, 0, b""
        problem: InvalidRequest | None = None
        for name, value in self.headers:
            if name == b"inference-header-content-length":
                if value.isdigit() and len(value) < 16:
                    json_bytes = int(value)
                else:
                    problem = InvalidRequest("Inference-Header-Content-Length must be the number of bytes of the JSON part")
            elif name == b"content-length" and value.isdigit():
                length = int(value)
            elif name == b"content-encoding" and value.lower() != b"identity":
                encoding = value.lower()
        name, version = match[1], 0
        model = name.decode() if _PLAIN.fullmatch(name) else urllib.parse.unquote(name.decode("latin-1"), errors="replace")
        if match[2] is not None:
            if match[2].isdigit() and len(match[2]) < 10:
                version = int(match[2])
            else:
                problem = InvalidRequest(f"version '{match[2].decode('latin-1')}' is not a number")
        exchange = Exchange(
            self.controller,
            model,
            version,
            json_bytes,
            self.transport,
            self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive(),
            self.on_response_complete,
            self.body_limit_bytes,
            encoding,
        )
        if length > self.body_limit_bytes:
            problem = BodyTooLarge(f"the body of {length} bytes exceeds the limit of {self.body_limit_bytes} bytes (setting body_limit)")
        if problem is not None:
            exchange.refuse(problem)
        elif self.expect_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return exchange

    def on_body(self, body: bytes) -> None:
        if isinstance(self.cycle, Exchange):
            self.cycle.feed(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        cycle = self.cycle
        if isinstance(cycle, Exchange):
            cycle.complete()
            if cycle.response_complete and not cycle.keep_alive and not self.transport.is_closing():
                self.transport.close()
        else:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if isinstance(cycle, Exchange):
            self._start_exchange(cycle)
        else:
            super()._start_asgi_task(cycle, app)

    def _start_exchange(self, exchange: Exchange) -> None:
        self.running = exchange
        exchange.start()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pipeline.clear()
        if self.running is not None:
            self.running.gone()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Bytes that are not HTTP."""
        body = b'{"error":"the request is not valid HTTP","code":"bad_request"}'
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        self.transport.close()


def bind(controller: Any, body_limit_bytes: int) -> type[InferenceProtocol]:
    """The protocol class for one controller."""
    return type("BoundInferenceProtocol", (InferenceProtocol,), {"controller": controller, "body_limit_bytes": body_limit_bytes})
