"""The methods of Triton's `GRPCInferenceService`. What they say is what the HTTP front says, in gRPC's form."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

from google.protobuf import json_format
from grpc import StatusCode
from grpc.aio import ServicerContext
from tritonclient.grpc import service_pb2 as pb

from modelpool.errors import InvalidRequest, ModelpoolError, NotCached, UnknownModel, Unsupported
from modelpool.gateway.dataplane import DataPlane
from modelpool.gateway.grpc.calls import infer
from modelpool.gateway.grpc.codec import read_parameters, read_version
from modelpool.gateway.grpc.status import status
from modelpool.gateway.grpc.streams import Stream
from modelpool.gateway.overrides import is_override, read_overrides
from modelpool.gateway.v2 import EXTENSIONS
from modelpool.protocol.messages import TensorMeta

Context = ServicerContext[Any, Any]
Method = Callable[["Service", Any, Context], Awaitable[Any]]


def _guarded(method: Method) -> Method:
    """A method whose errors end the call with a status."""

    @functools.wraps(method)
    async def guarded(self: Service, request: Any, context: Context) -> Any:
        try:
            return await method(self, request, context)
        except Exception as error:
            found = status(error)
            await context.abort(found.code, found.details, found.trailing)

    return guarded


def _refused(what: str, advice: str) -> Method:
    """A method that this version does not have."""

    async def refused(self: Service, request: Any, context: Context) -> NoReturn:
        found = status(Unsupported(f"{what} is not supported; {advice}"))
        await context.abort(found.code, found.details, found.trailing)

    return refused


def _empty(response: Callable[[], Any]) -> Method:
    """A method that answers that there is nothing."""

    async def empty(self: Service, request: Any, context: Context) -> Any:
        return response()

    return empty


_IN_MESSAGE = "send tensors in the request, which works for local servers and others alike"


class Service:
    """The methods by their names in the protocol."""

    def __init__(self, controller: DataPlane) -> None:
        self._controller = controller

    # --- the server ----------------------------------------------------------------------------------------------------------------
    @_guarded
    async def ServerLive(self, request: Any, context: Context) -> Any:
        """Whether the process answers."""
        return pb.ServerLiveResponse(live=self._controller.live())

    @_guarded
    async def ServerReady(self, request: Any, context: Context) -> Any:
        """Whether requests can be served."""
        return pb.ServerReadyResponse(ready=self._controller.ready())

    @_guarded
    async def ServerMetadata(self, request: Any, context: Context) -> Any:
        """Name, version, extensions."""
        return pb.ServerMetadataResponse(name="modelpool", version=self._controller.version, extensions=EXTENSIONS)

    # --- a model -------------------------------------------------------------------------------------------------------------------
    @_guarded
    async def ModelReady(self, request: Any, context: Context) -> Any:
        """Whether a request would be served, resident or loadable."""
        version = read_version(request.version)
        try:
            self._controller.check_model(request.name, version)
        except ModelpoolError:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=self._controller.model_ready(request.name, version))

    @_guarded
    async def ModelMetadata(self, request: Any, context: Context) -> Any:
        """Versions, inputs and outputs; loads nothing."""
        entry = self._entry(request)
        answer = pb.ModelMetadataResponse(name=entry.name, versions=[str(one.version) for one in entry.versions], platform=entry.platform)
        _add_tensors(answer.inputs, entry.inputs)
        _add_tensors(answer.outputs, entry.outputs)
        return answer

    @_guarded
    async def ModelConfig(self, request: Any, context: Context) -> Any:
        """The configuration; loads nothing."""
        return json_format.ParseDict({"config": self._entry(request).config}, pb.ModelConfigResponse(), ignore_unknown_fields=True)

    @_guarded
    async def ModelStatistics(self, request: Any, context: Context) -> Any:
        """Statistics of one model, or of all that were used."""
        rows = self._controller.statistics(request.name or None, read_version(request.version))
        return json_format.ParseDict({"model_stats": rows}, pb.ModelStatisticsResponse(), ignore_unknown_fields=True)

    def _entry(self, request: Any) -> Any:
        self._controller.check_model(request.name, read_version(request.version))
        return self._controller.entry(request.name)

    @_guarded
    async def ModelInfer(self, request: Any, context: Context) -> Any:
        """An inference."""
        return await infer(self._controller, request)

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        """Inferences of any models, answered in their order; one that fails says so in its place and ends nothing."""
        stream = Stream(self._controller, requests)
        try:
            async for answer in stream.answers():
                yield answer
        finally:
            await stream.close()

    # --- the repository ------------------------------------------------------------------------------------------------------------
    @_guarded
    async def RepositoryIndex(self, request: Any, context: Context) -> Any:
        """All models with their states."""
        answer = pb.RepositoryIndexResponse()
        for row in self._controller.index(request.ready):
            answer.models.add(name=row.name, version=row.version or "", state=row.state or "", reason=row.reason or "")
        return answer

    async def RepositoryModelLoad(self, request: Any, context: Context) -> Any:
        """Load a model now. A missing one is INTERNAL, as with Triton."""
        name = request.model_name
        try:
            given = read_parameters(request.parameters)
            for parameter in given:
                if not is_override(parameter):
                    raise InvalidRequest(f"unknown parameter '{parameter}'; known here: config, file:VERSION/NAME")
            await self._controller.load(name, overrides=read_overrides(given))
        except UnknownModel as error:
            text = f"failed to load '{name}', failed to poll from model repository: {error.message}"
            await context.abort(StatusCode.INTERNAL, text, status(error).trailing)
        except Exception as error:
            found = status(error, serving=False)
            await context.abort(found.code, found.details, found.trailing)
        return pb.RepositoryModelLoadResponse()

    @_guarded
    async def RepositoryModelUnload(self, request: Any, context: Context) -> Any:
        """Eject a model: a request loads it again. One that is unknown or not resident is no error, as with Triton."""
        for parameter in request.parameters:
            if parameter != "unload_dependents":
                raise InvalidRequest(f"unknown parameter '{parameter}'; known here: unload_dependents")
        with contextlib.suppress(NotCached, UnknownModel):
            await self._controller.eject(request.model_name)
        self._controller.drop_overrides(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    # --- what this version does not have -------------------------------------------------------------------------------------------
    SystemSharedMemoryStatus = _empty(pb.SystemSharedMemoryStatusResponse)
    SystemSharedMemoryRegister = _refused("shared memory", _IN_MESSAGE)
    SystemSharedMemoryUnregister = _empty(pb.SystemSharedMemoryUnregisterResponse)
    CudaSharedMemoryStatus = _empty(pb.CudaSharedMemoryStatusResponse)
    CudaSharedMemoryRegister = _refused("CUDA shared memory", _IN_MESSAGE)
    CudaSharedMemoryUnregister = _empty(pb.CudaSharedMemoryUnregisterResponse)
    TraceSetting = _refused("tracing", "`modelpool serve --record FILE` and `modelpool explain MODEL` show what happens")
    LogSettings = _refused("changing the log while the server runs", "start it with --set log_level=debug")


def _add_tensors(tensors: Any, metas: tuple[TensorMeta, ...] | None) -> None:
    for one in metas or ():
        tensors.add(name=one.name, datatype=one.datatype, shape=one.shape)
