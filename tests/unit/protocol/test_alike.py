from __future__ import annotations

import numpy as np
import pytest

from modelpool.protocol.alike import encode_alike
from modelpool.protocol.datatypes import DATATYPES
from modelpool.protocol.inference import encode_response
from modelpool.protocol.tensors import Tensor, object_array

PLAIN = sorted(set(DATATYPES) - {"BYTES", "BF16"})
FLOATS = Tensor("FP32", np.array([[0.1, 2], [3, -4e30]], np.float32))


@pytest.mark.parametrize("datatype", PLAIN)
@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 3), (8, 2, 3)])
def test_the_bytes_are_those_of_answers_written_one_by_one(datatype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape)) % 2).reshape(shape).astype(DATATYPES[datatype].dtype)
    idents = ["", "7", 'a "quoted" %s', ""]
    found = encode_alike("100%b", 12, idents, {"%s": Tensor(datatype, array), "y": Tensor(datatype, array)})
    parts = [Tensor(datatype, part) for part in np.split(array, 4)]
    assert found == [
        encode_response("100%b", 12, ident, {"%s": part, "y": part}).joined() for ident, part in zip(idents, parts, strict=True)
    ]


@pytest.mark.parametrize("array", [np.array(1.5), np.array([1.5]), np.array([[0.1, 2.0], [3.0, -4e300]])])
def test_one_request_may_have_any_shape(array: np.ndarray) -> None:
    outputs = {"y": Tensor("FP64", array)}
    assert encode_alike("m", 1, [""], outputs) == [encode_response("m", 1, "", outputs).joined()]


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("FP32", np.array([[1], [np.nan]], np.float32)),
        Tensor("FP32", np.array([[np.inf], [1]], np.float32)),
        Tensor("FP32", np.zeros((2, 0), np.float32)),
        Tensor("FP32", np.zeros((2, 100_000), np.float32)),
        Tensor("BF16", np.zeros((2, 1), np.uint16)),
        Tensor("BYTES", object_array([b"a", b"b"])),
    ],
)
def test_what_it_cannot_write_is_left_to_others(tensor: Tensor) -> None:
    assert encode_alike("m", 1, ["", ""], {"x": FLOATS, "y": tensor}) is None
