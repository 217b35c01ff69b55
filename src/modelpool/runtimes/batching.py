"""Putting requests together into one run, and taking its outputs apart again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelpool.protocol.tensors import InferenceRequest


@dataclass(slots=True)
class Batch:
    """Requests (by their index) that may share a run: same inputs, same trailing shapes, same outputs wanted."""

    wanted: tuple[str, ...]
    indices: list[int] = field(default_factory=list)


def shaped_alike(requests: Sequence[InferenceRequest], indices: Sequence[int]) -> list[Batch]:
    """Group requests; the order within a group is theirs."""
    groups: dict[Any, Batch] = {}
    for index in indices:
        request = requests[index]
        key = (request.wanted, tuple(sorted((name, tensor.array.shape[1:]) for name, tensor in request.inputs.items())))
        groups.setdefault(key, Batch(request.wanted)).indices.append(index)
    return list(groups.values())


def join(requests: Sequence[InferenceRequest]) -> dict[str, NDArray[Any]]:
    """The inputs of all, concatenated along the batch dimension."""
    return {name: np.concatenate([request.inputs[name].array for request in requests]) for name in requests[0].inputs}


def split(outputs: Sequence[NDArray[Any]], rows: Sequence[int]) -> list[list[NDArray[Any]]]:
    """Outputs of each request; raises ValueError where an output has not one row for each row that went in."""
    total = sum(rows)
    for array in outputs:
        if array.ndim == 0 or array.shape[0] != total:
            raise ValueError(f"an output has shape {array.shape} for {total} rows of input")
    parts: list[list[NDArray[Any]]] = []
    start = 0
    for count in rows:
        parts.append([array[start : start + count] for array in outputs])
        start += count
    return parts
