"""Times at which the core wants to be called again."""

from __future__ import annotations

import heapq
from typing import Any


class Alarm:
    """A timer that is set again and again: only the earliest pending one counts. at: when it goes off (inf: not set)."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = float("inf")


class Timers:
    """Timers in order of their time. One whose cause is gone by then does nothing: whoever handles it looks."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, Any, Alarm]] = []
        self._count = 0

    def set(self, at: float, kind: str, subject: Any, alarm: Alarm | None = None) -> None:
        """Ask to be woken at `at` (inf: never). A given alarm that goes off earlier stays as it is."""
        alarm = alarm or Alarm()
        if at < alarm.at:
            alarm.at = at
            self._count += 1
            heapq.heappush(self._heap, (at, self._count, kind, subject, alarm))

    def due(self, now: float) -> tuple[str, Any] | None:
        """The next timer that has come, taken off."""
        while self._heap and self._heap[0][0] <= now:
            at, _, kind, subject, alarm = heapq.heappop(self._heap)
            if alarm.at == at:
                alarm.at = float("inf")
                return kind, subject
        return None

    def next(self) -> float:
        """When the earliest timer comes (inf: none)."""
        return self._heap[0][0] if self._heap else float("inf")

    def __len__(self) -> int:
        return len(self._heap)
