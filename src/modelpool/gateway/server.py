"""The HTTP server: a listening socket and our protocol class; of uvicorn only what belongs to a connection, no signals, no logs."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState

from modelpool.errors import SetupError
from modelpool.gateway.app import make_app
from modelpool.gateway.dataplane import DataPlane
from modelpool.gateway.http_protocol import InferenceProtocol, bind

IDLE_CONNECTION_S = 75.0
"""A connection on which nothing is due is closed when nothing was heard of its client for so long."""
SWEEP_S = 5.0
"""Time between two looks for idle connections."""
BACKLOG = 2048
"""Connections that may wait to be accepted."""

_HINTS = {
    errno.EADDRINUSE: "another program uses that port; stop it, or give another port with --http-port (0: any free one)",
    errno.EADDRNOTAVAIL: "this machine does not have that address; give one of its own with --host, like 127.0.0.1",
    errno.EACCES: "ports below 1024 need special rights; give a higher one with --http-port",
}
_LACKING = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class HttpServer:
    """Listens on one address; port 0 takes any free one."""

    def __init__(self, controller: DataPlane, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._controller = controller
        self._state = ServerState()
        self._listeners: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def start(self) -> int:
        """Listen; returns the port. Raises SetupError where the address cannot be had."""
        loop = asyncio.get_running_loop()
        protocol = bind(self._controller, self._controller.settings.body_limit_bytes)
        app = make_app(self._controller)
        config = Config(app, http=protocol, lifespan="off", ws="none", proxy_headers=False, log_config=None, access_log=False)
        config.load()

        def connection() -> InferenceProtocol:
            return protocol(config=config, server_state=self._state, app_state={}, _loop=loop)

        sockets = await self._bind(loop)
        self.port = sockets[0].getsockname()[1]
        self._listeners = [await loop.create_server(connection, sock=sock, backlog=BACKLOG) for sock in sockets]
        self._sweep(loop)
        return self.port

    async def _bind(self, loop: asyncio.AbstractEventLoop) -> list[socket.socket]:
        """A socket for each address of the host, all with the same port; those of a protocol that this machine lacks are left out."""
        sockets: list[socket.socket] = []
        try:
            found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, address in dict.fromkeys(found):
                port = sockets[0].getsockname()[1] if sockets else self.port
                try:
                    sockets.append(_bound(family, kind, protocol, (address[0], port, *address[2:])))
                except OSError as error:
                    if error.errno not in _LACKING or (not sockets and address == found[-1][-1]):
                        raise
        except (OSError, OverflowError, UnicodeError) as error:
            for sock in sockets:
                sock.close()
            raise SetupError(f"cannot listen on '{self.host}' port {self.port}: {_hint(error)}") from error
        return sockets

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        since_s = loop.time() - IDLE_CONNECTION_S
        for connection in self.connections():
            connection.close_if_idle(since_s)
        self._sweeper = loop.call_later(SWEEP_S, self._sweep, loop)

    def connections(self) -> set[Any]:
        """Connections that are open."""
        return set(self._state.connections)

    async def stop(self, limit_s: float = 5.0) -> None:
        """Take no more connections, close those on which nothing is due, let what is in progress end within the limit, cut the rest."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
        due: set[asyncio.Future[None]] = {connection.shut() for connection in self.connections()} | self._state.tasks
        if due:
            await asyncio.wait(due, timeout=limit_s)
        for connection in self.connections():
            connection.transport.abort()
        tasks = set(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _bound(family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _hint(error: Exception) -> str:
    """What is wrong with an address, and what to do."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return "no machine of that name is known; give an address with --host, like 127.0.0.1"
    if isinstance(error, OverflowError):
        return "ports go from 0 to 65535; give another with --http-port"
    hint = _HINTS.get(error.errno or 0) if isinstance(error, OSError) else None
    return hint or f"{error}; give another address with --host and --http-port"
