"""The gRPC server: a port, the service, and an end in which what was accepted is finished."""

from __future__ import annotations

import grpc
from tritonclient.grpc import service_pb2_grpc

from modelpool.errors import SetupError
from modelpool.gateway.dataplane import DataPlane
from modelpool.gateway.grpc.service import Service

_HEAD_ROOM_BYTES = 1 << 20
"""What a message may have beside its tensors: names, shapes, parameters."""


class GrpcServer:
    """Listens on one address; port 0 takes any free one."""

    def __init__(self, controller: DataPlane, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._controller = controller
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def start(self) -> int:
        """Listen; returns the port. Raises SetupError where the address cannot be had."""
        most_bytes = self._controller.settings.body_limit_bytes + _HEAD_ROOM_BYTES
        server = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", 0),  # a port that another server has is an error, and not shared with it
                ("grpc.max_receive_message_length", most_bytes),
                ("grpc.max_send_message_length", -1),
            )
        )
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Service(self._controller), server)
        try:
            self.port = server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise SetupError(
                f"cannot listen on '{self.host}' port {self.port} for gRPC: another program uses it, or this machine lacks the address; "
                f"give another port with --grpc-port (0: any free one, off: none)"
            ) from error
        await server.start()
        self._server = server
        return self.port

    async def stop(self, limit_s: float = 5.0) -> None:
        """Take no more calls; those in progress end within the limit, or are cut."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(limit_s)
