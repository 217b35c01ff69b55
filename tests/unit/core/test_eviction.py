"""The order in which policies give up copies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from modelpool.core.copies import Copy
from modelpool.core.demand import DemandTable
from modelpool.core.eviction import POLICIES, EvictionContext
from modelpool.core.model import ModelSpec, Residency
from modelpool.core.ready import ReadyCopies
from modelpool.core.settings import CoreSettings
from modelpool.core.state import ModelState
from tests.core_shell import CoreShell, spec

NOW = 1000.0


class _Past:
    """Copies with a past: each was loaded and used when a test says so."""

    def __init__(self) -> None:
        self.demand = DemandTable()
        self.copies: list[Copy] = []
        self.arrivals: list[tuple[float, int]] = []

    def add(self, name: str, *, loaded_at: float, used_at: float, arrivals: Sequence[float] = (), priority: int = 0) -> None:
        model = ModelState(ModelSpec(name, "1", "onnx", residency=Residency(priority=priority)), self.demand.open_row())
        self.demand.weigh(model.row, 2.0**model.priority)
        copy = Copy(len(self.copies), model, "local", 1, None, "1", False)
        copy.slot, copy.loaded_at, copy.idle_since = model.row, loaded_at, used_at
        self.copies.append(copy)
        self.arrivals += [(at, model.row) for at in arrivals]

    def order(self, policy: str, load_s: float = 0.0) -> list[str]:
        for at, row in sorted(self.arrivals):
            self.demand.arrive(row, at)
        candidates = ReadyCopies()
        for copy in self.copies:
            candidates.add(copy)
        context = EvictionContext(NOW, self.demand, CoreSettings(), load_s)
        return [copy.model.name for copy in POLICIES[policy](candidates, context)]


def test_lru_gives_up_what_was_used_longest_ago() -> None:
    past = _Past()
    past.add("new", loaded_at=1, used_at=999)
    past.add("old", loaded_at=2, used_at=998)
    assert past.order("lru") == ["old", "new"]


def test_fifo_gives_up_what_was_loaded_first() -> None:
    past = _Past()
    past.add("first", loaded_at=1, used_at=999)
    past.add("second", loaded_at=2, used_at=998)
    assert past.order("fifo") == ["first", "second"]


def test_demand_gives_up_the_long_idle_first_and_then_the_seldom_asked_for() -> None:
    past = _Past()
    past.add("busy", loaded_at=1, used_at=980, arrivals=[995, 996, 997])
    past.add("seldom", loaded_at=1, used_at=999, arrivals=[995])
    past.add("idle", loaded_at=1, used_at=930, arrivals=[999, 999, 999, 999])
    past.add("longest idle", loaded_at=1, used_at=900)
    assert past.order("demand") == ["longest idle", "idle", "seldom", "busy"]


def test_demand_breaks_ties_by_the_last_completion() -> None:
    past = _Past()
    past.add("later", loaded_at=1, used_at=999, arrivals=[995])
    past.add("earlier", loaded_at=2, used_at=998, arrivals=[996])
    assert past.order("demand") == ["earlier", "later"]


def test_demand_looks_back_for_as_long_as_the_load_suggests() -> None:
    past = _Past()
    past.add("lately", loaded_at=1, used_at=999, arrivals=[998, 999])
    past.add("before", loaded_at=1, used_at=998, arrivals=[960, 961, 962])
    assert past.order("demand") == ["before", "lately"]  # 10 s
    past.arrivals = []
    assert past.order("demand", load_s=10.0) == ["lately", "before"]  # 50 s


def test_a_step_of_priority_doubles_the_rate() -> None:
    past = _Past()
    past.add("dear", loaded_at=1, used_at=999, arrivals=[998, 999], priority=1)
    past.add("plain", loaded_at=1, used_at=998, arrivals=[997, 998, 999])
    assert past.order("demand") == ["plain", "dear"]


@pytest.mark.parametrize("policy", ["demand", "lru", "fifo"])
def test_each_policy_makes_room(policy: str) -> None:
    shell = CoreShell(eviction=policy)
    shell.up(cpu=100)
    shell.add(spec("a", 60), spec("b", 60))
    shell.serve("a")
    shell.serve("b")
    assert shell.resident() == {"b"}
