"""A head that was read before passes by the parser, and nobody can tell."""

from __future__ import annotations

import pytest

from modelpool.gateway import heads
from modelpool.gateway.exchange import Exchange
from modelpool.gateway.heads import Head, KnownHeads
from tests.unit.gateway.fakes import FakeController
from tests.unit.gateway.wire import Wire, get, post

HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 3\r\n\r\n"
HEADERS = [(b"host", b"x"), (b"content-length", b"3")]


def exchange(**fields: object) -> Exchange:
    made = Exchange(None, "m", 2)  # type: ignore[arg-type]
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_a_plain_request_is_learned() -> None:
    known = KnownHeads()
    known.learn(HEAD + b"abc", HEADERS, exchange(json_bytes=2))
    assert known == {HEAD: Head("m", 2, 2, 3)}


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"ab",
        HEAD + b"abcd",
        HEAD + b"abc" + HEAD,
        b"\r\n" + HEAD + b"abc",
        HEAD.replace(b"\r\n\r\n", b"\n\r\nabc\r\n\r\n") + b"abc",
        HEAD.replace(b"\r\n\r\n", b"\n\nabc\r\n\r\n") + b"abc",
        HEAD.replace(b"Content", b"x: " + b"x" * 2000 + b"\r\nContent") + b"abc",
        b"POST ",
    ],
)
def test_what_is_not_one_whole_regular_request_is_not(data: bytes) -> None:
    known = KnownHeads()
    known.learn(data, HEADERS, exchange())
    assert not known


@pytest.mark.parametrize(
    "fields",
    [{"keep_alive": False}, {"problem": ValueError()}, {"encoding": b"gzip"}, {"expects_continue": True}],
    ids=lambda one: next(iter(one)),
)
def test_what_is_not_plain_is_not(fields: dict[str, object]) -> None:
    known = KnownHeads()
    known.learn(HEAD + b"abc", HEADERS, exchange(**fields))
    assert not known


def test_a_chunked_request_is_not() -> None:
    known = KnownHeads()
    known.learn(HEAD + b"abc", [(b"transfer-encoding", b"chunked")], exchange())
    assert not known


def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "_MOST", 3)
    known = KnownHeads()
    for number in range(8):
        known.learn(HEAD.replace(b"/m/", b"/m%d/" % number) + b"abc", HEADERS, exchange())
        assert len(known) <= 3
    assert HEAD.replace(b"/m/", b"/m7/") in known


async def test_requests_with_a_known_head_are_answered_as_the_first(wire: Wire, controller: FakeController) -> None:
    for body in (b"one", b"two", b"six"):
        assert (await wire.ask(post("echo", body))).body == body
    for body in (b"{}1", b"{}2"):
        reply = await wire.ask(post("binary", body, "Inference-Header-Content-Length: 2"))
        assert (reply.body, reply.headers["inference-header-content-length"]) == (body, "2")
    assert (await wire.ask(post("nobody", b"one"))).status == 404
    assert (await wire.ask(post("nobody", b"two"))).status == 404
    assert [call.json_bytes for call in controller.calls[:5]] == [-1, -1, -1, 2, 2]


async def test_a_known_head_may_come_with_more_or_less_than_its_body(wire: Wire) -> None:
    await wire.ask(post("echo", b"one"))
    await wire.send(post("echo", b"two") + post("echo", b"six") + get("/v2"))
    assert [(await wire.reply()).body for _ in range(2)] == [b"two", b"six"]
    assert (await wire.reply()).status == 200
    asked = post("echo", b"ten")
    await wire.send(asked[:-2])
    await wire.send(asked[-2:])
    assert (await wire.reply()).body == b"ten"
    assert (await wire.ask(post("echo", b"one"))).body == b"one"
