"""Tensors and requests as everything behind the wire sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Tensor(NamedTuple):
    """A tensor on the way in or out.

    datatype: as the Open Inference Protocol spells it. array: NumPy array of its shape; BYTES are object arrays of `bytes`; BF16 are
    uint16 arrays that hold the raw bits.
    """

    datatype: str
    array: NDArray[Any]


@dataclass(slots=True)
class InferenceRequest:
    """One decoded request. wanted: outputs asked for (empty: all); ident: the client's own id for it ('' where it gave none)."""

    version: int
    inputs: dict[str, Tensor]
    wanted: tuple[str, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    ident: str = ""


def object_array(items: Sequence[Any]) -> NDArray[Any]:
    """A flat object array of these items; NumPy would look into them otherwise."""
    return np.fromiter(items, dtype=object, count=len(items))
