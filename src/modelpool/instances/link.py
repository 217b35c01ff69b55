"""The server's end of a connection to a worker: requests out, answers in, no task and no future for any of them."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Callable
from functools import partial

from modelpool.errors import ModelpoolError, from_code, text_of
from modelpool.ports import Call, CallSink
from modelpool.protocol import messages
from modelpool.protocol.frames import CALL_PREFIX, INFER_PREFIX, JSON_BYTES, Kind
from modelpool.protocol.stream import LARGE_BYTES, FrameConnection

_INFER_HEAD = struct.Struct("<IBBHIQiI")
"""HEADER and INFER_PREFIX in one."""
_pack_infer = _INFER_HEAD.pack
_INFER_PREFIX_BYTES = INFER_PREFIX.size
_FLUSH_PARTS = 32
_ANSWER, _INFER, _INFER_ALONE = int(Kind.ANSWER), int(Kind.INFER), int(Kind.INFER_ALONE)


class LinkLost(Exception):
    """The connection ended before the worker answered. call: the number of what it was asked (0: that was never sent)."""

    def __init__(self, call: int = 0) -> None:
        super().__init__(call)
        self.call = call


class Link(FrameConnection):
    """One connection to one worker.

    pending: requests without an answer, by call id. on_closed: the connection ended. on_observed: an OBSERVED came.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        calls: CallSink,
        on_closed: Callable[[], None],
        on_observed: Callable[[messages.Observed], None],
    ) -> None:
        super().__init__(loop)
        self.pending: dict[int, Call] = {}
        self.ended = False
        self._calls = calls
        self._on_closed = on_closed
        self._on_observed = on_observed
        # The worker may still be running calls of an earlier server: ids must not meet.
        self._serial = secrets.randbits(31) << 32
        self._asked: dict[int, asyncio.Future[bytes]] = {}

    # --- requests ----------------------------------------------------------------------------------------------------------------
    def infer(self, copy: int, call: Call) -> None:
        """Send a request; it leaves with all others of this turn of the event loop."""
        self._serial = callid = self._serial + 1
        call.callid = callid
        if self.ended:
            # Not from within: who sends a request does not expect to lose it at once.
            self._loop.call_soon(self._calls.lost, call, False)
            return
        self.pending[callid] = call
        if not self.is_open:
            return  # its process is dying: the call is reported with all others
        body = call.body
        size = len(body)
        kind = _INFER_ALONE if call.alone else _INFER
        out = self._out
        out += (_pack_infer(_INFER_PREFIX_BYTES + size, kind, 0, 0, copy, callid, call.json_bytes, call.version), body)
        call.begun = True
        if size > LARGE_BYTES:
            self._large_out = True
        if len(out) >= _FLUSH_PARTS:
            self.flush()  # so that the worker begins while we still read
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def cancel(self, copy: int, call: Call) -> None:
        """Ask the worker to drop a request that it has not started; either way the call still ends by an answer or an error."""
        if call.callid in self.pending:
            self.send(Kind.CANCEL, copy, call.callid)

    def take_pending(self) -> list[Call]:
        """Give up: all requests without an answer. Later ones are lost at once."""
        self.ended = True
        calls = list(self.pending.values())
        self.pending.clear()
        return calls

    # --- control -----------------------------------------------------------------------------------------------------------------
    def ask(self, kind: Kind, copy: int, payload: bytes = b"") -> asyncio.Future[bytes]:
        """Send a control frame; the future gets the answer's payload, a ModelpoolError or LinkLost."""
        future: asyncio.Future[bytes] = self._loop.create_future()
        if not self.is_open:
            future.set_exception(LinkLost())
            return future
        self._serial += 1
        self._asked[self._serial] = future
        self.send(kind, copy, self._serial, payload)
        return future

    def probe(self) -> None:
        """Ask for an OBSERVED."""
        self._serial += 1
        self.send(Kind.PROBE, 0, self._serial)

    @property
    def is_busy(self) -> bool:
        """Whether the worker owes an answer."""
        return bool(self.pending or self._asked)

    # --- frames ------------------------------------------------------------------------------------------------------------------
    def frame_received(self, kind: int, copy: int, call: int, payload: memoryview) -> None:
        if kind == _ANSWER:
            answered = self.pending.pop(call, None)
            if answered is not None:
                self._calls.answered(answered, payload)
        elif kind == Kind.ERROR:
            self._failed(call, messages.decode(payload, messages.Failure))
        elif kind == Kind.OBSERVED:
            self._on_observed(messages.decode(payload, messages.Observed))
        elif kind == Kind.CALL:
            self._nested(call, payload)
        else:
            self._resolve(call, payload)

    def _failed(self, call: int, failure: messages.Failure) -> None:
        failed = self.pending.pop(call, None)
        if failed is not None:
            self._calls.failed(failed, failure.code, failure.message, failure.retry_after_s)
            return
        future = self._asked.pop(call, None)
        if future is not None and not future.done():
            error: ModelpoolError = from_code(failure.code, failure.message, retry_after_s=failure.retry_after_s)
            future.set_exception(error)

    def _resolve(self, call: int, payload: memoryview) -> None:
        future = self._asked.pop(call, None)
        if future is not None and not future.done():
            future.set_result(bytes(payload))

    def _nested(self, number: int, payload: memoryview) -> None:
        """A model that runs calls another."""
        parent, json_bytes, version, name_bytes = CALL_PREFIX.unpack_from(payload)
        start = CALL_PREFIX.size + name_bytes
        name = bytes(payload[CALL_PREFIX.size : start]).decode("utf-8", "replace")
        self._calls.nested(NestedCall(self, number, name, version, bytes(payload[start:]), json_bytes), self.pending.get(parent))

    def closed(self) -> None:
        asked, self._asked = self._asked, {}
        for call, future in asked.items():
            if not future.done():
                future.set_exception(LinkLost(call))
        self._on_closed()


class NestedCall(Call):
    """A call that a model made while it ran: the worker that runs it gets the answer."""

    def __init__(self, link: Link, number: int, model: str, version: int, body: bytes, json_bytes: int) -> None:
        super().__init__(model, version, body, json_bytes)
        self._link = link
        self._number = number

    def answer(self, json_bytes: int, body: bytes | bytearray | memoryview) -> None:
        self._link.send(Kind.CALLED, 0, self._number, b"".join((JSON_BYTES.pack(json_bytes), body)))

    def fail(self, error: Exception) -> None:
        known = error if isinstance(error, ModelpoolError) else ModelpoolError(f"internal error: {type(error).__name__}: {text_of(error)}")
        failure = messages.Failure(code=known.code, message=known.message, retry_after_s=known.retry_after_s)
        self._link.send(Kind.CALL_FAILED, 0, self._number, messages.encode(failure))


class Route:
    """How requests reach a copy in one process; what `Copy.route` holds. infer: sends a request; cancel: drops it if it has not started."""

    __slots__ = ("cancel", "infer")

    def __init__(self, link: Link, copy: int) -> None:
        self.infer: Callable[[Call], None] = partial(link.infer, copy)
        self.cancel: Callable[[Call], None] = partial(link.cancel, copy)


class SpreadRoute:
    """How requests reach a copy that several processes run: to the one with the fewest in flight."""

    __slots__ = ("_copy", "_links")

    def __init__(self, links: list[Link], copy: int) -> None:
        self._links = links
        self._copy = copy

    def infer(self, call: Call) -> None:
        """Send a request to the copy."""
        min(self._links, key=_in_flight).infer(self._copy, call)

    def cancel(self, call: Call) -> None:
        """Drop a request if it has not started."""
        for link in self._links:
            link.cancel(self._copy, call)


def _in_flight(link: Link) -> int:
    return len(link.pending)
