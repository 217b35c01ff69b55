"""The READY copies of a device, with what eviction policies look at in columns, so that no copy is touched that does not leave."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from modelpool.core.copies import Copy


class ReadyCopies:
    """Copies in no particular order. `Copy.place` is a copy's index; the last one takes the place of one that goes."""

    __slots__ = ("_completed", "_copies", "_rows")

    def __init__(self) -> None:
        self._copies: list[Copy] = []
        self._rows = array("q")
        self._completed = array("d")

    def add(self, copy: Copy) -> None:
        """A copy became READY."""
        copy.place = len(self._copies)
        self._copies.append(copy)
        self._rows.append(copy.slot)
        self._completed.append(copy.idle_since)

    def discard(self, copy: Copy) -> None:
        """A copy is READY no more, if it was."""
        if copy not in self:
            return
        place, last = copy.place, self._copies.pop()
        row, completed = self._rows.pop(), self._completed.pop()
        if last is not copy:
            self._copies[place], self._rows[place], self._completed[place] = last, row, completed
            last.place = place

    def completed(self, copy: Copy, now: float) -> None:
        """A run of one of the copies ended."""
        self._completed[copy.place] = now

    def __contains__(self, copy: Copy) -> bool:
        return copy.place < len(self._copies) and self._copies[copy.place] is copy

    def __len__(self) -> int:
        return len(self._copies)

    def __getitem__(self, place: int) -> Copy:
        return self._copies[place]

    def __iter__(self) -> Iterator[Copy]:
        return iter(self._copies)

    def rows(self) -> NDArray[np.int64]:
        """Each copy's row of the demand table, by place."""
        return np.array(self._rows)

    def completions(self) -> NDArray[np.float64]:
        """Each copy's last completion (monotonic s), by place."""
        return np.array(self._completed)
