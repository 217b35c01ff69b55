"""Triton's model control over gRPC: load, unload, index, statistics. Errors of the transport become ours here and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from modelpool.errors import LoadFailed, ModelpoolError

FILE_PREFIX = "file:"
_QUESTION_S = 5.0
_MOST_MESSAGE_BYTES = 1 << 30
"""Longest message, for the files that a load may carry."""


class Unreachable(ModelpoolError):
    """The server does not answer."""

    code = "unavailable"


class IndexEntry(NamedTuple):
    """One version of a model as the server sees it; version and state are empty for one that was never loaded."""

    name: str
    version: str
    state: str
    reason: str


class Control:
    """A connection for control to one server; `close` it at the end."""

    def __init__(self, address: str) -> None:
        import grpc
        from tritonclient.grpc import service_pb2, service_pb2_grpc

        self._grpc = grpc
        self._messages = service_pb2
        self._channel = grpc.aio.insecure_channel(
            address,
            options=[
                ("grpc.max_send_message_length", _MOST_MESSAGE_BYTES),
                ("grpc.max_receive_message_length", _MOST_MESSAGE_BYTES),
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
            ],
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def close(self) -> None:
        """End the connection; what is under way fails."""
        await self._channel.close(None)

    async def _ask(self, method: str, request: Any, timeout_s: float = _QUESTION_S) -> Any:
        """The answer. Raises Unreachable where the server does not answer, ModelpoolError with its words where it refuses."""
        try:
            return await getattr(self._stub, method)(request, timeout=timeout_s)
        except self._grpc.aio.AioRpcError as error:
            codes = self._grpc.StatusCode
            text = error.details() or error.code().name
            if error.code() in (codes.UNAVAILABLE, codes.DEADLINE_EXCEEDED, codes.CANCELLED, codes.UNKNOWN):
                raise Unreachable(f"Triton does not answer: {text}") from error
            raise ModelpoolError(text) from error

    async def live(self) -> bool:
        """Whether the server answers."""
        try:
            return bool((await self._ask("ServerLive", self._messages.ServerLiveRequest())).live)
        except ModelpoolError:
            return False

    async def index(self) -> list[IndexEntry]:
        """All that the server knows of its repository. Raises Unreachable."""
        answer = await self._ask("RepositoryIndex", self._messages.RepositoryIndexRequest())
        return [IndexEntry(one.name, one.version, one.state, one.reason) for one in answer.models]

    async def load(self, model: str, overrides: Mapping[str, Any], timeout_s: float) -> None:
        """Load a model with what was sent inline for it. Raises LoadFailed with the server's reason, Unreachable."""
        request = self._messages.RepositoryModelLoadRequest(model_name=model)
        for name, value in overrides.items():
            if name.startswith(FILE_PREFIX):
                request.parameters[name].bytes_param = value
            else:
                request.parameters[name].string_param = value if isinstance(value, str) else json.dumps(value)
        try:
            await self._ask("RepositoryModelLoad", request, timeout_s)
        except Unreachable:
            raise
        except ModelpoolError as error:
            raise LoadFailed(f"load failed for model '{model}': {error.message.strip()}") from error

    async def unload(self, model: str, timeout_s: float) -> None:
        """Begin an unload; the index says when it is over. Raises Unreachable."""
        await self._ask("RepositoryModelUnload", self._messages.RepositoryModelUnloadRequest(model_name=model), timeout_s)

    async def memory_usage(self, model: str) -> dict[str, int]:
        """What the server's statistics say of a model's memory, by kind (`CPU`, `GPU`); mostly empty. Raises ModelpoolError."""
        answer = await self._ask("ModelStatistics", self._messages.ModelStatisticsRequest(name=model))
        found: dict[str, int] = {}
        for version in answer.model_stats:
            for usage in version.memory_usage:
                found[usage.type] = found.get(usage.type, 0) + usage.byte_size
        return found
