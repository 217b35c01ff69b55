"""Requests and responses as Python models see them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from modelpool.runtimes.pb_utils import bls
from modelpool.runtimes.pb_utils.errors import TritonError, TritonModelException, later
from modelpool.runtimes.pb_utils.tensors import Tensor

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_CPU_PINNED = 1
TRITONSERVER_MEMORY_GPU = 2

_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class PreferredMemory:
    """Where the answer of a call to another model should lie. Kept for models that name it; tensors are always in host memory."""

    preferred_memory: int
    preferred_device_id: int = 0


class InferenceTrace:
    """Stands for a trace; requests are not traced."""

    __slots__ = ()


class InferenceRequest:
    """A request to the model, or one that the model wants to send to another."""

    __slots__ = (
        "_correlation_id",
        "_flags",
        "_inputs",
        "_model_name",
        "_model_version",
        "_outputs",
        "_parameters",
        "_preferred_memory",
        "_priority",
        "_request_id",
        "_timeout_us",
    )

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: dict[str, Any] | str | None = None,
        priority: int = 0,
    ) -> None:
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._outputs = list(requested_output_names)
        self._model_name = model_name
        self._model_version = model_version
        self._flags = flags
        self._timeout_us = timeout
        self._preferred_memory = preferred_memory
        self._parameters = parameters or {}
        self._priority = priority

    def inputs(self) -> list[Tensor]:
        """Its input tensors; optional ones only where the client gave them."""
        return self._inputs

    def request_id(self) -> str:
        """The client's own id for it, empty where it gave none."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """The sequence it belongs to, 0 where it belongs to none."""
        return self._correlation_id

    def requested_output_names(self) -> list[str]:
        """The outputs that are wanted: all of the model's where the client named none."""
        return self._outputs

    def model_name(self) -> str:
        """The model that it is for."""
        return self._model_name

    def model_version(self) -> int:
        """The version that it is for."""
        return self._model_version

    def flags(self) -> int:
        """Bits: 1 starts a sequence, 2 ends one."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Set the bits."""
        self._flags = flags

    def timeout(self) -> int:
        """The client's limit in microseconds, 0 where it gave none."""
        return self._timeout_us

    def priority(self) -> int:
        """The client's priority, 0 where it gave none."""
        return self._priority

    def parameters(self) -> str:
        """Its own parameters as a JSON object."""
        return self._parameters if isinstance(self._parameters, str) else json.dumps(self._parameters)

    def preferred_memory(self) -> PreferredMemory | None:
        """Where its answer should lie."""
        return self._preferred_memory

    def trace(self) -> InferenceTrace:
        """A trace that records nothing."""
        return InferenceTrace()

    def is_cancelled(self) -> bool:
        """Always false: a request that reached the model runs to its end."""
        return False

    def set_release_flags(self, flags: int) -> None:
        """Only the ordinary release is possible."""
        if flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
            later("iterative sequences (rescheduled requests) are")

    def get_response_sender(self) -> NoReturn:
        """Refused: raises TritonModelException."""
        raise TritonModelException("decoupled answers come with a later version of modelpool; return the responses from execute()")

    def exec(self, decoupled: bool = False, execution_timeout: int = 0) -> Any:
        """Run the request on the model that it names, and wait: its InferenceResponse, which may hold an error.

        decoupled: an iterator over its responses instead; execution_timeout: in microseconds, 0 for the server's own limit.
        """
        response = bls.run(self, execution_timeout)
        return iter([response]) if decoupled else response

    async def async_exec(self, decoupled: bool = False, execution_timeout: int = 0) -> Any:
        """The same, to be awaited; an asynchronous iterator where decoupled."""
        response = await bls.run_async(self, execution_timeout)
        return _each(response) if decoupled else response


async def _each(response: InferenceResponse) -> AsyncIterator[InferenceResponse]:
    yield response


class InferenceResponse:
    """What a model answers to one request: tensors, or an error."""

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        if error is not None and not isinstance(error, TritonError):
            raise TritonModelException(f"the error of a response must be a TritonError, not {type(error).__name__}")
        self._tensors = list(output_tensors)
        self._error = error
        self._parameters = _checked_parameters(parameters)
        for tensor in self._tensors:
            if not isinstance(tensor, Tensor):
                raise TritonModelException(
                    f"output_tensors holds {type(tensor).__name__}; wrap each output in pb_utils.Tensor(name, array)"
                )

    def output_tensors(self) -> list[Tensor]:
        """Its tensors; they mean nothing where it has an error."""
        return self._tensors

    def has_error(self) -> bool:
        """Whether it is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Its error."""
        return self._error

    def parameters(self) -> str:
        """Its own parameters as a JSON object."""
        return json.dumps(self._parameters)


def _checked_parameters(parameters: object) -> dict[str, Any]:
    """A response's parameters: Triton takes what its protocol has a word for."""
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise TritonModelException(f"the parameters of a response must be a dict, got {type(parameters)}")
    for name, value in parameters.items():
        if not isinstance(name, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(name)}")
        if not isinstance(value, bool | int | str):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
        if isinstance(value, int) and not -_INT64 <= value < _INT64:
            raise TritonModelException(f"parameter {name!r} of a response is {value}, which no 64 bits hold; give it as a str")
    return dict(parameters)


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The input of that name, None where the request has none."""
    return next((tensor for tensor in inference_request.inputs() if tensor.name() == name), None)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The output of that name, None where the response has none."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)
