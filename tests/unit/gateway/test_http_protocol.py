"""Inference over raw connections, against a controller of fixed habits."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import struct
import zlib
from typing import Any

import pytest

from modelpool.errors import RequestTimeout
from modelpool.gateway import http_protocol
from modelpool.gateway.server import HttpServer
from tests.unit.gateway.fakes import BODY_LIMIT_BYTES, FakeController
from tests.unit.gateway.wire import Wire, chunked, get, post, until


# --- what an inference is --------------------------------------------------------------------------------------------------------
async def test_an_inference_is_answered_with_its_body(wire: Wire, controller: FakeController) -> None:
    reply = await wire.ask(post("echo", b'{"a": 1}'))
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, b'{"a": 1}', "application/json")
    call = controller.calls[0]
    assert (call.model, call.version, call.json_bytes, bytes(call.body)) == ("echo", 0, -1, b'{"a": 1}')


async def test_binary_bodies_carry_the_size_of_their_json(wire: Wire, controller: FakeController) -> None:
    reply = await wire.ask(post("binary", b'{"a": 1}\x00\x01', "Inference-Header-Content-Length: 8"))
    assert reply.body == b'{"a": 1}\x00\x01'
    assert reply.headers["inference-header-content-length"] == "8"
    assert reply.headers["content-type"] == "application/octet-stream"
    assert controller.calls[0].json_bytes == 8


@pytest.mark.parametrize(
    ("path", "model", "version"),
    [
        ("echo/versions/3", "echo", 3),
        ("hf%2Fe5", "hf/e5", 0),
        ("hf/e5", "hf/e5", 0),
        ("hf/e5/versions/3", "hf/e5", 3),
        ("a+b", "a+b", 0),
        ("c%20d", "c d", 0),
        ("%C3%BCn%C3%AF", "ünï", 0),
    ],
)
async def test_names_and_versions_come_from_the_path(wire: Wire, controller: FakeController, path: str, model: str, version: int) -> None:
    assert (await wire.ask(post(path))).status == 200
    assert (controller.calls[0].model, controller.calls[0].version) == (model, version)


async def test_double_slashes_queries_and_absolute_urls_are_inferences_too(wire: Wire, controller: FakeController) -> None:
    for target in ("//v2/models/echo/infer", "/v2/models/echo/infer?x=1", "http://test:80/v2/models/echo/infer"):
        reply = await wire.ask(f"POST {target} HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        assert reply.status == 200, target
    assert len(controller.calls) == 3


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("echo/versions/x", 400, "bad_request"),
        ("echo/versions/", 400, "bad_request"),
        ("echo/versions/99999999999", 400, "bad_request"),
        ("echo/versions/4", 404, "version_not_found"),
        ("%ff", 400, "invalid_name"),
        ("nobody", 404, "model_not_found"),
        ("forgotten", 404, "model_forgotten"),
        ("bad", 404, "malformed_model"),
        ("broken", 400, "load_failed"),
        ("full", 503, "queue_full"),
    ],
)
async def test_what_is_wrong_has_a_status_a_code_and_words(wire: Wire, path: str, status: int, code: str) -> None:
    reply = await wire.ask(post(path))
    assert (reply.status, reply.json["code"], reply.headers["content-type"]) == (status, code, "application/json")
    assert reply.json["error"]
    assert (await wire.ask(post("echo"))).status == 200  # the connection goes on


async def test_half_of_a_surrogate_pair_is_named_on_every_path(wire: Wire) -> None:
    body = rb'{"model_name": "\ud800"}'
    for path in ("/models", "/v2/repository/index"):
        reply = await wire.ask(b"POST %b HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body))
        assert reply.status == 400
        assert rb"\\ud800 is half of a surrogate pair" in reply.body


async def test_a_refused_body_is_not_kept_by_its_connection(wire: Wire, server: HttpServer) -> None:
    assert (await wire.ask(post("full", b"x" * 100_000))).status == 503
    assert [connection.cycle.body for connection in server.connections()] == [b""]


async def test_a_refusal_says_when_to_come_back(wire: Wire) -> None:
    assert (await wire.ask(post("full"))).headers["retry-after"] == "3"


async def test_a_fault_of_ours_is_logged_and_told_without_its_details(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "modelpool.gateway"):
        reply = await wire.ask(post("boom"))
    assert reply.status == 500
    assert b"secret" not in reply.body
    assert "a secret" in caplog.text
    assert (await wire.ask(post("echo"))).status == 200


async def test_answers_that_waited_say_so(wire: Wire, controller: FakeController) -> None:
    await wire.send(post("wait"))
    (await controller.call()).answer(-1, b"{}")
    assert (await wire.reply()).headers["modelpool-queued"] == "1"
    assert "modelpool-queued" not in (await wire.ask(post("echo"))).headers


async def test_an_answers_memory_is_free_again_at_once(wire: Wire, controller: FakeController) -> None:
    await wire.send(post("run"))
    call = await controller.call()
    lent = bytearray(b"x" * 150_000)
    call.answer(-1, memoryview(lent))
    lent[:] = b"y" * 150_000
    assert (await wire.reply()).body == b"x" * 150_000


async def test_only_the_first_end_of_a_call_counts(wire: Wire, controller: FakeController) -> None:
    await wire.send(post("run"))
    call = await controller.call()
    call.answer(-1, b"1")
    call.answer(-1, b"2")
    call.fail(RequestTimeout("late"))
    assert (await wire.reply()).body == b"1"
    assert (await wire.ask(post("echo", b"3"))).body == b"3"


# --- no task, no future ------------------------------------------------------------------------------------------------------------
async def test_an_inference_makes_no_task(wire: Wire, controller: FakeController) -> None:
    loop = asyncio.get_running_loop()
    made: list[Any] = []

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **options)

    loop.set_task_factory(factory)
    for _ in range(20):
        await wire.ask(post("echo"))
    await wire.send(post("run"))
    (await controller.call(20)).answer(-1, b"{}")
    await wire.reply()
    assert not made
    await wire.ask(get("/v2/health/live"))
    assert made  # the counting works
    loop.set_task_factory(None)


# --- one after the other -----------------------------------------------------------------------------------------------------------
async def test_pipelined_requests_of_both_kinds_are_answered_in_order(wire: Wire) -> None:
    await wire.send(post("echo", b"1") + get("/v2/health/live") + post("echo", b"2") + get("/v2") + get("/v2") + post("echo", b"3"))
    replies = [await wire.reply() for _ in range(6)]
    assert [reply.status for reply in replies] == [200] * 6
    assert [replies[number].body for number in (0, 2, 5)] == [b"1", b"2", b"3"]
    assert replies[3].json["name"] == replies[4].json["name"] == "modelpool"


async def test_a_pipelined_request_begins_when_the_one_before_it_is_answered(wire: Wire, controller: FakeController) -> None:
    await wire.send(post("run", b"1") + post("run", b"2") + get("/v2/health/live") + post("nobody"))
    first = await controller.call()
    await asyncio.sleep(0)
    assert len(controller.calls) == 1
    first.answer(-1, b"one")
    second = await controller.call(1)
    second.answer(-1, b"two")
    assert [(await wire.reply()).body for _ in range(3)] == [b"one", b"two", b""]
    assert (await wire.reply()).status == 404


async def test_very_many_pipelined_failures_do_not_nest(wire: Wire, controller: FakeController) -> None:
    count = 3000
    await wire.send(post("run"))
    first = await controller.call()
    await wire.send(post("nobody") * count)
    first.answer(-1, b"{}")
    assert (await wire.reply()).status == 200
    assert {(await wire.reply()).status for _ in range(count)} == {404}


async def test_a_refusal_waits_for_its_turn(wire: Wire, controller: FakeController) -> None:
    await wire.send(post("run") + post("echo", b"", f"Content-Length: {BODY_LIMIT_BYTES + 1}", length=False))
    (await controller.call()).answer(-1, b"first")
    assert (await wire.reply()).body == b"first"
    reply = await wire.reply()
    assert (reply.status, reply.headers["connection"]) == (413, "close")
    assert await wire.closed()


async def test_what_is_no_http_is_refused_in_its_turn(wire: Wire, controller: FakeController) -> None:
    await wire.send(post("run") + b"what?\r\n\r\n")
    (await controller.call()).answer(-1, b"first")
    assert (await wire.reply()).body == b"first"
    reply = await wire.reply()
    assert (reply.status, reply.json["code"], reply.headers["connection"]) == (400, "bad_request", "close")
    assert await wire.closed()


async def test_a_client_that_does_not_read_its_answers_is_not_served_on(server: HttpServer, controller: FakeController) -> None:
    count, body = 200, b"x" * 150_000
    async with Wire.to(server.port) as wire:
        wire.writer.transport.pause_reading()
        asking = asyncio.ensure_future(wire.send(post("echo", body) * count))
        await until(lambda: any(connection.flow.write_paused for connection in server.connections()))
        await _a_few_turns()
        assert len(controller.calls) < count
        wire.writer.transport.resume_reading()
        assert {(await wire.reply()).body for _ in range(count)} == {body}
        await asking


# --- bodies ------------------------------------------------------------------------------------------------------------------------
async def test_a_body_may_come_in_pieces(wire: Wire, controller: FakeController) -> None:
    body = bytes(range(256)) * 700
    request = post("echo", body)
    for start in range(0, len(request), 9000):
        await wire.send(request[start : start + 9000])
        await asyncio.sleep(0)
    assert (await wire.reply()).body == body


async def test_a_request_may_come_byte_by_byte(wire: Wire) -> None:
    wire.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in post("echo", b"{}", "Inference-Header-Content-Length: 2"):
        await wire.send(bytes([byte]))
        await asyncio.sleep(0)
    assert (await wire.reply()).body == b"{}"


async def test_a_body_may_come_in_chunks(wire: Wire) -> None:
    head = post("echo", b"", "Transfer-Encoding: chunked", length=False)
    assert (await wire.ask(head + chunked(b"ab", b"c" * 1000, b"d"))).body == b"ab" + b"c" * 1000 + b"d"
    assert (await wire.ask(head + b"2;some=extension\r\nab\r\n0\r\nTrailer: x\r\n\r\n")).body == b"ab"


async def test_an_empty_body_is_handed_on(wire: Wire, controller: FakeController) -> None:
    assert (await wire.ask(post("echo", b""))).body == b""
    assert (await wire.ask(post("echo", b"", length=False))).body == b""
    assert len(controller.calls) == 2


async def test_the_largest_body_is_taken(wire: Wire) -> None:
    body = b"x" * BODY_LIMIT_BYTES
    assert (await wire.ask(post("echo", body))).body == body


async def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes(wire: Wire, controller: FakeController) -> None:
    reply = await wire.ask(post("echo", b"", f"Content-Length: {BODY_LIMIT_BYTES + 1}", length=False))
    assert (reply.status, reply.json["code"], reply.headers["connection"]) == (413, "body_too_large", "close")
    assert str(BODY_LIMIT_BYTES) in reply.json["error"]
    assert await wire.closed()
    assert not controller.calls


async def test_a_client_that_sends_all_of_a_too_large_body_still_reads_the_answer(wire: Wire) -> None:
    await wire.send(post("echo", b"x" * (20 * BODY_LIMIT_BYTES)))
    assert (await wire.reply()).status == 413
    assert await wire.closed()


async def test_chunks_that_become_too_many_are_refused(wire: Wire, controller: FakeController) -> None:
    await wire.send(post("echo", b"", "Transfer-Encoding: chunked", length=False))
    for _ in range(3):
        await wire.send(chunked(b"x" * 90_000)[:-5])
    reply = await wire.reply()
    assert (reply.status, reply.headers["connection"]) == (413, "close")
    await wire.send(chunked(b"more"))
    assert await wire.closed()
    assert not controller.calls


async def test_what_follows_a_refused_body_is_not_served(wire: Wire, controller: FakeController) -> None:
    await wire.send(post("echo", b"x" * (BODY_LIMIT_BYTES + 1)) + post("echo"))
    assert (await wire.reply()).status == 413
    assert await wire.closed()
    assert not controller.calls


async def test_continue_is_said_to_those_who_wait_for_it(wire: Wire, controller: FakeController) -> None:
    head, body = post("echo", b"{}", "Expect: 100-continue")[:-2], b"{}"
    await wire.send(head)
    assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (await wire.ask(body)).body == body
    await wire.send(post("run", b"1") + head)  # out of turn it must not be said
    (await controller.call(1)).answer(-1, b"first")
    assert (await wire.reply()).body == b"first"
    assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (await wire.ask(body)).body == body


@pytest.mark.parametrize("header", [f"Content-Length: {BODY_LIMIT_BYTES + 1}", "Content-Encoding: br\r\nContent-Length: 5"])
async def test_who_waits_to_continue_is_refused_before_the_body(wire: Wire, header: str) -> None:
    reply = await wire.ask(post("echo", b"", "Expect: 100-continue", header, length=False))
    assert reply.status in (413, 415)
    assert await wire.closed()


@pytest.mark.parametrize("value", ["-1", "x", "1.5", "9" * 20, "3"])
async def test_a_wrong_size_of_the_json_part_is_refused(wire: Wire, value: str) -> None:
    reply = await wire.ask(post("echo", b"{}", f"Inference-Header-Content-Length: {value}"))
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert "Inference-Header-Content-Length" in reply.json["error"]
    assert (await wire.ask(post("echo", b"next"))).body == b"next"


# --- compressed bodies ---------------------------------------------------------------------------------------------------------------
def _naked_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("gzip", gzip.compress(b"{}" * 100)),
        ("GZIP", gzip.compress(b"{}" * 100)),
        ("deflate", zlib.compress(b"{}" * 100)),
        ("deflate", _naked_deflate(b"{}" * 100)),
        ("identity", b"{}" * 100),
    ],
)
async def test_compressed_bodies_are_unpacked(wire: Wire, name: str, packed: bytes) -> None:
    assert (await wire.ask(post("echo", packed, f"Content-Encoding: {name}"))).body == b"{}" * 100


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("br", b"x", 415),
        ("gzip, gzip", b"x", 415),
        ("gzip", b"not gzip", 400),
        ("gzip", gzip.compress(b"{}" * 100)[:-9], 400),
        ("gzip", gzip.compress(b"{}") + b"more", 400),
        ("gzip", b"", 400),
        ("gzip", gzip.compress(bytes(BODY_LIMIT_BYTES + 1)), 413),
        ("deflate", zlib.compress(bytes(100 * BODY_LIMIT_BYTES)), 413),
    ],
)
async def test_what_cannot_be_unpacked_is_refused(wire: Wire, controller: FakeController, name: str, body: bytes, status: int) -> None:
    reply = await wire.ask(post("echo", body, f"Content-Encoding: {name}"))
    assert reply.status == status
    assert not controller.calls
    assert (await wire.ask(post("echo"))).status == 200


# --- connections ---------------------------------------------------------------------------------------------------------------------
async def test_connection_close_is_honoured(wire: Wire, controller: FakeController) -> None:
    await wire.send(post("run", b"{}", "Connection: close") + post("echo", b"dropped"))
    call = await controller.call()
    assert bytes(call.body) == b"{}"
    call.answer(-1, b"last")
    reply = await wire.reply()
    assert (reply.body, reply.headers["connection"]) == (b"last", "close")
    assert await wire.closed()
    assert len(controller.calls) == 1


@pytest.mark.parametrize("headers", [(), ("Connection: keep-alive",)])
async def test_http_1_0_ends_the_connection(wire: Wire, headers: tuple[str, ...]) -> None:
    reply = await wire.ask(post("echo", b"{}", *headers, version="HTTP/1.0"))
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert await wire.closed()


async def test_an_upgrade_is_declined_and_the_request_served(wire: Wire) -> None:
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    body = b"{}" * 50_000
    assert (await wire.ask(post("echo", body, *offer))).body == body
    assert (await wire.ask(get("/v2", *offer))).json["name"] == "modelpool"
    assert (await wire.ask(post("echo", b"next"))).body == b"next"


async def test_connect_is_refused(wire: Wire) -> None:
    assert (await wire.ask(b"CONNECT test:80 HTTP/1.1\r\nHost: test\r\n\r\n")).status == 400
    assert await wire.closed()


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", post("echo", b"", "Content-Length: x", length=False)],
)
async def test_what_is_no_http_gets_an_answer_in_json(wire: Wire, data: bytes) -> None:
    reply = await wire.ask(data)
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert await wire.closed()


async def test_a_broken_chunk_is_refused(wire: Wire, controller: FakeController) -> None:
    reply = await wire.ask(post("echo", b"", "Transfer-Encoding: chunked", length=False) + b"zz\r\n")
    assert reply.status == 400
    assert await wire.closed()
    assert not controller.calls


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("path", ["/v2/models/double/infer#f", "/v2/models/double/infer?a#", "/v2/models/#/infer", "/v2#", "http://h/v2#x"])
async def test_a_fragment_in_the_target_is_refused(wire: Wire, controller: FakeController, method: str, path: str) -> None:
    reply = await wire.ask(f"{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\n{{}}".encode())
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert "'#'" in reply.json["error"]
    assert await wire.closed()
    assert not controller.calls


@pytest.mark.parametrize("coding", ["gzip, chunked", "gzip\r\nTransfer-Encoding: chunked", "gzip", "identity", "x"])
@pytest.mark.parametrize("path", ["/v2/models/echo/infer", "/v2/repository/index"])
async def test_other_transfer_codings_than_chunked_are_refused(wire: Wire, controller: FakeController, coding: str, path: str) -> None:
    reply = await wire.ask(f"POST {path} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: {coding}\r\n\r\n".encode() + chunked(b"{}"))
    assert (reply.status, reply.json["code"]) == (501, "unsupported")
    assert await wire.closed()
    assert not controller.calls


async def test_chunked_twice_is_refused(wire: Wire, controller: FakeController) -> None:
    reply = await wire.ask(post("echo", b"", "Transfer-Encoding: chunked, chunked", length=False) + chunked(b"{}"))
    assert reply.status == 400
    assert not controller.calls


async def test_chunked_may_be_written_in_capitals(wire: Wire) -> None:
    assert (await wire.ask(post("echo", b"", "Transfer-Encoding:  Chunked ", length=False) + chunked(b"{}"))).body == b"{}"


async def test_a_head_without_end_is_refused(wire: Wire) -> None:
    await wire.send(b"GET / HTTP/1.1\r\nX: ")
    for _ in range(80):
        await wire.send(b"x" * 10_000)
        await asyncio.sleep(0)
    reply = await wire.reply()
    assert (reply.status, reply.json["code"]) == (431, "head_too_large")


CHUNKED = "Transfer-Encoding: chunked"
LOAD = b"POST /v2/repository/index HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("request_", [post("echo", b"", CHUNKED, length=False), LOAD], ids=["inference", "application"])
@pytest.mark.parametrize("line", [b"x" * 10_000, b"x: %b\r\n" % (b"y" * 9_000)], ids=["one", "many"])
@pytest.mark.parametrize("ahead", [b"", post("run")], ids=["first", "in its turn"])
async def test_trailers_without_end_are_refused(wire: Wire, controller: FakeController, request_: bytes, line: bytes, ahead: bytes) -> None:
    await wire.send(ahead + request_ + b"2\r\n{}\r\n0\r\nX: ")
    for _ in range(80):
        await wire.send(line)
        await asyncio.sleep(0)
    if ahead:
        (await controller.call()).answer(-1, b"done")
        assert (await wire.reply()).body == b"done"
    reply = await wire.reply()
    assert (reply.status, reply.json["code"]) == (431, "head_too_large")
    assert "trailers" in reply.json["error"]
    assert len(controller.calls) == bool(ahead)


async def test_trailers_are_no_headers(wire: Wire, controller: FakeController) -> None:
    trailers = b"0\r\nInference-Header-Content-Length: 1\r\n\r\n"
    reply = await wire.ask(post("echo", b"", CHUNKED, length=False) + b"2\r\n{}\r\n" + trailers)
    assert reply.body == b"{}"
    assert controller.calls[0].json_bytes == -1
    assert (await wire.ask(LOAD + trailers)).status == 200


async def test_many_small_chunks_are_no_trailers(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_LIMIT_BYTES", 10)
    await wire.send(post("echo", b"", CHUNKED, length=False))
    for _ in range(20):
        for part in (b"1\r\n", b"x\r\n"):
            await wire.send(part)
            await asyncio.sleep(0.001)
    assert (await wire.ask(b"0\r\n\r\n")).body == b"x" * 20


async def test_a_half_closed_client_gets_what_runs(wire: Wire, controller: FakeController) -> None:
    await wire.send(post("run") + get("/v2/health/live"))
    call = await controller.call()
    wire.writer.write_eof()
    await _a_few_turns()
    call.answer(-1, b"answer")
    assert (await wire.reply()).body == b"answer"
    assert (await wire.reply()).status == 200
    assert await wire.closed()
    assert not controller.cancelled


async def test_a_half_closed_client_gets_other_answers(wire: Wire) -> None:
    await wire.send(get("/v2"))
    wire.writer.write_eof()
    assert (await wire.reply()).json["name"] == "modelpool"
    assert await wire.closed()


async def test_a_half_closed_client_that_waits_for_a_model_counts_as_gone(wire: Wire, controller: FakeController) -> None:
    await wire.send(post("wait"))
    call = await controller.call()
    wire.writer.write_eof()
    await controller.gone.wait()
    assert controller.cancelled == [call]


async def test_a_truncated_body_is_told_to_a_half_closed_client(wire: Wire, controller: FakeController) -> None:
    await wire.send(post("echo", b"x" * 100)[:-40])
    wire.writer.write_eof()
    reply = await wire.reply()
    assert reply.status == 400
    assert "60 bytes" in reply.json["error"]
    assert await wire.closed()
    assert not controller.calls


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("model", ["wait", "run"])
async def test_a_client_that_goes_away_is_cancelled_once(server: HttpServer, controller: FakeController, model: str, reset: bool) -> None:
    async with Wire.to(server.port) as wire:
        await wire.send(post("echo") + post(model) + post("echo", b"never"))
        call = await controller.call(1)
        if reset or model == "run":  # who closes in order looks half-closed while his request runs
            sock = wire.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await controller.gone.wait()
    call.answer(-1, b"nobody reads this")
    call.fail(RequestTimeout("nor this"))
    await _a_few_turns()
    assert controller.cancelled == [call]
    assert len(controller.calls) == 2
    assert not server.connections()


async def test_a_client_that_goes_away_with_half_a_request_leaves_nothing(server: HttpServer, controller: FakeController) -> None:
    async with Wire.to(server.port) as wire:
        await wire.send(post("echo", b"x" * 100)[:-40])
        await _a_few_turns()
    await until(lambda: not server.connections())
    assert not controller.calls
    assert not controller.cancelled


async def test_connections_without_a_word_are_closed(server: HttpServer, controller: FakeController) -> None:
    async with Wire.to(server.port) as idle, Wire.to(server.port) as half, Wire.to(server.port) as busy:
        await idle.ask(post("echo"))
        await half.send(post("echo", b"x" * 100)[:-40])
        await busy.send(post("wait"))
        await controller.call(1)
        await _a_few_turns()
        soon = asyncio.get_running_loop().time() + 1.0
        for connection in server.connections():
            connection.close_if_idle(soon)
        assert await idle.closed()
        await half.closed()
        controller.calls[1].answer(-1, b"{}")
        assert (await busy.reply()).status == 200
        for connection in server.connections():
            connection.close_if_idle(0.0)
        assert (await busy.ask(post("echo"))).status == 200


async def test_lingering_ends(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "LINGER_S", 0.0)
    reply = await wire.ask(b"what?\r\n\r\n")
    assert reply.status == 400
    await wire.closed()  # though we keep our side open


async def _a_few_turns() -> None:
    """Let bytes travel over the loopback."""
    for _ in range(10):
        await asyncio.sleep(0.001)
