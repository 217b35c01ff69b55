from __future__ import annotations

import numpy as np
import pytest
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from modelpool.errors import InvalidTensor
from modelpool.protocol.datatypes import BY_ONNX, BY_TRITON, DATATYPES, datatype_of


def test_names_elsewhere_lead_back() -> None:
    assert {name: BY_TRITON[one.config_name].name for name, one in DATATYPES.items()} == {name: name for name in DATATYPES}
    assert {name: BY_ONNX[one.onnx_name].name for name, one in DATATYPES.items()} == {name: name for name in DATATYPES}
    assert BY_TRITON["TYPE_STRING"].name == "BYTES"
    assert BY_ONNX["tensor(double)"].name == "FP64"


@pytest.mark.parametrize("name", sorted(set(DATATYPES) - {"BF16"}))
def test_numpy_types_are_those_of_tritons_client(name: str) -> None:
    dtype = DATATYPES[name].dtype
    assert triton_to_np_dtype(name) == dtype
    assert datatype_of(dtype) == name
    assert np_to_triton_dtype(dtype) == name


def test_text_is_bytes() -> None:
    assert datatype_of(np.dtype("U3")) == datatype_of(np.dtype("S3")) == "BYTES"


@pytest.mark.parametrize("dtype", ["c8", "M8[s]", "V4"])
def test_a_type_without_counterpart_is_refused(dtype: str) -> None:
    with pytest.raises(InvalidTensor, match=r"convert with \.astype"):
        datatype_of(np.dtype(dtype))
