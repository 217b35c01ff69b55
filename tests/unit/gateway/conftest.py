from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from modelpool.gateway.server import HttpServer
from tests.unit.gateway.fakes import FakeController
from tests.unit.gateway.wire import Wire


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the real server uses."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def controller() -> FakeController:
    return FakeController()


@pytest.fixture
async def server(controller: FakeController) -> AsyncIterator[HttpServer]:
    server = HttpServer(controller, "127.0.0.1", 0)
    await server.start()
    yield server
    await server.stop(limit_s=0.0)


@pytest.fixture
async def wire(server: HttpServer) -> AsyncIterator[Wire]:
    """A raw connection to the server."""
    async with Wire.to(server.port) as wire:
        yield wire
