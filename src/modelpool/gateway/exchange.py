"""One inference request of one connection, from its headers to its answer; it stands where uvicorn has its request cycle."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

from modelpool.errors import BodyTooLarge, InvalidRequest, ModelpoolError
from modelpool.gateway.errors import as_modelpool_error, oip_body, retry_after, status_of
from modelpool.ports import Call

_OK_JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_OK_BINARY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
)
_SMALL = 65536
"""Answers up to this size go out in one piece with their headers; larger ones are not copied."""
_DRAIN_LIMIT = 1 << 20
"""A refused body is read and dropped up to this size, so that the client sees the answer; beyond it the connection is closed."""

_REASONS = {400: b"Bad Request", 403: b"Forbidden", 404: b"Not Found", 409: b"Conflict", 413: b"Content Too Large"}
_REASONS |= {415: b"Unsupported Media Type", 500: b"Internal Server Error", 501: b"Not Implemented", 503: b"Service Unavailable"}
_REASONS |= {504: b"Gateway Timeout", 507: b"Insufficient Storage"}


class _Event:
    """Stands for the asyncio.Event that uvicorn sets on a cycle; nobody waits for this one."""

    def set(self) -> None:
        pass


_EVENT = _Event()


class Exchange(Call):
    """A call whose client is an HTTP connection.

    `response_complete`, `body`, `more_body`, `message_event`, `disconnected` and `keep_alive` are what uvicorn's protocol looks at.
    """

    __slots__ = (
        "controller",
        "disconnected",
        "encoding",
        "error",
        "keep_alive",
        "limit",
        "message_event",
        "more_body",
        "on_response",
        "response_complete",
        "started",
        "submitted",
        "transport",
    )

    def __init__(
        self,
        controller: Any,
        model: str,
        version: int,
        json_bytes: int,
        transport: asyncio.Transport,
        keep_alive: bool,
        on_response: Callable[[], None],
        limit: int,
        encoding: bytes,
    ) -> None:
        super().__init__(model, version, b"", json_bytes)
        self.controller = controller
        self.transport = transport
        self.keep_alive = keep_alive
        self.on_response = on_response
        self.limit = limit
        self.encoding = encoding
        self.error: ModelpoolError | None = None
        self.response_complete = False
        self.disconnected = False
        self.more_body = True
        self.message_event = _EVENT
        self.started = False
        self.submitted = False

    # --- the body comes in ------------------------------------------------------------------------------------------------------
    def feed(self, data: bytes) -> None:
        """A piece of the body."""
        if self.error is not None:
            self.limit -= len(data)
            if self.limit < 0 and not self.transport.is_closing():
                self.transport.close()
            return
        if not self.body:
            self.body = data  # the usual case: all of it in one piece
        else:
            if isinstance(self.body, bytes):
                self.body = bytearray(self.body)
            self.body += data
        if len(self.body) > self.limit:
            self.refuse(BodyTooLarge(f"the body exceeds the limit of {self.limit} bytes (setting body_limit)"))

    def refuse(self, error: ModelpoolError) -> None:
        """The request is wrong already; the answer goes out when its turn comes, what is left of the body is dropped."""
        if self.error is None:
            self.error = error
            self.body = b""
            self.limit = _DRAIN_LIMIT
            self.keep_alive = self.keep_alive and not isinstance(error, BodyTooLarge)

    def complete(self) -> None:
        """The whole body is there."""
        self.more_body = False
        if self.started:
            self._submit()

    def start(self) -> None:
        """Its turn on this connection has come."""
        self.started = True
        if not self.more_body:
            self._submit()
        elif self.error is not None:
            self.fail(self.error)  # the client may wait for an answer before it sends the body

    def _submit(self) -> None:
        if self.submitted or self.response_complete:
            return
        self.submitted = True
        try:
            if self.error is not None:
                raise self.error
            if self.encoding:
                self.body = decompress(bytes(self.body), self.encoding, self.limit)
            self.controller.submit(self)
        except Exception as error:
            if not self.response_complete:
                self.fail(error)

    def gone(self) -> None:
        """The connection is lost."""
        self.disconnected = True
        if self.submitted and not self.response_complete:
            self.response_complete = True
            self.controller.cancel(self)

    # --- the answer goes out ----------------------------------------------------------------------------------------------------
    def answer(self, json_bytes: int, body: bytes | bytearray | memoryview) -> None:
        """Write the answer; its memory is only lent for this call, and the transport copies what it cannot send at once."""
        size = len(body)
        head = _OK_JSON % size if json_bytes < 0 else _OK_BINARY % (json_bytes, size)
        if not self.keep_alive or self.queued:
            head = self._more_headers(head)
        self._write(head, body)

    def _more_headers(self, head: bytes) -> bytes:
        extra = b"" if self.keep_alive else b"Connection: close\r\n"
        if self.queued:
            extra += b"Modelpool-Queued: 1\r\n"
        return head[:-2] + extra + b"\r\n"

    def fail(self, error: Exception) -> None:
        """Write the error."""
        known = as_modelpool_error(error)
        body = oip_body(known)
        status = status_of(known)
        if isinstance(known, InvalidRequest) and self.encoding and known.message.startswith("Content-Encoding"):
            status = 415
        head = b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % (status, _REASONS.get(status, b"Error"), len(body))
        if (seconds := retry_after(known)) is not None:
            head += b"Retry-After: %d\r\n" % seconds
        if not self.keep_alive:
            head += b"Connection: close\r\n"
        self._write(head + b"\r\n", body)

    def _write(self, head: bytes, body: bytes | bytearray | memoryview) -> None:
        if self.response_complete:
            return
        self.response_complete = True
        transport = self.transport
        if transport.is_closing():
            return
        if len(body) <= _SMALL:
            transport.write(b"".join((head, body)))
        else:
            transport.write(head)
            transport.write(bytes(body))  # the transport may keep it beyond this call
        if not self.keep_alive and not self.more_body:
            transport.close()
        self.on_response()


def decompress(body: bytes, encoding: bytes, limit: int) -> bytes:
    """A gzip or deflate body, bounded; raises BodyTooLarge or InvalidRequest."""
    windows = {b"gzip": (31,), b"x-gzip": (31,), b"deflate": (15, -15)}.get(encoding)
    if windows is None:
        name = encoding.decode("latin-1")
        raise InvalidRequest(f"Content-Encoding '{name}' is not known; send gzip, deflate or none")
    for window in windows:
        try:
            decoder = zlib.decompressobj(window)
            data = decoder.decompress(body, limit + 1)
        except zlib.error:
            continue
        if len(data) > limit:
            raise BodyTooLarge(f"the decompressed body exceeds the limit of {limit} bytes (setting body_limit)")
        if not decoder.eof:
            raise InvalidRequest(f"the {encoding.decode()} body is cut short")
        return data
    raise InvalidRequest(f"the body is not what its header Content-Encoding says ({encoding.decode()})")
