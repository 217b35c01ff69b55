"""A connection that carries frames: the same for the server's end and the worker's.

Reading: one buffer for small frames, which are handed on as views of it; a large frame is received straight into memory of its own.
Writing: frames queue up and leave in one write per turn of the event loop.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from modelpool.protocol.frames import HEADER, HEADER_BYTES

Bytes: TypeAlias = bytes | bytearray | memoryview

READ_BYTES = 256 * 1024
LARGE_BYTES = 64 * 1024
"""Payloads above this come in memory of their own, which the receiver may keep."""
MAX_PAYLOAD_BYTES = 1 << 30
"""A longer frame means that the two sides are out of step."""


class FrameConnection(asyncio.BufferedProtocol):
    """Cuts what arrives into frames and gathers what leaves. Subclasses define `frame_received` and `closed`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._large: memoryview | None = None
        self._large_filled = 0
        self._large_head = (0, 0, 0)
        self._out: list[Bytes] = []
        self._large_out = False
        self._flush_due = False
        self.is_open = False

    def frame_received(self, kind: int, copy: int, call: int, payload: memoryview) -> None:
        """One frame. `payload` is only valid during the call, unless it is longer than LARGE_BYTES."""
        raise NotImplementedError

    def closed(self) -> None:
        """The connection ended; called once."""

    # --- writing -----------------------------------------------------------------------------------------------------------------
    def send(self, kind: int, copy: int, call: int, payload: Bytes = b"") -> None:
        """Queue a frame; dropped where the connection is closed."""
        head = HEADER.pack(len(payload), kind, 0, 0, copy, call)
        if payload:
            self.write(head, payload)
        else:
            self.write(head)

    def write(self, *parts: Bytes) -> None:
        """Queue parts that together are whole frames; they must not change before they have left."""
        self._out += parts
        if len(parts) > 1 and max(map(len, parts)) > LARGE_BYTES:
            self._large_out = True
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what is queued."""
        self._flush_due = False
        out = self._out
        if not out:
            return
        self._out = []
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if len(out) < 2 or self._large_out:
            self._large_out = False
            transport.writelines(out)
        else:
            transport.write(b"".join(out))

    def close(self) -> None:
        """Write what is queued, then end the connection."""
        self.flush()
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    # --- what the event loop calls ------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._out = []
        self.closed()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._large is not None:
            self._large_filled += nbytes
            if self._large_filled == len(self._large):
                payload, self._large = self._large, None
                self.frame_received(*self._large_head, payload)
            return
        view, buffer, received = self._view, self._buffer, self.frame_received
        end = self._filled + nbytes
        at = 0
        unpack = HEADER.unpack_from
        while end - at >= HEADER_BYTES:
            size, kind, _, _, copy, call = unpack(buffer, at)
            start = at + HEADER_BYTES
            if size > LARGE_BYTES:
                if size > MAX_PAYLOAD_BYTES:
                    self.close()
                    return
                here = min(size, end - start)
                large = memoryview(bytearray(size))
                large[:here] = view[start : start + here]
                at = start + here
                if here < size:
                    self._large, self._large_filled, self._large_head = large, here, (kind, copy, call)
                    break
                received(kind, copy, call, large)
                continue
            stop = start + size
            if stop > end:
                break
            received(kind, copy, call, view[start:stop])
            at = stop
        rest = end - at
        if rest and at:
            # Through bytes: the two ranges may overlap. It is less than one small frame.
            view[:rest] = bytes(view[at:end])
        self._filled = rest
