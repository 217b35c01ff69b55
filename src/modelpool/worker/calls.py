"""Calls that models of this worker make to others: out to the server, and their answers back to whichever thread waits."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import Future

from modelpool.errors import InstanceLost, ModelpoolError, from_code
from modelpool.protocol import messages
from modelpool.protocol.frames import CALL_PREFIX, JSON_BYTES, Kind
from modelpool.protocol.inference import EncodedBody
from modelpool.protocol.stream import FrameConnection
from modelpool.runtimes.calls import Reply


class OutgoingCalls:
    """Calls without an answer so far. `send` may be called from any thread, the rest is for the event loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._link: FrameConnection | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Reply]] = {}

    def send(self, parent: int, model: str, version: int, body: EncodedBody) -> Future[Reply]:
        """Call a model for the call `parent` that is being run here; a `runtimes.calls.Caller`."""
        future: Future[Reply] = Future()
        name = model.encode("utf-8", "replace")[:65535]
        payload = b"".join((CALL_PREFIX.pack(parent, body.json_bytes, version, len(name)), name, *body.parts))
        self._loop.call_soon_threadsafe(self._send, payload, future)
        return future

    def _send(self, payload: bytes, future: Future[Reply]) -> None:
        if self._link is None or not self._link.is_open:
            future.set_exception(InstanceLost("the server is gone; nothing takes calls to other models"))
            return
        number = next(self._numbers)
        self._waiting[number] = future
        self._link.send(Kind.CALL, 0, number, payload)

    def answered(self, number: int, payload: memoryview) -> None:
        """A CALLED came."""
        (json_bytes,) = JSON_BYTES.unpack_from(payload)
        future = self._waiting.pop(number, None)
        if future is not None:
            future.set_result(Reply(json_bytes, bytes(payload[JSON_BYTES.size :])))

    def failed(self, number: int, failure: messages.Failure) -> None:
        """A CALL_FAILED came."""
        self._fail(number, from_code(failure.code, failure.message, retry_after_s=failure.retry_after_s))

    def connect(self, link: FrameConnection | None) -> None:
        """Calls go by this connection from now on; those that wait for an answer of another one get none."""
        self._link = link
        for number in list(self._waiting):
            self._fail(number, InstanceLost("the server that a call to another model was sent to is gone"))

    def _fail(self, number: int, error: ModelpoolError) -> None:
        future = self._waiting.pop(number, None)
        if future is not None:
            future.set_exception(error)
