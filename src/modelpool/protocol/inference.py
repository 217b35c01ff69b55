"""Inference requests and answers of the Open Inference Protocol as HTTP bodies: JSON, followed by binary tensors where the JSON says so.

`json_bytes` is the size of the JSON at the beginning of a body; -1: all of it is JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from modelpool.errors import InvalidRequest, InvalidTensor, Unsupported
from modelpool.protocol import elements
from modelpool.protocol.datatypes import datatype_of
from modelpool.protocol.jsonfaults import json_fault
from modelpool.protocol.tensors import FlatTensor, InferenceRequest, Tensor, object_array
from modelpool.units import parse_duration

Body: TypeAlias = bytes | bytearray | memoryview
T = TypeVar("T")

_NO_DATA = msgspec.Raw()


# --- what the JSON may be --------------------------------------------------------------------------------------------------------
class _TensorParameters(msgspec.Struct):
    binary_data_size: Annotated[int, msgspec.Meta(ge=0)] | None = None
    shared_memory_region: str | None = None


class _TensorJson(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: msgspec.Raw = _NO_DATA
    parameters: _TensorParameters | None = None


class FlatRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What most requests are: flat lists of floats, and nothing else. Others are read by the general way."""

    inputs: list[FlatTensor]
    id: str = ""


class _WantedParameters(msgspec.Struct):
    binary_data: bool | None = None
    classification: int = 0
    shared_memory_region: str | None = None


class _WantedJson(msgspec.Struct):
    name: str
    parameters: _WantedParameters | None = None


class _RequestJson(msgspec.Struct):
    inputs: list[_TensorJson]
    outputs: list[_WantedJson] = []
    id: str | int = ""
    parameters: dict[str, Any] = {}


class _AnswerJson(msgspec.Struct):
    outputs: list[_TensorJson]
    model_name: str = ""
    model_version: str = ""
    id: str = ""


class _PeekedParameters(msgspec.Struct):
    timeout: Any = None
    keep_alive: int | float | str | None = None


class _PeekedJson(msgspec.Struct):
    parameters: _PeekedParameters | None = None


class _JsonTensor(msgspec.Struct):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[Any] | msgspec.Raw


class _BinaryTensor(msgspec.Struct):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, int]


class _AnswerOut(msgspec.Struct, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[_JsonTensor | _BinaryTensor]
    id: str = ""
    parameters: Mapping[str, Any] = {}


class _RequestOut(msgspec.Struct, omit_defaults=True):
    inputs: list[_BinaryTensor]
    parameters: dict[str, Any]
    outputs: list[dict[str, str]] = []
    id: str = ""


_prod = math.prod
_NO_PARAMETERS: dict[str, Any] = {}
_encode = msgspec.json.Encoder().encode
_flat_decoder = msgspec.json.Decoder(FlatRequest)
_FLAT_MOST_BYTES = 1 << 16
"""Longer bodies are not tried as simple ones first: reading them twice would cost."""
_request_decoder = msgspec.json.Decoder(_RequestJson)
_answer_decoder = msgspec.json.Decoder(_AnswerJson)
_peek_decoder = msgspec.json.Decoder(_PeekedJson)
_LONGEST_US = 1e18
"""Longer time limits are as good as this one; JSON has numbers beyond all floats."""


class Wanted(NamedTuple):
    """How a client wants its outputs. binary: as binary data rather than JSON; named: the outputs for which it said so itself."""

    binary: bool = False
    named: Mapping[str, bool] = {}


ALL_JSON = Wanted()


class EncodedBody(NamedTuple):
    """A body in parts, to be written one after the other; large binary tensors are views of their arrays."""

    json_bytes: int
    parts: list[bytes | memoryview]
    size_bytes: int

    def joined(self) -> bytes:
        """The body in one piece."""
        return b"".join(self.parts)


# --- requests --------------------------------------------------------------------------------------------------------------------
def decode_request(body: Body, json_bytes: int, version: int) -> tuple[InferenceRequest, Wanted]:
    """The request in a body, and how its outputs are wanted. Binary tensors are views of `body` where their bytes are aligned.

    Raises InvalidRequest (InvalidTensor where a tensor is at fault), or Unsupported for what this version does not do.
    """
    if json_bytes < 0 and len(body) < _FLAT_MOST_BYTES:
        flat = _decode_flat(body, version)
        if flat is not None:
            return flat, ALL_JSON
    head = _head(body, json_bytes)
    message = _decoded(_request_decoder, head, "an inference request")
    inputs = _tensors(message.inputs, "input", body, json_bytes)
    wanted: tuple[str, ...] = ()
    form = ALL_JSON
    parameters = message.parameters
    if message.outputs:
        wanted = tuple([output.name for output in message.outputs])
        form = Wanted(False, _named_forms(message.outputs))
    if "binary_data_output" in parameters:
        form = Wanted(parameters["binary_data_output"] is True, form.named)
    ident = message.id
    return InferenceRequest(version, inputs, wanted, parameters, ident if type(ident) is str else str(ident)), form


def decode_flat(body: Body, *, whole: bool = True) -> FlatRequest | None:
    """A simple request, read in one pass; None where only the general way can read it, or say what is wrong.

    whole: its lists must have as many numbers as its shapes say.
    """
    try:
        message = _flat_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if whole and [1 for one in message.inputs if len(one.data) != _prod(one.shape)]:
        return None
    return message


def _decode_flat(body: Body, version: int) -> InferenceRequest | None:
    message = decode_flat(body)
    if message is None:
        return None
    inputs = {one.name: one for one in message.inputs}
    if len(inputs) < len(message.inputs):
        return None
    return InferenceRequest(version, inputs, (), _NO_PARAMETERS, message.id)


def _head(body: Body, json_bytes: int) -> Body:
    if json_bytes < 0:
        return body
    if json_bytes > len(body):
        raise InvalidRequest(f"Inference-Header-Content-Length is {json_bytes}, but the body has {len(body)} bytes in all; correct it")
    if json_bytes == 0:
        raise Unsupported("requests without JSON (Inference-Header-Content-Length: 0) are not supported; name the inputs in JSON")
    return memoryview(body)[:json_bytes]


def _decoded(decoder: msgspec.json.Decoder[T], head: Body, what: str) -> T:
    try:
        try:
            return decoder.decode(head)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            spelt = _non_finite_as_strings(head)
            if spelt is None:
                raise
            return decoder.decode(spelt)
    except RecursionError as error:
        raise InvalidRequest(f"the body is not {what}: its JSON is nested too deep") from error
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the body is not {what}: {str(error).replace('`', chr(39))}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not JSON: {json_fault(error, head)}") from error


def _non_finite_as_strings(head: Body) -> bytes | None:
    """JSON with NaN and Infinity, which Triton's clients write, as JSON in which they are strings; None where that is not its fault."""
    text = bytes(head)
    if b"NaN" not in text and b"Infinity" not in text:
        return None
    try:
        return _encode(json.loads(text, parse_constant=str))
    except ValueError:
        return None


def _tensors(found: list[_TensorJson], side: str, body: Body, json_bytes: int) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    at = json_bytes if json_bytes >= 0 else len(body)
    for one in found:
        name = one.name
        where = f"{side} {name!r}"
        if name in tensors:
            raise InvalidTensor(f"{where} is there twice; send it once")
        size = None
        if one.parameters is not None:
            size = one.parameters.binary_data_size
            _refuse_shared_memory(where, one.parameters.shared_memory_region)
        if size is None:
            if one.data is _NO_DATA:
                raise InvalidTensor(f'{where} has no data; give it "data", or the parameter binary_data_size and bytes after the JSON')
            array = elements.from_json(where, one.datatype, one.shape, one.data)
        else:
            array = _binary(where, one, size, body, at, json_bytes)
            at += size
        tensors[name] = Tensor(one.datatype, array)
    if at != len(body):
        raise InvalidRequest(f"{len(body) - at} bytes are left over after the last binary {side}; make the sizes add up to the body's")
    return tensors


def _binary(where: str, one: _TensorJson, size: int, body: Body, at: int, json_bytes: int) -> NDArray[Any]:
    if one.data is not _NO_DATA:
        raise InvalidTensor(f"{where} has both data and binary_data_size; send one of them")
    if json_bytes < 0:
        raise InvalidRequest(f"{where} has binary_data_size, but the header Inference-Header-Content-Length is missing")
    if at + size > len(body):
        raise InvalidTensor(f"{where} has a binary_data_size of {size}, but only {len(body) - at} bytes are left of the body")
    return elements.from_binary(where, one.datatype, one.shape, memoryview(body)[at : at + size])


def _named_forms(outputs: list[_WantedJson]) -> dict[str, bool]:
    forms: dict[str, bool] = {}
    seen: set[str] = set()
    for output in outputs:
        where = f"requested output {output.name!r}"
        if output.name in seen:
            raise InvalidTensor(f"{where} is there twice; ask for it once")
        seen.add(output.name)
        parameters = output.parameters
        if parameters is None:
            continue
        _refuse_shared_memory(where, parameters.shared_memory_region)
        if parameters.classification:
            raise Unsupported(f"{where} asks for classification, which is not supported; take the whole output and sort it")
        if parameters.binary_data is not None:
            forms[output.name] = parameters.binary_data
    return forms


def _refuse_shared_memory(where: str, region: str | None) -> None:
    if region is not None:
        raise Unsupported(f"{where} lies in shared memory ({region!r}), which is not supported; send its data in the body")


def encode_request(
    inputs: Mapping[str, ArrayLike | Tensor],
    outputs: Iterable[str] = (),
    parameters: Mapping[str, Any] | None = None,
    ident: str = "",
) -> EncodedBody:
    """A request with binary tensors that asks for binary outputs. inputs: by name; outputs: those wanted (none: all).

    Raises InvalidTensor for arrays that have no counterpart in the protocol.
    """
    heads: list[_BinaryTensor] = []
    parts: list[bytes | memoryview] = [b""]
    for name, value in inputs.items():
        tensor = value if isinstance(value, Tensor) else as_tensor(name, value)
        part = elements.to_binary(tensor)
        parts.append(part)
        heads.append(_BinaryTensor(name, tensor.datatype, tensor.array.shape, {"binary_data_size": len(part)}))
    wanted = [{"name": name} for name in outputs]
    parts[0] = _encode(_RequestOut(heads, {**(parameters or {}), "binary_data_output": True}, wanted, ident))
    return EncodedBody(len(parts[0]), parts, sum(map(len, parts)))


def as_tensor(name: str, value: ArrayLike) -> Tensor:
    """An array as a tensor: text becomes UTF-8. Raises InvalidTensor for a type that the protocol lacks."""
    array = np.asarray(value)
    datatype = datatype_of(array.dtype)
    if datatype == "BF16":
        return Tensor(datatype, array.view(np.uint16))
    if datatype == "BYTES":
        items = [_as_bytes(name, item) for item in array.ravel().tolist()]
        return Tensor(datatype, object_array(items).reshape(array.shape))
    return Tensor(datatype, array.astype(array.dtype.newbyteorder("="), copy=False))


def _as_bytes(name: str, item: object) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)
    raise InvalidTensor(f"input {name!r} has an element of type {type(item).__name__}; give numbers of one type and size, str or bytes")


# --- answers ---------------------------------------------------------------------------------------------------------------------
def encode_response(
    model: str,
    version: int,
    ident: str,
    outputs: Mapping[str, Tensor],
    wanted: Wanted = ALL_JSON,
    parameters: Mapping[str, Any] | None = None,
) -> EncodedBody:
    """An answer in the form that its client wants. Raises InvalidRequest where JSON cannot carry an output."""
    heads: list[_JsonTensor | _BinaryTensor] = []
    parts: list[bytes | memoryview] = [b""]
    default, named = wanted
    for name, tensor in outputs.items():
        datatype, array = tensor
        if named.get(name, default):
            part = elements.to_binary(tensor)
            parts.append(part)
            heads.append(_BinaryTensor(name, datatype, array.shape, {"binary_data_size": len(part)}))
        else:
            heads.append(_JsonTensor(name, datatype, array.shape, elements.to_json(f"output {name!r}", tensor)))
    answer = _AnswerOut(model, str(version), heads, ident, parameters or {})
    head = _encode(answer)
    if b"null" in head:  # what msgspec makes of NaN and infinities
        _spell_out_non_finite(heads)
        head = _encode(answer)
    parts[0] = head
    if len(parts) == 1:
        return EncodedBody(-1, parts, len(head))
    return EncodedBody(len(head), parts, sum(map(len, parts)))


def _spell_out_non_finite(heads: list[_JsonTensor | _BinaryTensor]) -> None:
    for head in heads:
        if isinstance(head, _JsonTensor) and isinstance(head.data, list) and head.datatype in ("FP16", "BF16", "FP32", "FP64"):
            head.data = elements.with_non_finite(head.data)


class InferenceAnswer(NamedTuple):
    """A decoded answer: the model and version that gave it, the id of its request, and the outputs by name."""

    model: str
    version: str
    ident: str
    outputs: dict[str, Tensor]


def decode_response(body: Body, json_bytes: int) -> InferenceAnswer:
    """The answer in a body; binary tensors are views of it where aligned. Raises InvalidRequest where it is no answer."""
    message = _decoded(_answer_decoder, _head(body, json_bytes), "an inference answer")
    return InferenceAnswer(message.model_name, message.model_version, message.id, _tensors(message.outputs, "output", body, json_bytes))


# --- a look at a request on its way ----------------------------------------------------------------------------------------------
def peek_timeout_s(body: bytes | bytearray, json_bytes: int) -> float | None:
    """The request's parameter `timeout` (microseconds there) in seconds; None where it has none. Raises InvalidRequest."""
    parameters = _peeked(body, json_bytes, b'"timeout"')
    return None if parameters is None else read_timeout_s(parameters.timeout)


def read_timeout_s(value: object) -> float | None:
    """The value of a request's parameter `timeout` in seconds; None where it sets no limit. Raises InvalidRequest."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise InvalidRequest(f"parameter timeout is {value!r:.80}; give microseconds, for example 5000000 for five seconds")
    return min(value, _LONGEST_US) / 1e6 or None


def peek_keep_alive(body: bytes | bytearray, json_bytes: int) -> float | None:
    """The request's parameter `keep_alive` in seconds (negative there: inf); None where it has none. Raises InvalidRequest."""
    parameters = _peeked(body, json_bytes, b'"keep_alive"')
    if parameters is None or parameters.keep_alive is None:
        return None
    value = parameters.keep_alive
    if value == "-1" or (isinstance(value, int | float) and value < 0):
        return math.inf
    return parse_duration(value)


def _peeked(body: bytes | bytearray, json_bytes: int, word: bytes) -> _PeekedParameters | None:
    if body.find(word, 0, json_bytes if json_bytes >= 0 else len(body)) < 0:
        return None
    return _decoded(_peek_decoder, _head(body, json_bytes), "an inference request").parameters
