"""However the bytes of a connection are cut into pieces, the answers are the same and in order."""

from __future__ import annotations

import asyncio
import itertools

import uvloop
from hypothesis import given
from hypothesis import strategies as st

from modelpool.gateway.server import HttpServer
from tests.unit.gateway.fakes import BODY_LIMIT_BYTES, FakeController
from tests.unit.gateway.wire import Wire, chunked, get, post

OFFER = ("Connection: Upgrade", "Upgrade: h2c")
ASKED: list[tuple[bytes, int, bytes | None]] = [
    (post("echo", b"one"), 200, b"one"),
    (post("echo", b"two" * 100, *OFFER), 200, b"two" * 100),
    (post("echo", b"", "Transfer-Encoding: chunked", length=False) + chunked(b"th", b"ree"), 200, b"three"),
    (post("binary", b"{}1234", "Inference-Header-Content-Length: 2"), 200, b"{}1234"),
    (post("nobody", b"x" * 1000), 404, None),
    (post("echo", b"{}", "Content-Encoding: br"), 415, None),
    (post("echo", b"{}", "Inference-Header-Content-Length: 99"), 400, None),
    (get("/v2"), 200, None),
    (get("/nothing", *OFFER), 404, None),
]
LAST: list[tuple[bytes, int, bytes | None]] = [
    (post("echo", b"bye", "Connection: close"), 200, b"bye"),
    (post("echo", b"bye", version="HTTP/1.0"), 200, b"bye"),
    (b"what is this?\r\n\r\n", 400, None),
    (post("echo", b"", f"Content-Length: {BODY_LIMIT_BYTES + 1}", length=False) + b"more", 413, None),
]


@given(st.lists(st.sampled_from(ASKED), max_size=40), st.sampled_from(LAST), st.lists(st.floats(0, 1, exclude_max=True), max_size=8))
def test_answers_do_not_depend_on_how_requests_are_cut(
    asked: list[tuple[bytes, int, bytes | None]], last: tuple[bytes, int, bytes | None], cuts: list[float]
) -> None:
    async def scenario() -> None:
        server = HttpServer(FakeController(), "127.0.0.1", 0)
        await server.start()
        sent = b"".join(request for request, _, _ in [*asked, last])
        places = sorted({0, len(sent), *(int(cut * len(sent)) for cut in cuts)})
        async with Wire.to(server.port) as wire:
            for start, end in itertools.pairwise(places):
                await wire.send(sent[start:end])
                await asyncio.sleep(0)
            for _, status, body in [*asked, last]:
                reply = await wire.reply()
                assert reply.status == status
                assert body in (None, reply.body)
            assert await wire.closed()
        await server.stop(limit_s=0.0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
