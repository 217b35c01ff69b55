"""What loads, runs and unloads cost in virtual time: what the record saw, else what was learned, else a guess from the size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from modelpool.protocol import trace

GUESS_FIXED_S = 0.05
GUESS_BYTES_PER_S = 500e6
UNLOAD_S = 0.005


@dataclass(frozen=True, slots=True)
class LoadCost:
    """One load: seconds, bytes after it, bytes at its peak."""

    load_s: float
    private_bytes: int
    load_peak_bytes: int


class Costs:
    """Costs by model. Recorded loads come back in their order, then their mean."""

    def __init__(self, lines: Iterable[trace.Line]) -> None:
        self._recorded: dict[str, deque[LoadCost]] = {}
        self._mean: dict[str, LoadCost] = {}
        self._known: dict[str, LoadCost] = {}
        for line in lines:
            if isinstance(line, trace.Load) and line.ok:
                cost = LoadCost(line.load_s, line.private_bytes, line.load_peak_bytes)
                self._recorded.setdefault(line.model, deque()).append(cost)
            elif isinstance(line, trace.Model):
                self._known[line.model] = _known_cost(line)
        for model, costs in self._recorded.items():
            count = len(costs)
            self._mean[model] = LoadCost(
                sum(cost.load_s for cost in costs) / count,
                sum(cost.private_bytes for cost in costs) // count,
                sum(cost.load_peak_bytes for cost in costs) // count,
            )

    def of_load(self, model: str) -> LoadCost:
        """The cost of the model's next load."""
        if recorded := self._recorded.get(model):
            return recorded.popleft()
        if (mean := self._mean.get(model)) is not None:
            return mean
        return self._known.get(model, LoadCost(GUESS_FIXED_S, 0, 0))


def _known_cost(line: trace.Model) -> LoadCost:
    for learned in line.learned.values():
        return LoadCost(learned["load_s"], int(learned["private_bytes"]), int(learned["load_peak_bytes"]))
    size = int(line.residency.get("size_bytes") or line.estimate_bytes)
    return LoadCost(GUESS_FIXED_S + size / GUESS_BYTES_PER_S, size, size)
