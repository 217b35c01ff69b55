"""The HTTP server: uvicorn's machinery around our protocol class, without its own signal handlers and logs."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn import Config, Server

from modelpool.errors import SetupError
from modelpool.gateway.app import make_app
from modelpool.gateway.dataplane import DataPlane
from modelpool.gateway.http_protocol import InferenceProtocol, bind

_KEEP_ALIVE_S = 75
_BACKLOG = 2048


class HttpServer:
    """Listens on one address; port 0 takes any free one."""

    def __init__(self, controller: DataPlane, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._controller = controller
        self._server: asyncio.Server | None = None
        self._uvicorn: Server | None = None

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def start(self) -> int:
        """Listen; returns the port. Raises SetupError where the address cannot be had."""
        protocol = bind(self._controller, self._controller.settings.body_limit_bytes)
        config = Config(
            make_app(self._controller),
            http=protocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            ws="none",
        )
        config.load()
        uvicorn = self._uvicorn = Server(config)
        loop = asyncio.get_running_loop()

        def connection() -> InferenceProtocol:
            return protocol(config=config, server_state=uvicorn.server_state, app_state={}, _loop=loop)

        try:
            self._server = await loop.create_server(connection, self.host, self.port, backlog=_BACKLOG, start_serving=True)
        except (OSError, OverflowError) as error:
            what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise SetupError(
                f"cannot listen on {self.host} port {self.port}: {what}; stop what uses it, or give another with --http-port or --host"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        for sock in self._server.sockets:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.port

    def connections(self) -> set[Any]:
        """Connections that are open."""
        return set(self._uvicorn.server_state.connections) if self._uvicorn is not None else set()

    async def stop(self, limit_s: float = 5.0) -> None:
        """Take no more connections, let exchanges in progress end within the limit, close the rest."""
        if self._server is None or self._uvicorn is None:
            return
        self._server.close()
        for connection in self.connections():
            connection.shutdown()
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_s
        while (self.connections() or self._uvicorn.server_state.tasks) and loop.time() < until:
            await asyncio.sleep(0.01)
        for connection in self.connections():
            connection.transport.abort()
        for task in list(self._uvicorn.server_state.tasks):
            task.cancel()
        self._server = None
