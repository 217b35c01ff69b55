"""The servers that clients reach: HTTP, and gRPC where it is wanted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from modelpool.controller.controller import Controller
from modelpool.gateway.server import HttpServer
from modelpool.settings.model import OFF

if TYPE_CHECKING:
    from modelpool.gateway.grpc.server import GrpcServer
    from modelpool.settings import Settings


class Servers:
    """They begin and end together."""

    def __init__(self, controller: Controller, settings: Settings) -> None:
        self._http = HttpServer(controller, settings.host, settings.http_port)
        self._grpc: GrpcServer | None = None
        if settings.grpc_port != OFF:
            from modelpool.gateway.grpc.server import GrpcServer

            self._grpc = GrpcServer(controller, settings.host, settings.grpc_port)

    async def start(self) -> None:
        """Listen. Raises SetupError where an address cannot be had."""
        await self._http.start()
        if self._grpc is not None:
            await self._grpc.start()

    async def stop(self, limit_s: float) -> None:
        """Take nothing new, and let what is in progress end within the limit."""
        ending = [self._http.stop(limit_s)]
        if self._grpc is not None:
            ending.append(self._grpc.stop(limit_s))
        await asyncio.gather(*ending)

    @property
    def url(self) -> str:
        """Where HTTP clients reach us."""
        return self._http.url

    @property
    def grpc_address(self) -> str | None:
        """Where gRPC clients reach us; None where they cannot."""
        return None if self._grpc is None else self._grpc.address

    def connections(self) -> int:
        """HTTP connections that are open."""
        return len(self._http.connections())
