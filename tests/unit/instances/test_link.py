"""The server's end of a connection to a worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from modelpool.errors import LoadFailed
from modelpool.instances.link import Link, LinkLost, Route, SpreadRoute
from modelpool.ports import Call
from modelpool.protocol import messages
from modelpool.protocol.frames import ANSWER_PREFIX, INFER_PREFIX, Kind, frame
from modelpool.protocol.stream import LARGE_BYTES
from tests.unit.protocol.test_stream import Kept, Written, feed


class Sink:
    """Keeps what becomes of calls."""

    def __init__(self) -> None:
        self.ended: list[tuple[Call, str, Any]] = []

    def answered(self, call: Call, payload: memoryview) -> None:
        self.ended.append((call, "answered", bytes(payload)))

    def failed(self, call: Call, code: str, message: str, retry_after_s: float | None) -> None:
        self.ended.append((call, "failed", (code, message, retry_after_s)))

    def lost(self, call: Call, started: bool) -> None:
        self.ended.append((call, "lost", started))


class Ends:
    """A link with its transport, its sink and what it reported."""

    def __init__(self) -> None:
        self.sink = Sink()
        self.closed = 0
        self.observed: list[messages.Observed] = []
        self.link = Link(asyncio.get_running_loop(), self.sink, self._on_closed, self.observed.append)
        self.transport = Written()
        self.link.connection_made(self.transport)

    def _on_closed(self) -> None:
        self.closed += 1

    async def sent(self) -> list[tuple[int, int, int, bytes]]:
        """The frames that were written so far."""
        await asyncio.sleep(0)
        worker = Kept(asyncio.get_running_loop())
        feed(worker, b"".join(self.transport.writes), [100_000])
        return worker.frames

    def receive(self, kind: Kind, call: int, payload: bytes = b"", copy: int = 0) -> None:
        feed(self.link, frame(kind, copy, call, payload), [100_000])


def call(body: bytes = b"{}", json_bytes: int = -1, version: int = 0) -> Call:
    return Call("m", version, body, json_bytes)


async def test_a_request_goes_out_and_its_answer_comes_back() -> None:
    ends = Ends()
    one, other = call(b'{"a": 1}', 3, 2), call(b"x" * (LARGE_BYTES + 1))
    other.alone = True
    route = Route(ends.link, 7)
    route.infer(one)
    route.infer(other)
    assert one.begun
    assert one.callid != other.callid
    first, second = await ends.sent()
    assert first == (Kind.INFER, 7, one.callid, INFER_PREFIX.pack(3, 2) + b'{"a": 1}')
    assert second == (Kind.INFER_ALONE, 7, other.callid, INFER_PREFIX.pack(-1, 0) + bytes(other.body))
    answer = ANSWER_PREFIX.pack(-1, 1, 2, 3, 1) + b"{}"
    ends.receive(Kind.ANSWER, other.callid, answer)
    ends.receive(Kind.ANSWER, other.callid, answer)  # nobody waits for it any more
    failure = messages.Failure(code="model_error", message="no", retry_after_s=2.0)
    ends.receive(Kind.ERROR, one.callid, messages.encode(failure))
    assert ends.sink.ended == [(other, "answered", answer), (one, "failed", ("model_error", "no", 2.0))]
    assert not ends.link.is_busy


async def test_many_requests_of_one_turn_leave_in_few_writes() -> None:
    ends = Ends()
    for _ in range(32):
        ends.link.infer(1, call())
    frames = await ends.sent()
    assert len(frames) == 32
    assert len(ends.transport.writes) <= 4


async def test_requests_without_an_answer_are_handed_back_once() -> None:
    ends = Ends()
    sent, unsent, late = call(), call(), call()
    ends.link.infer(1, sent)
    ends.link.connection_lost(None)
    assert ends.closed == 1
    ends.link.infer(1, unsent)
    assert ends.link.take_pending() == [sent, unsent]
    assert (sent.begun, unsent.begun) == (True, False)
    assert ends.link.take_pending() == []
    ends.link.infer(1, late)
    assert ends.sink.ended == []  # not from within
    await asyncio.sleep(0)
    assert ends.sink.ended == [(late, "lost", False)]


async def test_only_what_waits_is_withdrawn() -> None:
    ends = Ends()
    one, gone = call(), call()
    route = Route(ends.link, 7)
    route.infer(one)
    route.cancel(gone)
    route.cancel(one)
    frames = await ends.sent()
    assert [(kind, copy, number) for kind, copy, number, _ in frames] == [(Kind.INFER, 7, one.callid), (Kind.CANCEL, 7, one.callid)]
    assert ends.link.is_busy


async def test_questions_are_answered_refused_or_lost() -> None:
    ends = Ends()
    answered, refused, lost = (ends.link.ask(Kind.LOAD, 1, b"{}") for _ in range(3))
    first, second, _ = [number for _, _, number, _ in await ends.sent()]
    ends.receive(Kind.LOADED, first, b"yes")
    ends.receive(Kind.LOADED, 12345, b"nobody asked")
    failure = messages.Failure(code="load_failed", message="no")
    ends.receive(Kind.ERROR, second, messages.encode(failure))
    ends.receive(Kind.ERROR, second, messages.encode(failure))
    assert await answered == b"yes"
    with pytest.raises(LoadFailed, match="no"):
        await refused
    ends.link.connection_lost(None)
    with pytest.raises(LinkLost):
        await lost
    with pytest.raises(LinkLost):
        await ends.link.ask(Kind.LOAD, 1)


async def test_observations_are_told_asked_for_or_not() -> None:
    ends = Ends()
    ends.link.probe()
    ((kind, _, number, _),) = await ends.sent()
    assert kind == Kind.PROBE
    observed = messages.Observed(total_bytes=2, baseline_bytes=1, run_peaks={3: 4})
    ends.receive(Kind.OBSERVED, number, messages.encode(observed))
    ends.receive(Kind.OBSERVED, 0, messages.encode(observed))
    assert ends.observed == [observed, observed]


async def test_of_several_processes_the_one_with_the_fewest_requests_gets_the_next() -> None:
    several = [Ends(), Ends(), Ends()]
    route = SpreadRoute([ends.link for ends in several], 7)
    calls = [call() for _ in range(7)]
    for one in calls:
        route.infer(one)
    assert [len(ends.link.pending) for ends in several] == [3, 2, 2]
    several[1].receive(Kind.ANSWER, calls[1].callid, ANSWER_PREFIX.pack(-1, 0, 0, 1, 1))
    extra = call()
    route.infer(extra)
    assert extra.callid in several[1].link.pending
    route.cancel(extra)
    assert [frames[-1][0] for frames in [await ends.sent() for ends in several]] == [Kind.INFER, Kind.CANCEL, Kind.INFER]
