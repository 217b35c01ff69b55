"""Requests that a model sends to another (business logic scripting): from the model's view to the protocol and back."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from modelpool.errors import InvalidRequest, ModelpoolError, NotFound, Refused, Unsupported
from modelpool.protocol.inference import EncodedBody, decode_response, encode_request
from modelpool.protocol.tensors import Tensor as WireTensor
from modelpool.runtimes import calls
from modelpool.runtimes.pb_utils.errors import TritonError, TritonModelException
from modelpool.runtimes.pb_utils.tensors import Tensor
from modelpool.runtimes.pb_utils.types import bytes_array

if TYPE_CHECKING:
    from modelpool.runtimes.pb_utils.messages import InferenceRequest, InferenceResponse

_CODES: tuple[tuple[type[ModelpoolError], int], ...] = (
    (NotFound, TritonError.NOT_FOUND),
    (InvalidRequest, TritonError.INVALID_ARG),
    (Unsupported, TritonError.UNSUPPORTED),
    (Refused, TritonError.UNAVAILABLE),
)


def run(request: InferenceRequest, timeout_us: int) -> InferenceResponse:
    """Send the request and wait for its response."""
    future = _begin(request)
    try:
        return _response(future.result(timeout_us / 1e6 if timeout_us > 0 else None))
    except ModelpoolError as error:
        return _failed(error)
    except TimeoutError:
        return _late(request, timeout_us)


async def run_async(request: InferenceRequest, timeout_us: int) -> InferenceResponse:
    """The same on the model's event loop."""
    future = _begin(request)
    try:
        async with asyncio.timeout(timeout_us / 1e6 if timeout_us > 0 else None):
            return _response(await asyncio.wrap_future(future))
    except ModelpoolError as error:
        return _failed(error)
    except TimeoutError:
        return _late(request, timeout_us)


def _begin(request: InferenceRequest) -> Future[calls.Reply]:
    if not request.model_name():
        raise TritonModelException("a request to another model needs its name: InferenceRequest(model_name=..)")
    try:
        return calls.send(request.model_name(), max(0, request.model_version()), _encoded(request))
    except ModelpoolError as error:
        raise TritonModelException(error.message) from error


def _encoded(request: InferenceRequest) -> EncodedBody:
    inputs = {
        tensor.name(): WireTensor(tensor.datatype, bytes_array(tensor.array) if tensor.datatype == "BYTES" else tensor.array)
        for tensor in request.inputs()
    }
    parameters: dict[str, Any] = dict(json.loads(request.parameters()))
    if request.correlation_id():
        parameters["sequence_id"] = request.correlation_id()
        parameters["sequence_start"] = bool(request.flags() & 1)
        parameters["sequence_end"] = bool(request.flags() & 2)
    if request.timeout():
        parameters["timeout"] = request.timeout()
    if request.priority():
        parameters["priority"] = request.priority()
    return encode_request(inputs, request.requested_output_names(), parameters, request.request_id())


def _response(reply: calls.Reply) -> InferenceResponse:
    from modelpool.runtimes.pb_utils.messages import InferenceResponse

    answer = decode_response(reply.body, reply.json_bytes)
    return InferenceResponse([Tensor.of(name, tensor.datatype, tensor.array) for name, tensor in answer.outputs.items()])


def _failed(error: ModelpoolError) -> InferenceResponse:
    from modelpool.runtimes.pb_utils.messages import InferenceResponse

    code = next((code for kind, code in _CODES if isinstance(error, kind)), TritonError.INTERNAL)
    return InferenceResponse(error=TritonError(error.message, code))


def _late(request: InferenceRequest, timeout_us: int) -> InferenceResponse:
    from modelpool.runtimes.pb_utils.messages import InferenceResponse

    message = f"the call to model {request.model_name()!r} took longer than its execution_timeout of {timeout_us} us"
    return InferenceResponse(error=TritonError(message, TritonError.UNAVAILABLE))
