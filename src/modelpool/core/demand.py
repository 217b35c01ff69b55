"""Arrival counts of all models, so that the rate over any recent window can be read for many models at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FINE_S, FINE_BUCKETS = 1.0, 64
COARSE_S, COARSE_BUCKETS = 16.0, 128


class _Ring:
    """Running totals at the end of buckets of equal width, a column for each model's row; the newest overwrites the oldest.

    Arrivals of a window are the difference of two totals. Totals may run over: their difference does not.
    """

    __slots__ = ("buckets", "newest", "totals", "width_s")

    def __init__(self, width_s: float, buckets: int) -> None:
        self.width_s = width_s
        self.buckets = buckets
        self.newest = 0
        self.totals: NDArray[np.uint32] = np.zeros((buckets + 1, 64), np.uint32)

    def present(self) -> NDArray[np.uint32]:
        """The totals up to now."""
        present: NDArray[np.uint32] = self.totals[self.newest % (self.buckets + 1)]
        return present

    def advance(self, bucket: int) -> None:
        """Go on to a later bucket; nothing arrived between."""
        present = self.present()
        for step in range(1, min(bucket - self.newest, self.buckets + 1) + 1):
            self.totals[(bucket - step + 1) % (self.buckets + 1)] = present
        self.newest = bucket

    def before(self, buckets: int) -> NDArray[np.uint32]:
        """The totals before the last so many buckets, the current one included."""
        before: NDArray[np.uint32] = self.totals[(self.newest - buckets) % (self.buckets + 1)]
        return before


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
        self._weights: NDArray[np.float64] = np.ones(64)
        self._weighs = False

    def open_row(self) -> int:
        """A row of zeros for a new model."""
        if self._free:
            return self._free.pop()
        row = self._rows
        self._rows += 1
        for ring in (self._fine, self._coarse):
            if row >= ring.totals.shape[1]:
                ring.totals = np.concatenate([ring.totals, np.zeros_like(ring.totals)], axis=1)
        if row >= len(self._weights):
            self._weights = np.concatenate([self._weights, np.ones_like(self._weights)])
        return row

    def close_row(self, row: int) -> None:
        """Give a row back."""
        self._fresh.pop(row, None)
        self._fine.totals[:, row] = 0
        self._coarse.totals[:, row] = 0
        self._weights[row] = 1.0
        self._free.append(row)

    def weigh(self, row: int, weight: float) -> None:
        """Say how much a row's arrivals count beside those of others."""
        self._weights[row] = weight
        self._weighs = self._weighs or weight != 1.0

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
            fine, coarse = self._fine.present(), self._coarse.present()
            for row, count in self._fresh.items():
                fine[row] += count
                coarse[row] += count
            self._fresh = {}

    def _advance(self, second: int) -> None:
        self._settle()
        self._second = second
        self._fine.advance(second)
        if (coarse := int(second / COARSE_S)) > self._coarse.newest:
            self._coarse.advance(coarse)

    def rates(self, rows: NDArray[np.intp], window_s: float, now: float) -> NDArray[np.float64]:
        """Arrivals a second of each row over the last `window_s` (at most 34 minutes)."""
        ring, buckets = self._window(window_s, now)
        arrived = ring.present().take(rows) - ring.before(buckets).take(rows)
        return arrived / (buckets * ring.width_s)

    def weighted(self, rows: NDArray[np.intp], window_s: float, now: float) -> NDArray[np.float64]:
        """Rates of rows, each times its weight."""
        rates = self.rates(rows, window_s, now)
        return rates * self._weights.take(rows) if self._weighs else rates

    def rate(self, row: int, window_s: float, now: float) -> float:
        """Arrivals a second of one row."""
        ring, buckets = self._window(window_s, now)
        arrived = int(ring.present()[row]) - int(ring.before(buckets)[row])
        return arrived % 2**32 / (buckets * ring.width_s)

    def _window(self, window_s: float, now: float) -> tuple[_Ring, int]:
        """The ring that has this window, up to date, and the window's buckets."""
        if int(now) > self._second:
            self._advance(int(now))
        else:
            self._settle()
        ring = self._fine if window_s < FINE_S * FINE_BUCKETS else self._coarse
        return ring, min(ring.buckets, max(1, int(-(-window_s // ring.width_s))))
