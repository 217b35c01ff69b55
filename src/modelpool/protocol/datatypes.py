"""The data types of the Open Inference Protocol, and what they are called elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from modelpool.errors import InvalidTensor


@dataclass(frozen=True, slots=True)
class DataType:
    """One data type.

    dtype: NumPy's (BYTES: object, elements are `bytes`; BF16: uint16, the raw bits); size_bytes: of an element, 0 for BYTES, whose
    elements carry a length of four bytes each; config_name: in Triton's config.pbtxt; onnx_name: as ONNX Runtime spells it.
    """

    name: str
    dtype: np.dtype[Any]
    size_bytes: int
    config_name: str
    onnx_name: str


def _table(*rows: tuple[str, Any, str]) -> dict[str, DataType]:
    table = {}
    for name, kind, onnx in rows:
        dtype = np.dtype(kind)
        size_bytes = 0 if name == "BYTES" else dtype.itemsize
        config_name = "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}"
        table[name] = DataType(name, dtype, size_bytes, config_name, f"tensor({onnx})")
    return table


DATATYPES = _table(
    ("BOOL", np.bool_, "bool"),
    ("UINT8", np.uint8, "uint8"),
    ("UINT16", np.uint16, "uint16"),
    ("UINT32", np.uint32, "uint32"),
    ("UINT64", np.uint64, "uint64"),
    ("INT8", np.int8, "int8"),
    ("INT16", np.int16, "int16"),
    ("INT32", np.int32, "int32"),
    ("INT64", np.int64, "int64"),
    ("FP16", np.float16, "float16"),
    ("BF16", np.uint16, "bfloat16"),
    ("FP32", np.float32, "float"),
    ("FP64", np.float64, "double"),
    ("BYTES", np.object_, "string"),
)
"""By the protocol's name."""

BY_TRITON = {one.config_name: one for one in DATATYPES.values()}
BY_ONNX = {one.onnx_name: one for one in DATATYPES.values()}
_BY_KIND = {(one.dtype.kind, one.dtype.itemsize): one.name for one in DATATYPES.values() if one.name not in ("BF16", "BYTES")}


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name for arrays of a NumPy type; raises InvalidTensor where there is none."""
    if dtype.kind in "OSU":
        return "BYTES"
    if dtype.name == "bfloat16":
        return "BF16"
    name = _BY_KIND.get((dtype.kind, dtype.itemsize))
    if name is None:
        raise InvalidTensor(f"arrays of NumPy type {dtype} cannot be sent; convert with .astype() to one of {', '.join(DATATYPES)}")
    return name
