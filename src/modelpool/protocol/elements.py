"""The elements of one tensor: to and from JSON values and the protocol's binary form.

Numbers in JSON must fit their type; nothing wraps around. FP16 and BF16 are numbers in JSON as well. Numbers that are not finite are
written NaN, Infinity and -Infinity, as Triton and its clients do; they are read in this form and as strings of the same spelling.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import struct
import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from modelpool.errors import InvalidRequest, InvalidTensor
from modelpool.protocol.datatypes import DATATYPES, DataType
from modelpool.protocol.jsonfaults import json_fault
from modelpool.protocol.tensors import FP32_BOUND, MAX_RANK, Tensor, object_array

_COPY_BYTES = 64 * 1024
_LENGTH = struct.Struct("<I")
_SPACE = b" \t\r\n"
_OPEN, _SPACE_END = ord("["), ord(" ")

_NON_FINITE = Literal["NaN", "Infinity", "-Infinity"]
_FLOAT_BOUNDS = {
    # The first number that rounds to infinity.
    "FP16": 65520.0,
    "BF16": float.fromhex("0x1.ffp127"),
    "FP32": FP32_BOUND,
}


def _json_type(kind: DataType) -> Any:
    """What one element may be in JSON, as msgspec's types."""
    if kind.name == "BYTES":
        return str
    if kind.name == "BOOL":
        return bool | Literal[0, 1]
    if kind.name in _FLOAT_BOUNDS:
        bound = _FLOAT_BOUNDS[kind.name]
        return Annotated[float, msgspec.Meta(gt=-bound, lt=bound)] | _NON_FINITE
    if kind.name == "FP64":
        return float | _NON_FINITE
    limits = np.iinfo(kind.dtype)
    if limits.max < 2**63:
        return Annotated[int, msgspec.Meta(ge=int(limits.min), le=int(limits.max))]
    return int  # msgspec has no bounds beyond that; NumPy refuses what does not fit


@functools.cache
def _decoder(datatype: str, depth: int) -> msgspec.json.Decoder[Any]:
    nested = _json_type(DATATYPES[datatype])
    for _ in range(depth):
        nested = types.GenericAlias(list, (nested,))
    return msgspec.json.Decoder(nested)


_FLAT = {name: (_decoder(name, 1), kind.dtype) for name, kind in DATATYPES.items() if name not in ("BYTES", "BF16")}


def known(where: str, datatype: str) -> DataType:
    """The data type of that name; raises InvalidTensor. where: what to call the tensor, for example `input 'x'`."""
    kind = DATATYPES.get(datatype)
    if kind is None:
        raise InvalidTensor(f"{where} has the unknown datatype {datatype!r}; known are {', '.join(DATATYPES)}")
    return kind


def count_of(where: str, shape: Sequence[int]) -> int:
    """The number of elements of a shape; raises InvalidTensor for a shape that no array can have."""
    count = 1
    for size in shape:
        if size < 0:
            raise InvalidTensor(f"{where} has the shape {list(shape)}; sizes in a request must be 0 or more")
        count *= size
    if len(shape) > MAX_RANK:
        raise InvalidTensor(f"{where} has {len(shape)} dimensions; at most {MAX_RANK} are possible")
    return count


def _shaped(where: str, array: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError) as error:  # no elements, and sizes beyond what NumPy counts
        raise InvalidTensor(f"{where} has a shape that is too large") from error


# --- JSON ------------------------------------------------------------------------------------------------------------------------
def from_json(where: str, datatype: str, shape: Sequence[int], raw: msgspec.Raw) -> NDArray[Any]:
    """The array that a JSON list, flat or nested, holds in row-major order; raises InvalidTensor."""
    flat = _FLAT.get(datatype)
    if flat is not None:  # a flat list of numbers, as nearly all are
        decoder, dtype = flat
        try:
            array = np.array(decoder.decode(raw), dtype)
            if array.size == math.prod(shape) and len(shape) <= MAX_RANK and min(shape, default=0) >= 0:
                return array.reshape(shape)
        except (msgspec.DecodeError, ValueError, OverflowError):
            pass  # nested, or wrong: what follows says so
    kind = known(where, datatype)
    count = count_of(where, shape)
    depth = _depth(where, raw)
    try:
        values = _decoder(datatype, depth).decode(raw)
        array = _flat_texts(values, depth) if datatype == "BYTES" else _numbers(kind, values)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidTensor(f"{where} has data that is not {datatype}: {_told(json_fault(error, raw))}{_hint(kind)}") from error
    except OverflowError as error:
        raise InvalidTensor(f"{where} has a number that does not fit {datatype}{_hint(kind)}") from error
    except ValueError as error:
        raise InvalidTensor(f"{where} has nested data of uneven lengths; make them equal, or give one flat list") from error
    if array.size != count:
        raise InvalidTensor(f"{where} has {array.size} elements in its data, but its shape {list(shape)} needs {count}")
    return _shaped(where, array, shape)


def _depth(where: str, raw: msgspec.Raw) -> int:
    """How many lists open before the first element."""
    view = memoryview(raw)
    depth = 0
    for byte in view:
        if byte == _OPEN:
            depth += 1
        elif byte > _SPACE_END:
            break
    if not depth:
        raise InvalidTensor(f'{where} has data that is not a list; write for example "data": [1, 2, 3]')
    if depth > MAX_RANK:
        raise InvalidTensor(f"{where} has data that is nested deeper than {MAX_RANK} lists")
    return depth


def _numbers(kind: DataType, values: list[Any]) -> NDArray[Any]:
    if kind.name == "BF16":
        return _to_bf16(np.array(values, np.float32))
    return np.array(values, kind.dtype)


def _flat_texts(values: list[Any], depth: int) -> NDArray[Any]:
    for _ in range(depth - 1):
        values = list(itertools.chain.from_iterable(values))
    return object_array([text.encode() for text in values])


def _told(words: str) -> str:
    return words.replace("`", "'").replace("'$", "'data")


def _hint(kind: DataType) -> str:
    if kind.dtype.kind in "iu" and kind.name != "BF16":
        limits = np.iinfo(kind.dtype)
        return f"; it takes whole numbers from {limits.min} to {limits.max}"
    return ""


def to_json(where: str, tensor: Tensor) -> list[Any]:
    """The elements as a flat list for JSON; raises InvalidRequest for BYTES that are no text."""
    array = tensor.array
    if tensor.datatype == "BF16":
        array = _from_bf16(array)
    values: list[Any] = array.tolist() if array.ndim == 1 else array.ravel().tolist()
    if tensor.datatype != "BYTES":
        return values
    try:
        return [item.decode() for item in values]
    except UnicodeDecodeError as error:
        message = f"{where} holds bytes that are not UTF-8 text, which JSON cannot carry; ask for it with the parameter binary_data: true"
        raise InvalidRequest(message) from error


def with_non_finite(values: list[Any]) -> msgspec.Raw:
    """The same list as JSON text in which NaN, Infinity and -Infinity are spelt out."""
    return msgspec.Raw(json.dumps(values, separators=(",", ":")).encode())


# --- binary ----------------------------------------------------------------------------------------------------------------------
def from_binary(where: str, datatype: str, shape: Sequence[int], body: memoryview) -> NDArray[Any]:
    """The array whose elements `body` holds: a read-only view of it where the machine can use it in place. Raises InvalidTensor."""
    kind = known(where, datatype)
    count = count_of(where, shape)
    if datatype == "BYTES":
        return _shaped(where, _from_lengths(where, shape, count, body), shape)
    if len(body) != count * kind.size_bytes:
        raise InvalidTensor(
            f"{where} has {len(body)} bytes of data, but {datatype} of shape {list(shape)} needs {count * kind.size_bytes} bytes"
        )
    if not count:
        return _shaped(where, np.empty(0, kind.dtype), shape)
    array = np.frombuffer(body, kind.dtype)
    if not array.flags.aligned:  # code that is compiled for aligned data may crash on it
        array = array.copy()
    if datatype == "BOOL" and array.view(np.uint8).max() > 1:
        raise InvalidTensor(f"{where} has bytes other than 0 and 1; a BOOL is one byte that is 0 or 1")
    return array.reshape(shape)


def _from_lengths(where: str, shape: Sequence[int], count: int, body: memoryview) -> NDArray[Any]:
    total = len(body)
    if count * _LENGTH.size > total:
        raise InvalidTensor(
            f"{where} has {total} bytes of data, too few for the {count} BYTES elements of shape {list(shape)}; each begins with its length"
        )
    items: list[bytes] = []
    at = 0
    for index in range(count):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(body, at)[0] if start <= total else total + 1
        if at > total:
            raise InvalidTensor(f"{where} ends in the middle of BYTES element {index}; each is 4 bytes of length, then its bytes")
        items.append(bytes(body[start:at]))
    if at != total:
        raise InvalidTensor(f"{where} has {total - at} bytes after its {count} BYTES elements; its shape is {list(shape)}")
    return object_array(items)


def to_binary(tensor: Tensor) -> bytes | memoryview:
    """The elements in the protocol's binary form; a view of the array where that is large."""
    array = tensor.array
    if tensor.datatype == "BYTES":
        pack = _LENGTH.pack
        return b"".join(part for item in array.ravel().tolist() for part in (pack(len(item)), item))
    if array.nbytes <= _COPY_BYTES:
        return array.tobytes()
    return np.ascontiguousarray(array).data.cast("B")


# --- BF16 ------------------------------------------------------------------------------------------------------------------------
def _to_bf16(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves, rounded to nearest even."""
    bits = array.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(array), np.uint16(0x7FC0), rounded)


def _from_bf16(array: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (array.astype(np.uint32) << 16).view(np.float32)
