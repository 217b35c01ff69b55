"""A load generator for benchmarks: connections that ask one question after another, and check every answer to the byte."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Question:
    """A request as it goes over the wire, and the body that a right answer has."""

    wire: bytes
    answer: bytes


def post(path: str, body: bytes) -> bytes:
    """A request as it goes over the wire."""
    head = f"POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@dataclass(slots=True)
class Tally:
    """What all connections have done so far. latencies_s: of each answer, where they are wanted."""

    answered: int = 0
    wrong: int = 0
    open: bool = True
    latencies_s: list[float] | None = None


class _Asker(asyncio.Protocol):
    """One connection: a question at a time."""

    def __init__(self, questions: Sequence[Question], first: int, tally: Tally) -> None:
        self._questions = questions
        self._next = first
        self._tally = tally
        self._buffer = b""
        self._end = 0
        self._asked_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        self._tally.wrong += self._tally.open

    def _ask(self) -> None:
        self._question = self._questions[self._next % len(self._questions)]
        self._next += 1
        if self._tally.latencies_s is not None:
            self._asked_at = time.perf_counter()
        self._transport.write(self._question.wire)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if not self._end:
            head = self._buffer.find(b"\r\n\r\n")
            if head < 0:
                return
            length = _LENGTH.search(self._buffer, 0, head)
            self._end = head + 4 + (int(length[1]) if length else 0)
        if len(self._buffer) < self._end:
            return
        tally = self._tally
        tally.answered += 1
        tally.wrong += not (self._buffer.startswith(b"HTTP/1.1 200") and self._buffer.endswith(self._question.answer))
        if tally.latencies_s is not None:
            tally.latencies_s.append(time.perf_counter() - self._asked_at)
        self._buffer, self._end = b"", 0
        if tally.open:
            self._ask()
        else:
            self._transport.close()


@dataclass(frozen=True, slots=True)
class Measured:
    """Answers per second, and how long each took where that was wanted."""

    per_s: float
    latencies_s: list[float] = field(default_factory=list)


async def ask(port: int, questions: Sequence[Question], connections: int, seconds: float, *, latencies: bool = False) -> Measured:
    """Ask on so many connections for so long, after a moment to warm up. Raises RuntimeError where an answer was wrong."""
    loop = asyncio.get_running_loop()
    tally = Tally()
    made = [
        await loop.create_connection(lambda first=first: _Asker(questions, first, tally), "127.0.0.1", port)  # type: ignore[misc]
        for first in range(connections)
    ]
    await asyncio.sleep(min(0.2, seconds / 4))
    tally.latencies_s = [] if latencies else None
    before, started = tally.answered, time.perf_counter()
    await asyncio.sleep(seconds)
    rate = (tally.answered - before) / (time.perf_counter() - started)
    found = tally.latencies_s or []
    tally.open = False
    await asyncio.sleep(0.05)
    for transport, _ in made:
        transport.close()
    if tally.wrong:
        raise RuntimeError(f"{tally.wrong} of {tally.answered} answers were wrong or never came")
    return Measured(rate, list(found))
