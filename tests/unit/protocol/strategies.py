"""Hypothesis strategies for tensors of all data types."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from modelpool.protocol.datatypes import DATATYPES
from modelpool.protocol.tensors import Tensor, object_array

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def tensors(draw: st.DrawFn, *, text: bool = False, finite: bool = False) -> Tensor:
    """Any tensor. text: BYTES hold UTF-8 only; finite: no NaN nor infinity."""
    name = draw(st.sampled_from(sorted(DATATYPES)))
    shape = draw(SHAPES)
    size = int(np.prod(shape))
    if name == "BYTES":
        item = st.text(max_size=8).map(str.encode) if text else st.binary(max_size=8)
        return Tensor(name, object_array(draw(st.lists(item, min_size=size, max_size=size))).reshape(shape))
    if name == "BF16":
        bits = st.integers(0, 0xFFFF).filter(lambda bits: not finite or bits & 0x7F80 != 0x7F80)
        return Tensor(name, draw(hnp.arrays(np.uint16, shape, elements=bits)))
    dtype = DATATYPES[name].dtype
    options = {"allow_nan": not finite, "allow_infinity": not finite} if dtype.kind == "f" else {}
    return Tensor(name, draw(hnp.arrays(dtype, shape, elements=hnp.from_dtype(dtype, **options))))


def same(one: Tensor, other: Tensor) -> None:
    """Assert that both are equal in type, shape and elements (any NaN equals any NaN)."""
    assert one.datatype == other.datatype
    assert one.array.dtype == other.array.dtype
    assert one.array.shape == other.array.shape
    left, right = (as_numbers(tensor) for tensor in (one, other))
    np.testing.assert_array_equal(left, right)


def as_numbers(tensor: Tensor) -> np.ndarray:
    return (tensor.array.astype(np.uint32) << 16).view(np.float32) if tensor.datatype == "BF16" else tensor.array
