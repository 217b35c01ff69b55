"""Requests put together into one run along the batch dimension, and its outputs taken apart again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Admitted(NamedTuple):
    """A checked request.

    place: its index among those it came with; inputs: in the model's order, the same names for all; rows: of its batch (1 where the
    model has no batch dimension); names: outputs wanted, in the model's order.
    """

    place: int
    inputs: dict[str, NDArray[Any]]
    rows: int
    names: tuple[str, ...]


def together(admitted: Iterable[Admitted], most_rows: int) -> list[list[Admitted]]:
    """Groups whose trailing shapes are the same, of at most `most_rows` rows unless one request alone has more; order is kept within."""
    groups: list[list[Admitted]] = []
    open_groups: dict[tuple[tuple[int, ...], ...], tuple[list[Admitted], int]] = {}
    for one in admitted:
        key = tuple([array.shape[1:] for array in one.inputs.values()])
        group, rows = open_groups.get(key, ([], most_rows))
        if rows + one.rows > most_rows:
            group, rows = [], 0
            groups.append(group)
        group.append(one)
        open_groups[key] = group, rows + one.rows
    return groups


def join(group: Sequence[Admitted]) -> dict[str, NDArray[Any]]:
    """Their inputs, one after the other."""
    return {name: np.concatenate([one.inputs[name] for one in group]) for name in group[0].inputs}


def check_rows(outputs: dict[str, NDArray[Any]], rows: int) -> None:
    """Raises ValueError where other rows came out than went in."""
    for name, array in outputs.items():
        if array.ndim == 0 or array.shape[0] != rows:
            raise ValueError(f"output {name!r} has shape {list(array.shape)} for a batch of {rows}")


def split(group: Sequence[Admitted], outputs: dict[str, NDArray[Any]]) -> list[dict[str, NDArray[Any]]]:
    """The rows of each request, as views of the outputs that it wants; raises ValueError where rows went in that did not come out."""
    check_rows(outputs, sum(one.rows for one in group))
    parts = []
    at = 0
    for one in group:
        parts.append({name: outputs[name][at : at + one.rows] for name in one.names})
        at += one.rows
    return parts
