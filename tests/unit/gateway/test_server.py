from __future__ import annotations

import asyncio
import socket

import pytest

from modelpool.errors import SetupError
from modelpool.gateway.server import HttpServer
from tests.unit.gateway.fakes import FakeController
from tests.unit.gateway.wire import Wire, get, post, until


async def test_port_0_takes_a_free_port_and_says_which(server: HttpServer) -> None:
    assert server.port > 0
    assert server.url == f"http://127.0.0.1:{server.port}"
    assert HttpServer(server._controller, "::1", 8000).url == "http://[::1]:8000"


async def test_a_port_in_use_is_named_with_what_to_do(server: HttpServer, controller: FakeController) -> None:
    with pytest.raises(SetupError, match=rf"port {server.port}.*--http-port"):
        await HttpServer(controller, "127.0.0.1", server.port).start()


@pytest.mark.parametrize(
    ("host", "port", "hint"),
    [("192.0.2.1", 0, "--host"), ("no-such-host.invalid", 0, "--host"), ("a" * 70, 0, "--host"), ("127.0.0.1", 70_000, "--http-port")],
)
async def test_an_address_that_cannot_be_had_is_named_with_what_to_do(controller: FakeController, host: str, port: int, hint: str) -> None:
    with pytest.raises(SetupError, match=f"cannot listen on '{host}' port {port}: .*{hint}"):
        await HttpServer(controller, host, port).start()


async def test_connections_send_at_once(server: HttpServer) -> None:
    async with Wire.to(server.port) as wire:
        await wire.ask(post("echo"))
        (connection,) = server.connections()
        assert connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_stop_closes_idle_connections_and_waits_for_the_others(server: HttpServer, controller: FakeController) -> None:
    async with Wire.to(server.port) as idle, Wire.to(server.port) as busy, Wire.to(server.port) as sending:
        await idle.ask(get("/v2"))
        await busy.send(post("run"))
        await sending.send(post("echo", b"12")[:-1])
        call = await controller.call()
        await until(lambda: sum(connection.running is not None for connection in server.connections()) == 2)
        stopping = asyncio.ensure_future(server.stop(limit_s=30))
        assert await idle.closed()
        with pytest.raises(OSError, match=r".*"):
            await asyncio.open_connection("127.0.0.1", server.port)
        assert not stopping.done()
        call.answer(-1, b"{}")
        reply = await busy.reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert await busy.closed()
        assert (await sending.ask(b"2")).body == b"12"
        assert await sending.closed()
        await stopping
    await server.stop()  # twice does no harm


async def test_stop_cuts_what_takes_too_long(server: HttpServer, controller: FakeController) -> None:
    async with Wire.to(server.port) as busy:
        await busy.send(post("wait"))
        call = await controller.call()
        await server.stop(limit_s=0.01)
        await busy.closed()
        assert controller.cancelled == [call]
