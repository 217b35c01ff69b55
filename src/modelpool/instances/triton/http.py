"""Requests to a Triton server's HTTP port: a pool of connections that stay open, no task and no future for any request.

Bodies go on as they came, and answers come back as they are; each connection has one request at a time, as the server asks for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol

import httptools

from modelpool.ports import Call, Clock
from modelpool.protocol.frames import ANSWER_PREFIX

MOST_CONNECTIONS = 256
_JOINED_BYTES = 64 * 1024
"""Bodies up to this size are sent in one piece with their head."""
_CONNECT_S = 5.0
_HEAD_LENGTH = b"inference-header-content-length"
_MOST_US = (1 << 32) - 1


class Owner(Protocol):
    """What a pool tells."""

    def answered(self, copy: int, call: Call, status: int, payload: bytes | bytearray) -> None:
        """An answer of any status; payload: ANSWER_PREFIX and the body."""

    def broken(self, copy: int, call: Call) -> None:
        """The connection ended before the answer: the request may have run."""

    def unreachable(self, reason: str) -> None:
        """Nobody listens there (any more); told before `unsent`."""

    def unsent(self, call: Call) -> None:
        """The request was not sent."""


class Pool:
    """Connections to one server, made as they are needed."""

    def __init__(self, host: str, port: int, owner: Owner, clock: Clock) -> None:
        self.host = host
        self.port = port
        self.owner = owner
        self.clock = clock
        self.idle: list[Connection] = []
        self.connections: set[Connection] = set()
        self._waiting: deque[tuple[int, bytes, Call]] = deque()
        self._connecting = 0
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return len(self.connections) - len(self.idle) + len(self._waiting)

    def send(self, copy: int, head: bytes, call: Call) -> None:
        """Send a request; head: its first lines up to the value of Content-Length."""
        if self._closed:
            asyncio.get_running_loop().call_soon(self.owner.unsent, call)
        elif self.idle:
            self.idle.pop().send(copy, head, call)
        else:
            self._waiting.append((copy, head, call))
            self._connect()

    def _connect(self) -> None:
        if len(self.connections) + self._connecting < MOST_CONNECTIONS and self._connecting < len(self._waiting):
            self._connecting += 1
            task = asyncio.get_running_loop().create_task(self._connected())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connected(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                host = self.host.strip("[]")
                _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(self), host, self.port)
        except (OSError, TimeoutError) as error:
            self._connecting -= 1
            if not self._closed:
                self.owner.unreachable(f"{self.host}:{self.port} takes no connections ({error or 'no answer'})")
                self._give_up_waiting()
            return
        self._connecting -= 1
        self.free(connection)

    def free(self, connection: Connection) -> None:
        """A connection can take the next request."""
        while self._waiting:
            copy, head, call = self._waiting.popleft()
            if call.cancelled:
                self.owner.unsent(call)
                continue
            connection.send(copy, head, call)
            return
        self.idle.append(connection)

    def gone(self, connection: Connection) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        if self._waiting and not self._closed:
            self._connect()

    def _give_up_waiting(self) -> None:
        while self._waiting:
            self.owner.unsent(self._waiting.popleft()[2])

    def close(self) -> None:
        """End all connections; what was sent is `broken`, what was not is `unsent`."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self.connections):
            connection.end()
        self._give_up_waiting()


class Connection(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._transport: Any = None
        self._parser: Any = None
        self._call: Call | None = None
        self._copy = 0
        self._sent_at = 0.0
        self._parts: list[bytes] = []
        self._json_bytes = -1

    def send(self, copy: int, head: bytes, call: Call) -> None:
        """Send a request; only while there is none."""
        if self._transport is None or self._transport.is_closing():
            # Found dead before a byte was written.
            asyncio.get_running_loop().call_soon(self._pool.owner.unsent, call)
            return
        self._call, self._copy = call, copy
        call.begun = True
        self._sent_at = self._pool.clock()
        body = call.body
        if call.json_bytes >= 0:
            head = b"%b%d\r\nInference-Header-Content-Length: %d\r\n\r\n" % (head, len(body), call.json_bytes)
        else:
            head = b"%b%d\r\n\r\n" % (head, len(body))
        if len(body) <= _JOINED_BYTES:
            self._transport.write(b"".join((head, body)))
        else:
            self._transport.writelines((head, body))

    def end(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
        self._lost()

    # --- what the event loop calls ---------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)
        self._pool.connections.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()

    def _lost(self) -> None:
        if self._transport is None:
            return
        self._transport = None
        call, self._call = self._call, None
        self._pool.gone(self)
        if call is not None:
            self._pool.owner.broken(self._copy, call)

    # --- what the parser calls -------------------------------------------------------------------------------------------------------
    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == _HEAD_LENGTH and value.isdigit():
            self._json_bytes = int(value)

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        call, copy, parts, json_bytes = self._call, self._copy, self._parts, self._json_bytes
        self._call, self._parts, self._json_bytes = None, [], -1
        status = self._parser.get_status_code()
        took_us = min(_MOST_US, int((self._pool.clock() - self._sent_at) * 1e6))
        if not self._parser.should_keep_alive():
            self._transport.close()
        elif self._transport is not None:
            self._pool.free(self)
        if call is not None:
            payload = b"".join((ANSWER_PREFIX.pack(json_bytes, 0, took_us, 1, 1), *parts))
            self._pool.owner.answered(copy, call, status, payload)


class Route:
    """How requests reach a copy; what `Copy.route` holds. path: the model's, as it stands in a URL."""

    __slots__ = ("_copy", "_host", "_path", "_plain", "_pool")

    def __init__(self, pool: Pool, copy: int, path: str) -> None:
        self._pool = pool
        self._copy = copy
        self._path = path
        self._host = f"{self._pool.host}:{self._pool.port}"
        self._plain = self._head("")

    def _head(self, version: str) -> bytes:
        return f"POST /v2/models/{self._path}{version}/infer HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: ".encode()

    def infer(self, call: Call) -> None:
        """Send a request."""
        self._pool.send(self._copy, self._plain if not call.version else self._head(f"/versions/{call.version}"), call)

    def cancel(self, call: Call) -> None:
        """One that is not sent is dropped when its turn comes; one that is runs on, as the server knows no cancelling over HTTP."""
