"""Tensors and requests as everything behind the wire sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

MAX_RANK = 32
FP32_BOUND = float.fromhex("0x1.ffffffp127")
"""The first number that rounds to infinity."""
FLAT_DTYPES = {"FP32": np.float32, "FP64": np.float64}

Float32 = Annotated[float, msgspec.Meta(gt=-FP32_BOUND, lt=FP32_BOUND)]
"""A finite number of FP32 in JSON."""


class Tensor(NamedTuple):
    """A tensor on the way in or out.

    datatype: as the Open Inference Protocol spells it. array: NumPy array of its shape; BYTES are object arrays of `bytes`; BF16 are
    uint16 arrays that hold the raw bits.
    """

    datatype: str
    array: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's."""
        return self.array.shape


class FlatTensor(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A tensor as most come in JSON: finite floats in one flat list. It stays a list until a run makes one array of many.

    FP64 beyond the range of FP32 is left to the general way of reading. The garbage collector need not look: there are no cycles.
    """

    name: str
    datatype: Literal["FP32", "FP64"]
    shape: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(max_length=MAX_RANK)]
    data: Annotated[list[Float32], msgspec.Meta(min_length=1)]

    @property
    def array(self) -> NDArray[Any]:
        """A new array. The data must be what the shape says."""
        return np.array(self.data, FLAT_DTYPES[self.datatype]).reshape(self.shape)


class InferenceRequest(msgspec.Struct, gc=False):
    """One decoded request. wanted: outputs asked for (empty: all); ident: the client's own id for it ('' where it gave none)."""

    version: int
    inputs: Mapping[str, Tensor | FlatTensor]
    wanted: tuple[str, ...] = ()
    parameters: dict[str, Any] = {}  # msgspec makes a new one for each
    ident: str = ""


def object_array(items: Sequence[Any]) -> NDArray[Any]:
    """A flat object array of these items; NumPy would look into them otherwise."""
    return np.fromiter(items, dtype=object, count=len(items))
