"""Data types: the protocol's names, Triton's `TYPE_` names and numbers, and NumPy's types."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelpool.runtimes.pb_utils.errors import TritonModelException


class DataType(IntEnum):
    """Triton's numbers of the data types."""

    BOOL = 1
    UINT8 = 2
    UINT16 = 3
    UINT32 = 4
    UINT64 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FP16 = 10
    FP32 = 11
    FP64 = 12
    BYTES = 13
    BF16 = 14


NUMPY: dict[str, type[Any]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
    "BF16": np.uint16,
}
"""NumPy's type by the protocol's name. BF16 are the raw bits, since NumPy has no such type."""

_OF_KIND = {(np.dtype(kind).kind, np.dtype(kind).itemsize): name for name, kind in NUMPY.items() if name not in ("BYTES", "BF16")}


def protocol_name(data_type: str) -> str:
    """The protocol's name of a `TYPE_` name (TYPE_STRING is BYTES); raises TritonModelException for an unknown one."""
    name = "BYTES" if data_type == "TYPE_STRING" else data_type.removeprefix("TYPE_")
    if name not in NUMPY or not data_type.startswith("TYPE_"):
        raise TritonModelException(f"there is no data type {data_type!r}; known are {', '.join(f'TYPE_{known}' for known in NUMPY)}")
    return name


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name for arrays of a NumPy type; raises TritonModelException where there is none."""
    if dtype.kind in "OSU":
        return "BYTES"
    if dtype.name == "bfloat16":
        return "BF16"
    name = _OF_KIND.get((dtype.kind, dtype.itemsize))
    if name is None:
        raise TritonModelException(f"NumPy type {dtype} has no counterpart among Triton's data types; convert with .astype()")
    return name


def triton_string_to_numpy(triton_type_string: str) -> type[Any]:
    """NumPy's type for a `TYPE_` name of a configuration."""
    return NUMPY[protocol_name(triton_type_string)]


def triton_to_numpy_type(data_type: int) -> type[Any]:
    """NumPy's type for one of Triton's numbers."""
    return NUMPY[DataType(data_type).name]


def numpy_to_triton_type(data_type: Any) -> DataType:
    """Triton's number for a NumPy type."""
    return DataType[datatype_of(np.dtype(data_type))]


def as_bytes(item: Any) -> bytes:
    """One element of a BYTES tensor: text becomes UTF-8, a number its text; raises TritonModelException for anything else."""
    match item:
        case bytes():
            return item
        case str():
            return item.encode()
        case bytearray() | memoryview():
            return bytes(item)
        case bool() | int() | float() | np.generic():
            return str(item).encode()
    raise TritonModelException(f"an element of a BYTES tensor is of type {type(item).__name__}; give bytes or str")


def bytes_array(array: NDArray[Any]) -> NDArray[Any]:
    """The same array as an object array of `bytes`."""
    return np.fromiter((as_bytes(item) for item in array.ravel()), dtype=object, count=array.size).reshape(array.shape)


def serialize_byte_tensor(input_tensor: NDArray[Any]) -> NDArray[Any] | None:
    """Each element with its length (u32, little endian) before it, as an object array of no dimensions; None for an empty tensor."""
    if input_tensor.size == 0:
        return None
    items = [as_bytes(item) for item in input_tensor.ravel()]
    return np.array(b"".join(struct.pack("<I", len(item)) + item for item in items), dtype=object)


def deserialize_bytes_tensor(encoded_tensor: Any) -> NDArray[Any]:
    """The flat object array of `bytes` that `serialize_byte_tensor` wrote; raises TritonModelException where it is cut short."""
    view = memoryview(encoded_tensor).cast("B")
    items: list[bytes] = []
    at = 0
    while at < len(view):
        head = bytes(view[at : at + 4])
        length = int.from_bytes(head, "little")
        if len(head) < 4 or at + 4 + length > len(view):
            raise TritonModelException(f"the BYTES data ends in the middle of element {len(items)}")
        items.append(bytes(view[at + 4 : at + 4 + length]))
        at += 4 + length
    return np.fromiter(items, dtype=object, count=len(items))
