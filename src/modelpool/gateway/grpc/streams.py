"""One ModelStreamInfer: its requests run side by side, and are answered in the order in which they came."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from modelpool.errors import ModelpoolError
from modelpool.gateway.dataplane import DataPlane
from modelpool.gateway.errors import as_modelpool_error
from modelpool.gateway.grpc.calls import infer
from modelpool.gateway.grpc.status import details_of

MOST_AT_ONCE = 64
"""Requests of one stream that are not answered yet; then no more are read."""
_WANTS_FINAL = "triton_enable_empty_final_response"
_IS_FINAL = "triton_final_response"


class Stream:
    """Reads requests, and gives their answers."""

    def __init__(self, controller: DataPlane, requests: AsyncIterator[Any]) -> None:
        self._controller = controller
        self._requests = requests
        self._running: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue(MOST_AT_ONCE)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        try:
            async for request in self._requests:
                task = asyncio.ensure_future(self._answer(request))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                await self._running.put(task)
        finally:
            await self._running.put(None)

    async def _answer(self, request: Any) -> Any:
        final = request.parameters.pop(_WANTS_FINAL, None)
        try:
            answer = await infer(self._controller, request)
        except Exception as error:
            return _failed(request, as_modelpool_error(error))
        if final is not None and final.bool_param:
            answer.parameters[_IS_FINAL].bool_param = True
        return pb.ModelStreamInferResponse(infer_response=answer)

    async def answers(self) -> AsyncIterator[Any]:
        """Answers and errors, one for each request."""
        while (task := await self._running.get()) is not None:
            yield await task

    async def close(self) -> None:
        """Take back what is not answered."""
        going = [self._reading, *self._tasks]
        for task in going:
            task.cancel()
        for one in going:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await one


def _failed(request: Any, error: ModelpoolError) -> Any:
    answer = pb.ModelStreamInferResponse(error_message=details_of(error))
    answer.infer_response.id = request.id
    answer.infer_response.model_name = request.model_name
    answer.infer_response.model_version = request.model_version
    return answer
