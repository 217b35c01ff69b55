"""Eviction policies: each orders the candidates, least worth first; the planner chooses the set.

A policy is pure. Candidates come in the order of their last completion, oldest first; the context says which model is to be loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from modelpool.core.copies import Copy
from modelpool.core.demand import DemandTable
from modelpool.core.settings import CoreSettings


@dataclass(frozen=True, slots=True)
class EvictionContext:
    """What a policy may look at besides the candidates. load_s: measured load time of the model to be loaded (0: not known)."""

    now: float
    demand: DemandTable
    settings: CoreSettings
    load_s: float

    @property
    def demand_window_s(self) -> float:
        """The window for arrival rates, the same for all candidates."""
        return max(self.settings.demand_window_min_s, self.settings.demand_window_factor * self.load_s)


Policy = Callable[[Sequence[Copy], EvictionContext], Iterable[Copy]]


def lru(candidates: Sequence[Copy], context: EvictionContext) -> Iterable[Copy]:
    """The oldest last completion first; what is in use is the most recently used."""
    return sorted(candidates, key=lambda copy: copy.leases > 0)


def fifo(candidates: Sequence[Copy], context: EvictionContext) -> Iterable[Copy]:
    """The copy loaded first goes first."""
    return sorted(candidates, key=lambda copy: (copy.loaded_at, copy.ident))


def demand(candidates: Sequence[Copy], context: EvictionContext) -> Iterator[Copy]:
    """The original request's rules.

    (a) Idle copies whose last completion is older than `idle_window_s`, the oldest first.
    (b) Then the lowest arrival rate over `demand_window_s` first, ties to the oldest completion. A priority doubles a rate at each step.
    """
    horizon = context.now - context.settings.idle_window_s
    rest: list[Copy] = []
    for place, copy in enumerate(candidates):
        if copy.idle_since >= horizon:
            rest += candidates[place:]
            break
        if copy.leases:
            rest.append(copy)
        else:  # (a)
            yield copy
    if not rest:
        return
    rows = np.fromiter([copy.slot for copy in rest], np.intp, len(rest))  # (b)
    rates = context.demand.weighted(rows, context.demand_window_s, context.now)
    for index in np.argsort(rates, kind="stable").tolist():
        yield rest[index]


POLICIES: dict[str, Policy] = {"demand": demand, "lru": lru, "fifo": fifo}
NO_EVICTION = "none"
"""The policy that evicts nothing: a load that does not fit is refused and says what to eject."""
