"""Frames cut out of a stream, and gathered into writes."""

from __future__ import annotations

import asyncio
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelpool.protocol.frames import HEADER, Kind, frame
from modelpool.protocol.stream import LARGE_BYTES, MAX_PAYLOAD_BYTES, FrameConnection


class Written(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closing
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: object) -> None:
        assert not self.closing
        self.writes.append(b"".join(list_of_data))  # type: ignore[arg-type]

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True


class Kept(FrameConnection):
    """Keeps what it receives; views are copied as their owner must."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.frames: list[tuple[int, int, int, bytes]] = []
        self.large: list[memoryview] = []
        self.ended = 0

    def frame_received(self, kind: int, copy: int, call: int, payload: memoryview) -> None:
        self.frames.append((kind, copy, call, bytes(payload)))
        if len(payload) > LARGE_BYTES:
            self.large.append(payload)

    def closed(self) -> None:
        self.ended += 1


def feed(connection: FrameConnection, data: bytes, sizes: list[int]) -> None:
    """Let data arrive in parts of these sizes (the last one over and over)."""
    at = turn = 0
    while at < len(data):
        buffer = connection.get_buffer(-1)
        size = min(sizes[min(turn, len(sizes) - 1)], len(buffer), len(data) - at)
        buffer[:size] = data[at : at + size]
        connection.buffer_updated(size)
        at += size
        turn += 1


SIZES = [LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 300_000]
PAYLOADS = st.lists(
    st.tuples(
        st.sampled_from(list(Kind)),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**64 - 1),
        st.one_of(st.binary(max_size=40), st.sampled_from(SIZES).map(lambda size: b"x" * size)),
    ),
    max_size=8,
)


@given(PAYLOADS, st.lists(st.integers(1, 200_000), min_size=1, max_size=6))
def test_frames_come_out_as_they_went_in_however_they_were_split(frames: list[tuple[int, int, int, bytes]], sizes: list[int]) -> None:
    connection = Kept(asyncio.AbstractEventLoop())
    feed(connection, b"".join(frame(*one) for one in frames), [*sizes, 50_000])
    assert connection.frames == frames


def test_bytes_one_by_one() -> None:
    connection = Kept(asyncio.AbstractEventLoop())
    frames = [(1, 2, 3, b"abc"), (4, 5, 6, b""), (7, 8, 9, b"z" * 100)]
    feed(connection, b"".join(frame(*one) for one in frames), [1])
    assert connection.frames == frames


def test_a_large_payload_has_memory_of_its_own() -> None:
    connection = Kept(asyncio.AbstractEventLoop())
    first, second = b"a" * (LARGE_BYTES + 1), b"b" * (LARGE_BYTES + 1)
    feed(connection, frame(1, 0, 0, first) + frame(1, 0, 0, second), [200_000])
    assert [bytes(view) for view in connection.large] == [first, second]


def test_a_length_that_cannot_be_ends_the_connection() -> None:
    connection = Kept(asyncio.AbstractEventLoop())
    transport = Written()
    connection.connection_made(transport)
    feed(connection, HEADER.pack(MAX_PAYLOAD_BYTES + 1, 1, 0, 0, 0, 0), [100])
    assert transport.closing
    assert not connection.is_open


async def test_what_is_queued_in_one_turn_leaves_in_one_write() -> None:
    connection = Kept(asyncio.get_running_loop())
    transport = Written()
    connection.connection_made(transport)
    connection.send(1, 2, 3, b"abc")
    connection.send(4, 5, 6)
    connection.write(frame(7, 8, 9, b"z"))
    assert transport.writes == []
    await asyncio.sleep(0)
    assert transport.writes == [frame(1, 2, 3, b"abc") + frame(4, 5, 6) + frame(7, 8, 9, b"z")]
    large = b"x" * (LARGE_BYTES + 1)
    connection.send(1, 2, 3, large)
    connection.send(1, 2, 4, b"after")
    await asyncio.sleep(0)
    assert transport.writes[1] == frame(1, 2, 3, large) + frame(1, 2, 4, b"after")


async def test_nothing_is_written_to_a_connection_that_is_closing() -> None:
    connection = Kept(asyncio.get_running_loop())
    connection.send(1, 0, 0)
    connection.flush()  # not connected yet
    transport = Written()
    connection.connection_made(transport)
    connection.send(2, 0, 0)
    connection.close()
    assert transport.writes == [frame(2, 0, 0)]
    connection.send(3, 0, 0)
    await asyncio.sleep(0)
    assert transport.writes == [frame(2, 0, 0)]
    connection.connection_lost(None)
    assert connection.ended == 1


def test_the_header_is_as_long_as_its_description_says() -> None:
    assert HEADER.size == 20
    assert frame(1, 2, 3, b"abc")[:4] == struct.pack("<I", 3)
    with pytest.raises(ValueError, match="300"):
        Kind(300)
