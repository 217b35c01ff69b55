"""Between gRPC's messages and the bodies that workers and Triton servers read: JSON, followed by binary tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from modelpool.errors import InvalidRequest, InvalidTensor, Unsupported
from modelpool.protocol.datatypes import DATATYPES
from modelpool.protocol.elements import to_binary
from modelpool.protocol.inference import decode_response
from modelpool.protocol.tensors import Tensor, object_array
from modelpool.repository.layouts import MAX_VERSION

_encode = msgspec.json.Encoder().encode
_LARGEST_DIMENSION = (1 << 31) - 1
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field that holds a type's elements; types that are not here come as raw bytes only."""


class _OutputParameters(msgspec.Struct):
    binary_data_size: int | None = None


class _Output(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    parameters: _OutputParameters | None = None


class _Answer(msgspec.Struct):
    outputs: list[_Output]
    model_name: str = ""
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Any] = {}


_decode_answer = msgspec.json.Decoder(_Answer).decode


# --- requests --------------------------------------------------------------------------------------------------------------------
def read_version(text: str) -> int:
    """A model's version, 0 where none is named. Raises InvalidRequest."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest(f"version '{text[:40]}' is not a number; versions are 1, 2, ..")
    if len(text) > 20 or int(text) > MAX_VERSION:
        raise InvalidRequest(f"version {text[:40]} is too large; the largest is {MAX_VERSION}")
    return int(text)


def read_parameters(given: Any) -> dict[str, Any]:
    """Parameters of a request, an input or an output by name."""
    return {name: getattr(value, value.WhichOneof("parameter_choice") or "string_param") for name, value in given.items()}


def request_body(request: Any) -> tuple[int, bytes]:
    """The body of a ModelInferRequest and the size of its JSON. All outputs are asked for as binary.

    Raises InvalidRequest (InvalidTensor where a tensor is at fault), Unsupported for shared memory.
    """
    inputs = request.inputs
    raw = request.raw_input_contents
    if raw and len(raw) != len(inputs):
        raise InvalidRequest(
            f"the request has {len(inputs)} inputs, but raw_input_contents has {len(raw)} elements; send one for each input, or none"
        )
    heads = []
    parts: list[bytes] = [b""]
    for place, one in enumerate(inputs):
        _check_shape(one)
        if one.parameters:
            _refuse_shared_memory(f"input {one.name!r}", one.parameters)
        if raw and one.HasField("contents"):
            raise InvalidTensor(f"input {one.name!r} has contents beside raw_input_contents; send one of them")
        part = raw[place] if raw else _binary(one)
        parts.append(part)
        head = {"name": one.name, "datatype": one.datatype, "shape": list(one.shape), "parameters": {"binary_data_size": len(part)}}
        heads.append(head)
    message: dict[str, Any] = {"inputs": heads, "parameters": {**read_parameters(request.parameters), "binary_data_output": True}}
    if request.id:
        message["id"] = request.id
    if request.outputs:
        message["outputs"] = [_wanted(one) for one in request.outputs]
    parts[0] = _encode(message)
    return len(parts[0]), b"".join(parts)


def _check_shape(one: Any) -> None:
    for size in one.shape:
        if not 0 <= size <= _LARGEST_DIMENSION:
            raise InvalidTensor(f"input {one.name!r} has the shape {list(one.shape)!s:.200}; sizes go from 0 to {_LARGEST_DIMENSION}")


def _refuse_shared_memory(where: str, parameters: Any) -> None:
    if "shared_memory_region" in parameters:
        raise Unsupported(f"{where} lies in shared memory, which is not supported; send its data in the request")


def _wanted(output: Any) -> dict[str, Any]:
    _refuse_shared_memory(f"requested output {output.name!r}", output.parameters)
    parameters = read_parameters(output.parameters)
    return {"name": output.name, "parameters": parameters} if parameters else {"name": output.name}


def _binary(one: Any) -> bytes:
    """The elements of an input as binary data."""
    field = _CONTENTS.get(one.datatype)
    if field is None:
        known = "" if one.datatype in DATATYPES else f"; known types are {', '.join(DATATYPES)}"
        raise InvalidTensor(f"input {one.name!r} of type {one.datatype!r:.40} must be sent in raw_input_contents{known}")
    other = [name.name for name, value in one.contents.ListFields() if name.name != field and len(value)]
    if other:
        raise InvalidTensor(f"input {one.name!r} of type {one.datatype} has its elements in {other[0]}; they belong in {field}")
    values = getattr(one.contents, field)
    dtype = DATATYPES[one.datatype].dtype
    if one.datatype == "BYTES":
        return bytes(to_binary(Tensor("BYTES", object_array(list(values)))))
    try:
        return np.array(values, dtype).tobytes()
    except OverflowError as error:
        raise InvalidTensor(f"input {one.name!r} has a number that does not fit {one.datatype}") from error


# --- answers ---------------------------------------------------------------------------------------------------------------------
def response(json_bytes: int, body: bytes | bytearray | memoryview) -> Any:
    """A ModelInferResponse of an answer's body."""
    head = _decode_answer(body if json_bytes < 0 else memoryview(body)[:json_bytes])
    answer = pb.ModelInferResponse(model_name=head.model_name, model_version=head.model_version, id=head.id)
    for name, value in head.parameters.items():
        _set_parameter(answer.parameters[name], value)
    for one in head.outputs:
        answer.outputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
    answer.raw_output_contents.extend(_raw(head.outputs, json_bytes, body))
    return answer


def _raw(outputs: list[_Output], json_bytes: int, body: bytes | bytearray | memoryview) -> Iterable[bytes]:
    sizes = [one.parameters.binary_data_size if one.parameters is not None else None for one in outputs]
    if json_bytes < 0 or None in sizes:
        return [bytes(to_binary(tensor)) for tensor in decode_response(body, json_bytes).outputs.values()]
    view = memoryview(body)
    parts = []
    at = json_bytes
    for size in sizes:
        parts.append(bytes(view[at : at + (size or 0)]))
        at += size or 0
    return parts


def _set_parameter(parameter: Any, value: Any) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        if -(1 << 63) <= value < 1 << 63:
            parameter.int64_param = value
        else:
            parameter.uint64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = str(value)
