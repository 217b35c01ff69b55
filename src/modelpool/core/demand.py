"""Arrival counts of all models, so that the rate over any recent window can be read for many models at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FINE_S, FINE_BUCKETS = 1.0, 64
COARSE_S, COARSE_BUCKETS = 16.0, 128


class _Ring:
    """Counts in buckets of equal width, one row a model, the oldest bucket overwritten by the newest."""

    __slots__ = ("buckets", "counts", "newest", "width_s")

    def __init__(self, width_s: float, buckets: int) -> None:
        self.width_s = width_s
        self.buckets = buckets
        self.newest = 0
        self.counts: NDArray[np.int32] = np.zeros((64, buckets), np.int32)

    def advance(self, bucket: int) -> None:
        """Empty the buckets between the newest and this one."""
        gap = bucket - self.newest
        if gap >= self.buckets:
            self.counts[:] = 0
        else:
            for step in range(1, gap + 1):
                self.counts[:, (self.newest + step) % self.buckets] = 0
        self.newest = bucket

    def sums(self, rows: NDArray[np.intp], buckets: int) -> NDArray[np.int64]:
        """Arrivals of some rows in the last so many buckets, the current one included."""
        columns = (self.newest - np.arange(buckets)) % self.buckets
        picked: NDArray[np.int64] = self.counts[rows[:, None], columns].sum(axis=1, dtype=np.int64)
        return picked


class DemandTable:
    """Arrivals by model in two rings: 64 buckets of a second, 128 of 16 s (34 minutes).

    A model holds a row from `open_row` to `close_row`. Windows are rounded up to whole buckets and end with the present one. Arrivals
    of the present second gather in a dictionary, which is cheaper to count in, until it is over or a rate is asked for.
    """

    def __init__(self) -> None:
        self._fine = _Ring(FINE_S, FINE_BUCKETS)
        self._coarse = _Ring(COARSE_S, COARSE_BUCKETS)
        self._free: list[int] = []
        self._rows = 0
        self._second = 0
        self._fresh: dict[int, int] = {}

    def open_row(self) -> int:
        """A row of zeros for a new model."""
        if self._free:
            return self._free.pop()
        row = self._rows
        self._rows += 1
        for ring in (self._fine, self._coarse):
            if row >= len(ring.counts):
                ring.counts = np.concatenate([ring.counts, np.zeros_like(ring.counts)])
        return row

    def close_row(self, row: int) -> None:
        """Give a row back."""
        self._fresh.pop(row, None)
        self._fine.counts[row] = 0
        self._coarse.counts[row] = 0
        self._free.append(row)

    def arrive(self, row: int, now: float) -> None:
        """Count one arrival."""
        second = int(now)
        if second > self._second:
            self._advance(second)
        fresh = self._fresh
        fresh[row] = fresh.get(row, 0) + 1

    def _settle(self) -> None:
        """Put the arrivals of the present second where they belong."""
        if self._fresh:
            rows, counts = list(self._fresh), list(self._fresh.values())
            self._fine.counts[rows, self._fine.newest % FINE_BUCKETS] += counts
            self._coarse.counts[rows, self._coarse.newest % COARSE_BUCKETS] += counts
            self._fresh = {}

    def _advance(self, second: int) -> None:
        self._settle()
        self._second = second
        self._fine.advance(second)
        if (coarse := int(second / COARSE_S)) > self._coarse.newest:
            self._coarse.advance(coarse)

    def rates(self, rows: NDArray[np.intp], window_s: float, now: float) -> NDArray[np.float64]:
        """Arrivals a second of each row over the last `window_s` (at most 34 minutes)."""
        if int(now) > self._second:
            self._advance(int(now))
        else:
            self._settle()
        ring = self._fine if window_s < FINE_S * FINE_BUCKETS else self._coarse
        buckets = min(ring.buckets, max(1, int(-(-window_s // ring.width_s))))
        return ring.sums(rows, buckets) / (buckets * ring.width_s)

    def rate(self, row: int, window_s: float, now: float) -> float:
        """Arrivals a second of one row."""
        return float(self.rates(np.array([row]), window_s, now)[0])
