"""An inference whose client speaks gRPC: it ends in a response or an error, for whoever awaits it."""

from __future__ import annotations

import asyncio
from typing import Any

from modelpool.errors import BodyTooLarge
from modelpool.gateway.dataplane import DataPlane
from modelpool.gateway.grpc.codec import read_version, request_body, response
from modelpool.ports import Call
from modelpool.units import format_bytes


class GrpcCall(Call):
    """A call whose result is a future: a ModelInferResponse, or the error."""

    def __init__(self, model: str, version: int, body: bytes, json_bytes: int, done: asyncio.Future[Any]) -> None:
        super().__init__(model, version, body, json_bytes)
        self._done = done

    def answer(self, json_bytes: int, body: bytes | bytearray | memoryview) -> None:
        if self._done.done():
            return
        try:
            found = response(json_bytes, body)
        except Exception as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(found)

    def fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)


async def infer(controller: DataPlane, request: Any) -> Any:
    """The response to a ModelInferRequest; raises ModelpoolError. Whoever gives up waiting takes the request back."""
    json_bytes, body = request_body(request)
    limit_bytes = controller.settings.body_limit_bytes
    if len(body) > limit_bytes:
        raise BodyTooLarge(f"the request has {format_bytes(len(body))}, and the limit is {format_bytes(limit_bytes)}; send less at once")
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    call = GrpcCall(request.model_name, read_version(request.model_version), body, json_bytes, done)
    controller.submit(call)
    try:
        return await done
    except asyncio.CancelledError:
        controller.cancel(call)
        raise
