"""Counters of the data plane: plain numbers on the hot path, put into shape when somebody asks."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from typing import Any

from modelpool.controller.views import Histogram

_STARTED_AT = time.time() - time.monotonic()
TIME_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class TimeHistogram:
    """Seconds in fixed buckets."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(TIME_BOUNDS_S) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(TIME_BOUNDS_S, seconds)] += 1
        self.total += seconds

    def view(self) -> Histogram:
        """As a plain struct."""
        return Histogram(bounds=TIME_BOUNDS_S, counts=tuple(self.counts), total=self.total)


class ModelStatistics:
    """One model's counters. Times in microseconds where the worker measured them, in seconds where we did.

    outcomes: of requests without an answer. last_at: of the last answer, by the server's monotonic clock.
    """

    __slots__ = (
        "compute_us",
        "executions",
        "failure_s",
        "failures",
        "inferences",
        "last_at",
        "outcomes",
        "queue_us",
        "success_s",
        "waited_s",
    )

    def __init__(self) -> None:
        self.inferences = 0
        self.executions = 0
        self.queue_us = 0
        self.compute_us = 0
        self.success_s = 0.0
        self.failure_s = 0.0
        self.waited_s = 0.0
        self.failures = 0
        self.last_at = 0.0
        self.outcomes: Counter[str] = Counter()

    def all_outcomes(self) -> dict[str, int]:
        """How many requests ended in which way: `ok`, or the code of an error."""
        return {**({"ok": self.inferences} if self.inferences else {}), **self.outcomes}

    @property
    def last_ms(self) -> int:
        """The wall-clock time of the last answer in milliseconds, as Triton's `last_inference`; 0: there was none."""
        return int((_STARTED_AT + self.last_at) * 1000) if self.last_at else 0

    def row(self, name: str, version: str) -> dict[str, Any]:
        """A row of Triton's `model_stats` (times in ns)."""
        count = self.inferences
        queue_ns = self.queue_us * 1000 + int(self.waited_s * 1e9)

        def part(times: int, total_ns: int) -> dict[str, int]:
            return {"count": times, "ns": total_ns}

        return {
            "name": name,
            "version": version,
            "last_inference": self.last_ms,
            "inference_count": count,
            "execution_count": self.executions,
            "inference_stats": {
                "success": part(count, int(self.success_s * 1e9)),
                "fail": part(self.failures, int(self.failure_s * 1e9)),
                "queue": part(count, queue_ns),
                "compute_input": part(count, 0),
                "compute_infer": part(count, self.compute_us * 1000),
                "compute_output": part(count, 0),
                "cache_hit": part(0, 0),
                "cache_miss": part(0, 0),
            },
            "batch_stats": [],
            "memory_usage": [],
        }
