from __future__ import annotations

import numpy as np
import pytest

from modelpool.runtimes.batching import Admitted, join, split, together


def admitted(place: int, rows: int, width: int = 2, names: tuple[str, ...] = ("y",)) -> Admitted:
    return Admitted(place, {"x": np.full((rows, width), place, np.float32)}, rows, names)


def places(groups: list[list[Admitted]]) -> list[list[int]]:
    return [[one.place for one in group] for group in groups]


def test_what_has_the_same_trailing_shape_goes_together() -> None:
    assert places(together([admitted(0, 1), admitted(1, 1, width=3), admitted(2, 2), admitted(3, 1, width=3)], 8)) == [[0, 2], [1, 3]]


def test_no_group_is_larger_than_the_model_allows() -> None:
    assert places(together([admitted(0, 2), admitted(1, 2), admitted(2, 1), admitted(3, 4)], 4)) == [[0, 1], [2], [3]]


def test_one_that_is_too_large_goes_alone() -> None:
    assert places(together([admitted(0, 9), admitted(1, 1)], 4)) == [[0], [1]]


def test_nothing_gives_no_groups() -> None:
    assert together([], 4) == []


def test_each_gets_its_own_rows_of_what_it_wants() -> None:
    group = [admitted(0, 1), admitted(1, 3, names=("y", "z")), admitted(2, 2, names=("z",))]
    whole = join(group)["x"]
    parts = split(group, {"y": whole, "z": -whole})
    assert [{name: array[:, 0].tolist() for name, array in part.items()} for part in parts] == [
        {"y": [0]},
        {"y": [1, 1, 1], "z": [-1, -1, -1]},
        {"z": [-2, -2]},
    ]


@pytest.mark.parametrize("shape", [(), (2, 2), (4, 2)])
def test_rows_that_are_missing_are_noticed(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="'y' has shape"):
        split([admitted(0, 1), admitted(1, 2)], {"y": np.zeros(shape)})
