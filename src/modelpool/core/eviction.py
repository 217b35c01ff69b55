"""Eviction policies: each orders the candidates, least worth first; the planner chooses the set.

A policy is pure, and lazy: few copies of a thousand are looked at. The context says what is to be loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modelpool.core.copies import Copy
from modelpool.core.demand import DemandTable
from modelpool.core.ready import ReadyCopies
from modelpool.core.settings import CoreSettings

_FEW = 32


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


Policy = Callable[[ReadyCopies, EvictionContext], Iterable[Copy]]


def lru(candidates: ReadyCopies, context: EvictionContext) -> Iterator[Copy]:
    """The oldest last completion first; what is in use is the most recently used."""
    in_use: list[Copy] = []
    for place in _one_by_one(np.argsort(candidates.completions(), kind="stable")):
        copy = candidates[place]
        if copy.leases:
            in_use.append(copy)
        else:
            yield copy
    yield from in_use


def fifo(candidates: ReadyCopies, context: EvictionContext) -> Iterable[Copy]:
    """The copy loaded first goes first."""
    return sorted(candidates, key=lambda copy: (copy.loaded_at, copy.ident))


def demand(candidates: ReadyCopies, context: EvictionContext) -> Iterator[Copy]:
    """The original request's rules.

    (a) Idle copies whose last completion is older than `idle_window_s`, the oldest first.
    (b) Then the lowest arrival rate over `demand_window_s` first, ties to the oldest completion. A priority doubles a rate at each step.
    """
    completions = candidates.completions()
    if not len(completions):
        return
    horizon = context.now - context.settings.idle_window_s
    given: set[int] = set()
    if completions.min() < horizon:  # (a)
        old = np.flatnonzero(completions < horizon)
        for place in _one_by_one(old[np.argsort(completions[old], kind="stable")]):
            if not candidates[place].leases:
                given.add(place)
                yield candidates[place]
    rates = context.demand.weighted(candidates.rows(), context.demand_window_s, context.now)
    for place in _lowest_first(rates, completions):  # (b)
        if place not in given:
            yield candidates[place]


def _lowest_first(rates: NDArray[np.float64], completions: NDArray[np.float64]) -> Iterator[int]:
    """The places by rate, then by completion. A few are wanted as a rule, so that these are picked out before the rest is sorted."""
    bound = np.partition(rates, _FEW)[_FEW] if len(rates) > _FEW else np.inf
    for some in (np.flatnonzero(rates <= bound), np.flatnonzero(rates > bound)):
        yield from some[np.lexsort((completions[some], rates[some]))].tolist()


def _one_by_one(places: NDArray[np.intp]) -> Iterator[int]:
    """The places as plain numbers; few are wanted."""
    yield from places[:_FEW].tolist()
    yield from places[_FEW:].tolist()


POLICIES: dict[str, Policy] = {"demand": demand, "lru": lru, "fifo": fifo}
NO_EVICTION = "none"
"""The policy that evicts nothing: a load that does not fit is refused and says what to eject."""
