"""One inference request of one connection, from its headers to its answer; it stands where uvicorn has its request cycle."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Protocol

from modelpool.errors import InvalidRequest, ModelpoolError
from modelpool.gateway.bodies import decode_body, too_large
from modelpool.gateway.dataplane import DataPlane
from modelpool.gateway.errors import as_modelpool_error, oip_body, retry_after, status_of
from modelpool.ports import Call

_JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
_JSON = _JSON_HEAD + b"%d\r\n"
_BINARY = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n"
_CLOSE = b"Connection: close\r\n"
_QUEUED = b"Modelpool-Queued: 1\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection(Protocol):
    """What an exchange needs of its connection."""

    controller: DataPlane
    body_limit_bytes: int
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    running: object

    def on_response_complete(self) -> None:
        """The answer of `running` was written."""


class _NobodyWaits:
    """Where uvicorn's cycle has the event that its application waits for."""

    def set(self) -> None:
        """Nothing to wake."""


class Exchange(Call):
    """A call whose client is an HTTP connection.

    `response_complete`, `more_body`, `disconnected`, `keep_alive` and `message_event` are what uvicorn's protocol looks at.
    problem: why it is refused; hang_up: without waiting for the rest of its body.
    """

    message_event = _NobodyWaits()
    keep_alive: bool = True
    encoding: bytes = b""
    expects_continue: bool = False
    problem: ModelpoolError | None = None
    hang_up: bool = False
    more_body: bool = True
    submitted: bool = False
    response_complete: bool = False
    disconnected: bool = False

    def __init__(
        self, connection: Connection, model: str = "", version: int = 0, body: bytes | bytearray = b"", json_bytes: int = -1
    ) -> None:
        self.connection = connection
        self.model = model
        self.version = version
        self.body = body
        self.json_bytes = json_bytes

    @property
    def waits(self) -> bool:
        """It was submitted and has no model to run on yet."""
        return self.submitted and self.lease is None and not self.response_complete

    # --- the request comes in ---------------------------------------------------------------------------------------------------
    def feed(self, data: bytes) -> None:
        """A piece of the body."""
        if not self.body:
            self.body = data  # the usual case: all of it in one piece
        elif self.problem is None:
            if isinstance(self.body, bytes):
                self.body = bytearray(self.body)
            self.body += data
        if len(self.body) > self.connection.body_limit_bytes:
            self.refuse(too_large(self.connection.body_limit_bytes), hang_up=True)

    def refuse(self, problem: ModelpoolError, *, hang_up: bool = False) -> None:
        """The request is wrong already: that is its answer when its turn comes.

        hang_up: at once, and the connection closes; else after the rest of the body, which is dropped.
        """
        if self.response_complete or self.hang_up:
            return
        self.problem = self.problem or problem
        if hang_up:
            self.hang_up = True
            self.keep_alive = False
            self.body = b""
        if self.connection.running is self:
            self.begin()

    def begin_whole(self) -> None:
        """All of it is there, its turn has come, and nothing is wrong with it so far."""
        self.more_body = False
        self.submitted = True
        try:
            self.connection.controller.submit(self)
        except Exception as error:
            self.fail(error)

    def complete(self) -> None:
        """The whole body is there."""
        self.more_body = False
        if self.connection.running is not self:
            return
        if self.problem is None and not self.encoding:
            self._submit()
        else:
            self.begin()

    def begin(self) -> None:
        """Go on as far as possible, now that its turn has come."""
        if self.response_complete or self.submitted:
            return
        if self.problem is not None:
            if self.hang_up or not self.more_body:
                self.fail(self.problem)
        elif self.more_body:
            if self.expects_continue:
                self.expects_continue = False
                self.connection.transport.write(_CONTINUE)
        elif self.encoding:
            self._decode()
        else:
            self._submit()

    def _decode(self) -> None:
        """In a thread: it may take long, and holds no lock while it does."""
        self.submitted = True
        limit_bytes = self.connection.body_limit_bytes
        decoding = self.connection.loop.run_in_executor(None, decode_body, self.body, self.encoding, limit_bytes)
        decoding.add_done_callback(self._decoded)

    def _decoded(self, decoding: asyncio.Future[bytes]) -> None:
        error = decoding.exception()
        if self.response_complete:
            return
        if isinstance(error, Exception):
            self.fail(error)
        else:
            self.encoding = b""
            self.body = decoding.result()
            self._submit()

    def _submit(self) -> None:
        self.submitted = True
        try:
            if self.json_bytes > len(self.body):
                raise InvalidRequest(
                    f"Inference-Header-Content-Length says {self.json_bytes} bytes of JSON, yet the body has {len(self.body)} bytes in all"
                )
            self.connection.controller.submit(self)
        except Exception as error:
            self.fail(error)

    def gone(self) -> None:
        """The connection is lost."""
        if self.response_complete:
            return
        self.response_complete = self.disconnected = True
        if self.submitted and not self.encoding:
            self.connection.controller.cancel(self)

    # --- the answer goes out ----------------------------------------------------------------------------------------------------
    def answer(self, json_bytes: int, body: bytes | bytearray | memoryview) -> None:
        """Write the answer, in one piece with its headers: the transport may keep it for longer than `body` is lent."""
        if json_bytes >= 0:
            self._write(_BINARY % (json_bytes, len(body)), body)
        elif self.queued or not self.keep_alive:
            self._write(_JSON % len(body), body)
        elif not self.response_complete:
            self.response_complete = True
            connection = self.connection
            transport = connection.transport
            if not transport.is_closing():
                transport.write(b"".join((_JSON_HEAD, b"%d\r\n\r\n" % len(body), body)))
                connection.on_response_complete()

    def fail(self, error: Exception) -> None:
        """Write the error; the body may be large, and the connection keeps this exchange until its next request."""
        self.body = b""
        known = as_modelpool_error(error)
        body = oip_body(known)
        status = HTTPStatus(status_of(known, serving=True))
        head = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % (status, status.phrase.encode(), len(body))
        seconds = retry_after(known)
        self._write(head if seconds is None else head + b"Retry-After: %d\r\n" % seconds, body)

    def _write(self, head: bytes, body: bytes | bytearray | memoryview) -> None:
        if self.response_complete:
            return
        self.response_complete = True
        transport = self.connection.transport
        if transport.is_closing():
            return
        if self.queued:
            head += _QUEUED
        if not self.keep_alive:
            head += _CLOSE
        transport.write(b"".join((head, b"\r\n", body)))
        self.connection.on_response_complete()
