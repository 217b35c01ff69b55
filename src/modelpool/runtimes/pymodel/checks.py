"""What goes into a model's run and what comes out of it, checked against its configuration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelpool.errors import InvalidRequest, InvalidTensor, ModelError, ModelpoolError
from modelpool.protocol.tensors import FlatTensor
from modelpool.runtimes import pb_utils
from modelpool.runtimes.base import Answer, AnyRequest, Outcome, Tensor
from modelpool.runtimes.pb_utils.types import NUMPY, bytes_array
from modelpool.runtimes.pymodel.config import Port

_RESERVED = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output")


class Checks:
    """Turns requests into what the model sees, and what it returns into outcomes."""

    def __init__(self, model: str, inputs: Sequence[Port], outputs: Sequence[Port], max_batch: int) -> None:
        self._model = model
        self._inputs = {port.name: port for port in inputs}
        self._outputs = {port.name: port for port in outputs}
        self._needed = frozenset(port.name for port in inputs if not port.optional)
        self._max_batch = max_batch
        self._ignored: set[str] = set()

    def admit(self, request: AnyRequest) -> tuple[int, pb_utils.InferenceRequest]:
        """Its rows (1 where the model has no batch dimension) and the model's view of it; raises InvalidRequest."""
        self._same_names(request)
        rows = None
        tensors: list[pb_utils.Tensor] = []
        for name, tensor in request.inputs.items():
            port = self._inputs[name]
            self._fits(port, tensor)
            given = tensor.array
            if self._max_batch:
                own = given.shape[0]
                if rows is not None and own != rows:
                    raise InvalidTensor(
                        f"batch size of input {name!r} of model {self._model!r} is {own}, that of other inputs {rows}; make them equal"
                    )
                rows = own
            array = given if port.reshape is None else _reshaped(given, port.dims, port.reshape, bool(self._max_batch))
            if array is None:
                raise InvalidTensor(
                    f"input {name!r} of model {self._model!r} cannot take its configured reshape {list(port.reshape or ())}"
                )
            tensors.append(pb_utils.Tensor.of(name, tensor.datatype, array))
        return (1 if rows is None else rows), self._seen_by_model(request, tensors)

    def _same_names(self, request: AnyRequest) -> None:
        given = request.inputs.keys()
        if unknown := [name for name in given if name not in self._inputs]:
            raise InvalidTensor(f"unexpected input {unknown[0]!r} for model {self._model!r}; its inputs are {_list(self._inputs)}")
        if not self._needed <= given:
            missing = [name for name in self._inputs if name in self._needed and name not in given]
            raise InvalidTensor(f"model {self._model!r} got input(s) {_list(given)} but lacks the required input(s) {_list(missing)}")
        if unknown := [name for name in request.wanted if name not in self._outputs]:
            raise InvalidTensor(
                f"unexpected output {unknown[0]!r} requested from model {self._model!r}; its outputs are {_list(self._outputs)}"
            )

    def _fits(self, port: Port, tensor: Tensor | FlatTensor) -> None:
        if tensor.datatype != port.datatype:
            raise InvalidTensor(f"data type of input {port.name!r} is {tensor.datatype}, but model {self._model!r} expects {port.datatype}")
        shape = tensor.shape
        expected = (-1, *port.dims) if self._max_batch else port.dims
        if len(shape) != len(expected) or any(dim not in (-1, size) for dim, size in zip(expected, shape, strict=True)):
            hint = "; the first dimension is the batch, since max_batch_size is not 0" if self._max_batch else ""
            raise InvalidTensor(
                f"unexpected shape for input {port.name!r} of model {self._model!r}: expected {_dims(expected)}, got {_dims(shape)}{hint}"
            )
        if self._max_batch and not 1 <= shape[0] <= self._max_batch:
            raise InvalidTensor(f"batch size of a request must be from 1 to {self._max_batch} for model {self._model!r}, got {shape[0]}")

    def _seen_by_model(self, request: AnyRequest, tensors: list[pb_utils.Tensor]) -> pb_utils.InferenceRequest:
        given = request.parameters
        return pb_utils.InferenceRequest(
            request_id=request.ident,
            correlation_id=given.get("sequence_id", 0),
            inputs=tensors,
            requested_output_names=request.wanted or tuple(self._outputs),
            model_name=self._model,
            model_version=request.version,
            flags=_flags(given),
            timeout=_number(given, "timeout"),
            parameters={name: value for name, value in given.items() if name not in _RESERVED},
            priority=_number(given, "priority"),
        )

    def outcomes(self, answer: Any, requests: Sequence[pb_utils.InferenceRequest], wanted: Sequence[tuple[str, ...]]) -> list[Outcome]:
        """One outcome for each request from what `execute` returned; wanted: the outputs that each client named."""
        if not isinstance(answer, list | tuple):
            return self._all(f"returned {_kind(answer)} instead of a list with one InferenceResponse for each request", requests)
        if len(answer) != len(requests):
            return self._all(f"returned {len(answer)} response(s) for {len(requests)} request(s); return one for each, in order", requests)
        return [self._outcome(response, names) for response, names in zip(answer, wanted, strict=True)]

    def _all(self, what: str, requests: Sequence[pb_utils.InferenceRequest]) -> list[Outcome]:
        return [ModelError(f"execute of model {self._model!r} {what}") for _ in requests]

    def _outcome(self, response: Any, wanted: tuple[str, ...]) -> Outcome:
        if not isinstance(response, pb_utils.InferenceResponse):
            hint = "; decoupled answers come with a later version" if response is None else ""
            return ModelError(f"execute of model {self._model!r} gave {_kind(response)} where an InferenceResponse belongs{hint}")
        error = response.error()
        if error is not None:
            return _told(error)
        try:
            outputs = self._answer({tensor.name(): tensor for tensor in response.output_tensors()}, wanted)
        except ModelpoolError as fault:
            return fault
        parameters = json.loads(response.parameters())
        return Answer(outputs, parameters) if parameters else outputs

    def _answer(self, tensors: dict[str, pb_utils.Tensor], wanted: tuple[str, ...]) -> dict[str, Tensor]:
        undeclared = [name for name in tensors if name not in self._outputs]
        missing = [name for name in self._outputs if name not in tensors]
        # An output may be left out, as on Triton; not one that was asked for, nor where a name was plainly misspelt.
        if lacking := [name for name in missing if name in wanted or (not wanted and (undeclared or not tensors))]:
            raise ModelError(f"the response of model {self._model!r} lacks output(s) {_list(lacking)}; it holds {_list(tensors)}")
        for name in undeclared:
            self._warn(name)
        return {
            name: Tensor(port.datatype, self._encoded(port, tensors[name]))
            for name, port in self._outputs.items()
            if name in tensors and (not wanted or name in wanted)
        }

    def _warn(self, name: str) -> None:
        if name not in self._ignored:
            self._ignored.add(name)
            pb_utils.Logger.log_warn(f"output {name!r} is left out of answers: the configuration does not declare it")

    def _encoded(self, port: Port, tensor: pb_utils.Tensor) -> NDArray[Any]:
        array = self._cast(port, tensor)
        if port.reshape is None:
            return array
        shaped = _reshaped(array, port.reshape, port.dims, bool(self._max_batch))
        if shaped is None:
            raise ModelError(
                f"output {port.name!r} of model {self._model!r} has shape {_dims(array.shape)}; its reshape expects {_dims(port.reshape)}"
            )
        return shaped

    def _cast(self, port: Port, tensor: pb_utils.Tensor) -> NDArray[Any]:
        array = tensor.array
        if tensor.datatype != "BYTES" and port.datatype in (tensor.datatype, "BF16" if tensor.datatype == "UINT16" else None):
            return _plain(array, array.dtype)
        if tensor.datatype == port.datatype:
            try:
                return bytes_array(array)
            except pb_utils.TritonModelException as error:
                raise ModelError(f"output {port.name!r} of model {self._model!r}: {error}") from error
        if "BYTES" not in (tensor.datatype, port.datatype) and "BF16" not in (tensor.datatype, port.datatype):
            wanted = np.dtype(NUMPY[port.datatype])
            with np.errstate(all="ignore"):
                cast = _plain(array, wanted)
            if np.can_cast(array.dtype, wanted, "same_kind") and _same_values(array, cast):
                return cast
        raise ModelError(
            f"output {port.name!r} of model {self._model!r} is {tensor.datatype} but its configuration says {port.data_type}; "
            f"convert it with .astype(pb_utils.triton_string_to_numpy({port.data_type!r}))"
        )


def _same_values(array: NDArray[Any], cast: NDArray[Any]) -> bool:
    """Whether only precision was lost: integers are the same, finite numbers are still finite."""
    if array.dtype.kind in "iu" and cast.dtype.kind in "iu":
        return bool(np.array_equal(array, cast))
    return bool(np.array_equal(np.isfinite(array), np.isfinite(cast)))


def _plain(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A copy: the model may write its next answer into the same array before this one is sent."""
    return array.astype(dtype.newbyteorder("="), order="C", copy=True)


def _reshaped(array: NDArray[Any], given: Sequence[int], target: Sequence[int], batched: bool) -> NDArray[Any] | None:
    """From dims `given` to dims `target`, -1 matched in order; None where that is impossible."""
    shape = array.shape[batched:]
    if len(shape) != len(given):
        return None
    free = iter([size for size, dim in zip(shape, given, strict=True) if dim == -1])
    try:
        return array.reshape((*array.shape[:batched], *(next(free, -1) if dim == -1 else dim for dim in target)))
    except ValueError:
        return None


def _told(error: pb_utils.TritonError) -> ModelpoolError:
    message = error.message() or "the model answered with an error that has no message"
    return InvalidRequest(message) if error.code() == pb_utils.TritonError.INVALID_ARG else ModelError(message)


def _flags(parameters: dict[str, Any]) -> int:
    start = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START if parameters.get("sequence_start") else 0
    return start | (pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END if parameters.get("sequence_end") else 0)


def _number(parameters: dict[str, Any], name: str) -> int:
    value = parameters.get(name, 0)
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"parameter {name!r} must be a whole number, got {value!r}") from error


def _kind(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _list(names: Any) -> str:
    return "[" + ", ".join(repr(str(name)) for name in names) + "]"


def _dims(shape: Sequence[int]) -> str:
    return "[" + ",".join(str(size) for size in shape) + "]"
