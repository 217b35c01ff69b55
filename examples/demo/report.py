"""What the run amounts to: hits beside plain LRU's, latencies by hit and miss, and the closing lines."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from examples.demo.check import Verdict
from examples.demo.traffic import Outcome, Served

LEAST_OF_LRU = 0.95
MOST_OF_BUDGET = 1.1
MB = 1e6


def lru_hits(names: Iterable[str], sizes: Mapping[str, int], budget_bytes: int) -> int:
    """Hits of plain LRU on a sequence: a model that is not there comes in, the ones used longest ago go until it fits."""
    resident: OrderedDict[str, int] = OrderedDict()
    free = budget_bytes
    hits = 0
    for name in names:
        if name in resident:
            hits += 1
            resident.move_to_end(name)
            continue
        while resident and sizes[name] > free:
            free += resident.popitem(last=False)[1]
        resident[name] = sizes[name]
        free -= sizes[name]
    return hits


@dataclass(frozen=True, slots=True)
class Counts:
    """The server's own counts."""

    hits: int
    misses: int
    loads: int
    evictions: int


def read_counts(metrics: str) -> Counts:
    """Counts out of the text of `GET /metrics`."""
    totals = dict.fromkeys(("modelpool_hits_total", "modelpool_misses_total", "modelpool_loads_total", "evictions"), 0.0)
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name in totals:
                totals[sample.name] += sample.value
            elif sample.name == "modelpool_unloads_total" and sample.labels["reason"] == "space":
                totals["evictions"] += sample.value
    return Counts(*(int(value) for value in totals.values()))


def latencies_ms(served: Sequence[Served], loads: Mapping[str, Sequence[float]]) -> tuple[list[float], list[float]]:
    """Latencies of hits and of misses. loads: by model, when its loads ended; a miss is a request during which its model was loaded."""
    hits: list[float] = []
    misses: list[float] = []
    for one in served:
        missed = any(one.sent_at <= at <= one.received_at for at in loads.get(one.model, ()))
        (misses if missed else hits).append((one.received_at - one.sent_at) * 1e3)
    return hits, misses


def _p99(values: Sequence[float]) -> float:
    return float(np.percentile(values, 99)) if values else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """All that the last lines say."""

    outcome: Outcome
    counts: Counts
    verdict: Verdict
    lru_hits: int
    hit_ms: list[float]
    miss_ms: list[float]
    peak_bytes: int
    budget_bytes: int

    def faults(self) -> list[str]:
        """What the run was to show and did not; empty for a success."""
        found = []
        if self.outcome.errors:
            found.append(f"{len(self.outcome.errors)} requests failed, the first: {self.outcome.errors[0]}")
        if self.verdict.wrong:
            found.append(f"{self.verdict.wrong} answers were wrong, the first: {self.verdict.faults[0]}")
        if self.verdict.checked != len(self.outcome.served):
            found.append(f"{self.verdict.checked} of {len(self.outcome.served)} answers were checked")
        if self.counts.hits < LEAST_OF_LRU * self.lru_hits:
            found.append(f"{self.counts.hits} hits are fewer than {LEAST_OF_LRU} x those of plain LRU, {self.lru_hits}")
        if self.peak_bytes > MOST_OF_BUDGET * self.budget_bytes:
            found.append(f"{self.peak_bytes / MB:.0f} MB are more than {MOST_OF_BUDGET} x the budget")
        return found

    def summary(self, models: Sequence[Mapping[str, Any]]) -> list[str]:
        """Lines for people."""
        served, asked = len(self.outcome.served), len(set(self.outcome.sent))
        counts, peak_mb, budget_mb = self.counts, self.peak_bytes / MB, self.budget_bytes / MB
        lines = [
            f"{served} requests to {asked} of {len(models)} models were answered, and {self.verdict.checked} answers checked.",
            f"{counts.hits} found their model in memory, {counts.misses} waited for a load; plain LRU would have had {self.lru_hits} hits.",
            f"{counts.loads} loads, {counts.evictions} evictions, at most {peak_mb:.1f} MB of {budget_mb:.1f} MB in use.",
        ]
        words = {
            "magika": "files were given the type that their name promises",
            "ocr_det": "pages were found to carry text",
            "ocr_rec": "drawn lines were read to the letter",
            "ocr_cls": "lines were told upright or upside down",
        }
        for name, (right, total) in sorted(self.verdict.meant.items()):
            lines.append(f"{name}: {right} of {total} {words[name]}.")
        return lines

    def result(self) -> str:
        """The last line, for programs."""
        figures = {
            "requests": len(self.outcome.sent),
            "hits": self.counts.hits,
            "lru_hits": self.lru_hits,
            "loads": self.counts.loads,
            "evictions": self.counts.evictions,
            "errors": len(self.outcome.errors),
            "wrong_answers": self.verdict.wrong,
            "p99_hit_ms": f"{_p99(self.hit_ms):.1f}",
            "p99_miss_ms": f"{_p99(self.miss_ms):.1f}",
            "peak_mb": f"{self.peak_bytes / MB:.1f}",
            "budget_mb": f"{self.budget_bytes / MB:.1f}",
        }
        return "RESULT " + " ".join(f"{key}={value}" for key, value in figures.items())
