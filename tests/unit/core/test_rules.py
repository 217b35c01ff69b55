"""Small rules of the core, one test each."""

from __future__ import annotations

import numpy as np
import pytest

from modelpool.core.copies import SLOW_LOAD_S, CopyState
from modelpool.core.core import Core
from modelpool.core.demand import DemandTable
from modelpool.core.events import (
    BudgetChanged,
    CommandGone,
    CopyLost,
    InstanceDown,
    InstanceUp,
    Loaded,
    LoadFailed,
    ModelAdded,
    ModelRemoved,
    Observed,
    PinWanted,
    RequestGone,
    Stopping,
)
from modelpool.core.explain import explain
from modelpool.core.settings import CoreSettings
from tests.core_shell import ANY_OVERRUN, CoreShell, spec


def pool(budget: int = 100, /, *sizes: int, **settings: object) -> CoreShell:
    """A core with one device, and models a, b, c, .. of these sizes."""
    shell = CoreShell(overrun_bytes=ANY_OVERRUN, **settings)
    shell.up(cpu=budget)
    for name, size in zip("abcdefgh", sizes, strict=False):
        shell.add(spec(name, size))
    return shell


def lose(shell: CoreShell, model: str) -> None:
    """A model's process dies while it runs."""
    copy = shell.copy(model)
    shell.leases.clear()
    shell.send(CopyLost("local", 1, copy.ident, "signal 9", running=True))


# --- the owner's questions -------------------------------------------------------------------------------------------------------
def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="known are demand"):
        Core(CoreSettings(eviction="random"))


def test_the_core_says_what_it_waits_for() -> None:
    shell = pool(100, 60, 60)
    shell.request("a")
    shell.loaded("a")
    shell.request("b")
    shell.add(spec("idle", 10))
    assert shell.core.in_flight == 1
    assert shell.core.queued == 1
    assert shell.core.waiting_for() == {"a": 1, "b": 1}


def test_a_step_that_the_life_cycle_lacks_raises() -> None:
    shell = pool(100, 60)
    shell.serve("a")
    with pytest.raises(AssertionError, match="life cycle"):
        shell.copy("a").move(CopyState.LOADING, shell.now)


def test_a_lease_that_is_over_ends_nothing() -> None:
    shell = pool(100, 60)
    request = shell.request("a")
    shell.loaded("a")
    lease = shell.leases[request]
    shell.end(request)
    assert not shell.core.end_lease(lease, shell.now)


# --- demand and eviction ---------------------------------------------------------------------------------------------------------
def test_rows_of_the_demand_table_are_given_back_and_grow() -> None:
    table = DemandTable()
    rows = [table.open_row() for _ in range(70)]
    table.arrive(rows[-1], 1.0)
    assert table.rate(rows[-1], 1.0, 1.0) == 1.0
    table.close_row(rows[-1])
    assert table.open_row() == rows[-1]
    assert table.rates(np.array(rows), 100.0, 2.0).sum() == 0


def test_a_copy_idle_for_long_goes_before_one_seldom_asked_for() -> None:
    shell = pool(100, 30, 30, 60, idle_window_s=60.0, keep_alive_s=1000.0)
    for _ in range(5):
        shell.serve("a")
    shell.wait(70)
    shell.serve("b")
    shell.request("c")
    assert shell.leaving() == ["a"]


# --- commands --------------------------------------------------------------------------------------------------------------------
def test_a_load_of_what_is_there_is_done_at_once() -> None:
    shell = pool(100, 60)
    shell.serve("a")
    assert shell.done[shell.load("a")].devices == ("cpu",)
    assert shell.done[shell.load("a", "cpu")].devices == ("cpu",)


def test_a_load_of_an_unknown_or_forgotten_model_is_refused() -> None:
    shell = pool(100, 60)
    assert shell.done[shell.load("nobody")].code == "model_not_found"
    shell.send(ModelRemoved("a", forgotten=True))
    assert shell.done[shell.load("a")].code == "model_forgotten"
    assert shell.refused[shell.request("a")].code == "model_forgotten"


def test_a_load_on_a_device_that_is_not_there_is_refused() -> None:
    shell = pool(100, 60)
    assert shell.done[shell.load("a", "cuda:3")].code == "device_not_found"


def test_a_load_on_another_device_than_where_it_is() -> None:
    shell = CoreShell()
    shell.up(cpu=100, cuda_0=100)
    shell.add(spec("a", 60, device_kinds=("cpu", "cuda")))
    shell.serve("a")
    done = shell.done[shell.load("a", "cuda:0")]
    assert done.code == "refused"
    assert done.message


def test_a_command_that_nobody_waits_for_is_dropped() -> None:
    shell = pool(100, 60)
    shell.up("other", 1)  # no device: nothing changes
    command = shell.load("a")
    shell.send(CommandGone(command, "a"))
    del shell.commanded[command]
    shell.work()
    shell.send(CommandGone(99, "nobody"))
    assert shell.resident() == {"a"}


def test_a_load_that_waits_too_long_is_told() -> None:
    shell = pool(100, 60, 60)
    shell.request("a")
    shell.loaded("a")
    command = shell.load("b", deadline=shell.now + 5)
    shell.wait(6)
    assert shell.done[command].code == "timeout"


def test_an_eject_during_a_load_waits_for_those_who_wait() -> None:
    shell = pool(100, 60)
    request = shell.request("a")
    command = shell.eject("a")
    shell.loaded("a")
    assert request in shell.leases
    shell.end(request)
    shell.work()
    assert shell.done[command].devices == ("cpu",)
    assert not shell.world.models["a"].copies


def test_the_time_of_a_load_that_is_done_means_nothing() -> None:
    shell = pool(100, 60)
    command = shell.load("a", deadline=shell.now + 5)
    shell.work()
    shell.wait(6)
    assert shell.done[command].code is None


def test_two_users_may_eject_the_same_model() -> None:
    shell = pool(100, 60)
    shell.serve("a")
    running = shell.request("a")
    commands = [shell.eject("a"), shell.eject("a", "cpu")]
    shell.end(running)
    shell.work()
    assert all(shell.done[command].devices == ("cpu",) for command in commands)
    shell.wait(400)  # the keep-alive of a copy that is gone means nothing


def test_an_eject_of_what_is_not_there_is_refused() -> None:
    shell = pool(100, 60)
    assert shell.done[shell.eject("a")].code == "model_not_in_cache"
    assert shell.done[shell.eject("nobody")].code == "model_not_in_cache"


# --- requests --------------------------------------------------------------------------------------------------------------------
def test_the_queue_is_bounded() -> None:
    shell = pool(100, 60, queue_bound=2)
    requests = [shell.request("a") for _ in range(3)]
    refusal = shell.refused[requests[-1]]
    assert refusal.code == "queue_full"
    assert refusal.retry_after_s


def test_a_request_that_waits_too_long_is_told() -> None:
    shell = pool(100, 60)
    request = shell.request("a", timeout_s=5)
    shell.wait(6)
    assert shell.refused[request].code == "timeout"


def test_a_request_that_nobody_waits_for_is_dropped() -> None:
    shell = pool(100, 60)
    request = shell.request("a")
    shell.send(RequestGone(request, "a"))
    del shell.asked[request]
    shell.send(RequestGone(request, "a"))
    shell.send(RequestGone(77, "nobody"))
    shell.loaded("a")
    assert not shell.leases


def test_no_space_says_what_to_eject_and_when_nothing_helps() -> None:
    shell = pool(100, 60, 60, 80, eviction="none")
    shell.serve("a")
    assert "eject a" in shell.refused[shell.request("b")].message
    shell.send(PinWanted("a", True))
    assert shell.refused[shell.request("c")].code == "no_space"


def test_a_stopping_server_loads_nothing_and_serves_what_is_there() -> None:
    shell = pool(100, 60, 60)
    shell.serve("a")
    waiting = shell.request("b")
    shell.send(Stopping())
    assert shell.refused[waiting].code == "shutting_down"
    assert shell.refused[shell.request("b")].code == "shutting_down"
    assert shell.done[shell.load("b")].code == "shutting_down"


# --- failures --------------------------------------------------------------------------------------------------------------------
def test_failed_loads_pause_longer_each_time() -> None:
    shell = pool(100, 60, retry_min_s=1.0, retry_max_s=60.0)
    pauses = []
    for _ in range(3):
        request = shell.request("a")
        load = shell.loading("a")
        del shell.loads[load.copy]
        shell.send(LoadFailed("local", 1, load.copy, "load_failed", "no"))
        pauses.append(shell.refused[request].retry_after_s)
        assert shell.refused[shell.request("a")].code == "load_failed"
        shell.wait(pauses[-1] or 0)
    assert pauses == [1.0, 2.0, 4.0]
    state, now, _ = explain(shell.core, "a", shell.now)
    assert state == "UNAVAILABLE"
    assert any("in a row" in sentence for sentence in now)


def test_a_load_that_ends_the_process_is_isolated_the_next_time() -> None:
    shell = pool(100, 60)
    shell.request("a")
    load = shell.loading("a")
    del shell.loads[load.copy]
    shell.send(LoadFailed("local", 1, load.copy, "load_failed", "died", died=True))
    shell.wait(2)
    shell.request("a")
    assert shell.loading("a").isolated


def test_a_load_that_ends_its_process_three_times_is_quarantined() -> None:
    shell = pool(100, 60)
    for isolated in (False, True, True):
        request = shell.request("a")
        load = shell.loading("a")
        assert load.isolated is isolated
        del shell.loads[load.copy]
        shell.send(LoadFailed("local", 1, load.copy, "load_failed", "signal 9", died=True))
        assert shell.refused[request].code == "load_failed"
        shell.wait(10)
    refusal = shell.refused[shell.request("a")]
    assert refusal.code == "quarantined"
    assert "signal 9" in refusal.message
    shell.load("a")
    assert shell.loading("a").isolated


def test_two_deaths_isolate_and_a_third_quarantines() -> None:
    shell = pool(100, 60)
    for isolated in (False, False, True):
        request = shell.request("a")
        assert shell.loading("a").isolated is isolated
        shell.loaded("a")
        assert request in shell.leases
        lose(shell, "a")
    refusal = shell.refused[shell.request("a")]
    assert refusal.code == "quarantined"
    assert refusal.retry_after_s is None
    _, now, _ = explain(shell.core, "a", shell.now)
    assert any("not tried again" in sentence for sentence in now)
    shell.load("a")
    shell.work()
    assert shell.resident() == {"a"}


def test_a_request_longer_than_the_run_limit_restarts_its_process() -> None:
    shell = pool(100, 60, run_limit_s=100.0)
    shell.request("a")
    shell.loaded("a")
    shell.wait(200)
    assert len(shell.recycles) == 1


def test_the_process_of_an_isolated_copy_alone_is_restarted() -> None:
    shell = CoreShell(run_limit_s=100.0)
    shell.up(cpu=100)
    shell.add(spec("a", 60, isolation="process"))
    shell.request("a")
    shell.loaded("a")
    shell.wait(200)
    (action,) = shell.recycles
    assert action.copy == shell.copy("a").ident


def test_an_instance_that_is_drained_waits_for_its_loads_and_its_requests() -> None:
    shell = pool(1000, 300, 300, verify_slack_bytes=0, unreturned_limit_bytes=10)
    request = shell.request("a")
    shell.loaded("a")
    shell.send(Observed("local", 1, total_bytes=900))
    assert not shell.recycles
    assert shell.copy("a").state is CopyState.DRAINING
    shell.end(request)
    assert len(shell.recycles) == 1
    waiting = shell.request("b")
    shell.send(InstanceDown("local", 1, "recycled"))
    shell.send(InstanceUp("local", 2, (("cpu", 1000),)))
    shell.work()
    assert waiting in shell.leases


# --- the catalogue ---------------------------------------------------------------------------------------------------------------
def test_a_changed_model_is_loaded_anew() -> None:
    shell = pool(100, 40)
    shell.serve("a")
    shell.add(spec("a", 40, revision="2"))
    assert shell.leaving() == ["a"]
    shell.work()
    shell.serve("a")
    assert shell.copy("a").revision == "2"


def test_a_model_that_changes_and_changes_back_while_it_loads_is_kept() -> None:
    shell = pool(100, 40)
    request = shell.request("a")
    shell.add(spec("a", 40, revision="2"))
    shell.add(spec("a", 40))
    shell.loaded("a")
    assert request in shell.leases
    assert shell.resident() == {"a"}


def test_a_model_that_changed_while_it_loaded_is_loaded_again() -> None:
    shell = CoreShell(overrun_bytes=ANY_OVERRUN)
    shell.up(cpu=100)
    shell.add(spec("a", estimate_bytes=10))
    request = shell.request("a")
    shell.add(spec("a", estimate_bytes=10, revision="2"))
    shell.work()
    assert request in shell.leases
    assert shell.copy("a").revision == "2"


def test_a_policy_of_its_own_can_change_without_a_load() -> None:
    shell = pool(100, 40, keep_alive_s=1000.0)
    shell.serve("a")
    shell.add(spec("a", 40, keep_alive_s=5.0, pinned=True))
    shell.wait(20)
    assert shell.resident() == {"a"}
    shell.add(spec("a", 40, keep_alive_s=5.0))
    shell.wait(20)
    assert shell.leaving() == ["a"]


def test_a_pin_keeps_a_copy_that_was_to_leave_for_others() -> None:
    shell = pool(100, 60, 60)
    shell.serve("a")
    running = shell.request("a")
    shell.request("b")
    assert shell.copy("a").state is CopyState.DRAINING
    shell.send(PinWanted("a", True))
    assert shell.copy("a").state is CopyState.READY
    shell.end(running)
    assert shell.resident() == {"a"}


def test_a_pin_in_the_policy_keeps_it_too() -> None:
    shell = pool(100, 60, 60)
    shell.serve("a")
    running = shell.request("a")
    shell.request("b")
    shell.add(spec("a", 60, pinned=True))
    assert shell.copy("a").state is CopyState.READY
    shell.end(running)


# --- measurements and budgets ----------------------------------------------------------------------------------------------------
def test_a_smaller_budget_sends_copies_away() -> None:
    shell = pool(100, 40, 40)
    shell.serve("a")
    shell.serve("b")
    shell.send(BudgetChanged("local", 1, "cpu", 50))
    assert shell.leaving() == ["a"]
    shell.send(BudgetChanged("local", 1, "cuda:9", 50))
    shell.work()
    assert shell.resident() == {"b"}


def test_a_budget_below_everything_sends_all_away() -> None:
    shell = pool(100, 40, 40)
    shell.serve("a")
    shell.serve("b")
    shell.send(BudgetChanged("local", 1, "cpu", 10))
    shell.work()
    assert shell.resident() == set()


def test_a_smaller_budget_gives_up_reservations() -> None:
    shell = pool(100, 60, 60)
    shell.serve("a")
    running = shell.request("a")
    waiting = shell.request("b")
    shell.send(BudgetChanged("local", 1, "cpu", 65))
    shell.end(running)
    shell.work()
    assert waiting in shell.leases


def test_run_peaks_are_learned_and_make_room() -> None:
    shell = CoreShell(overrun_bytes=ANY_OVERRUN)
    shell.up(cpu=120)
    for name in "ab":
        shell.add(spec(name, estimate_bytes=40))
        request = shell.request(name)
        shell.loaded(name, private_bytes=40)
        shell.end(request)
    shell.send(Observed("local", 1, run_peaks=((shell.copy("b").ident, 50), (999, 5))))
    assert shell.leaving() == ["a"]
    assert shell.world.models["b"].learned["cpu"].run_peak_bytes == 50
    shell.send(Observed("local", 1, run_peaks=((shell.copy("b").ident, 40),)))
    assert shell.world.models["b"].learned["cpu"].run_peak_bytes == 50


def test_a_model_measured_larger_than_any_budget_is_sent_away_and_never_tried_again() -> None:
    shell = CoreShell(overrun_bytes=ANY_OVERRUN)
    shell.up(cpu=100)
    shell.add(spec("a", estimate_bytes=40))
    request = shell.request("a")
    shell.loaded("a", private_bytes=150)
    assert shell.refused[request].code == "never_fits"
    shell.work()
    assert shell.refused[shell.request("a")].code == "never_fits"


def test_an_eviction_after_the_keep_alive_is_not_premature() -> None:
    shell = pool(100, 60, 60, 60, keep_alive_s=5.0)
    shell.send(PinWanted("a", True))
    shell.work()
    shell.wait(10)
    shell.send(PinWanted("a", False))
    shell.serve("b")
    assert shell.world.counters.premature_unloads == 0
    shell.serve("c")
    assert shell.world.counters.premature_unloads == 1


# --- placement -------------------------------------------------------------------------------------------------------------------
def test_a_model_of_a_kind_that_is_not_there_is_refused() -> None:
    shell = CoreShell()
    shell.up(cpu=100)
    shell.add(spec("a", 40, device_kinds=("cuda",)))
    refusal = shell.refused[shell.request("a")]
    assert refusal.code == "device_not_found"
    assert "cpu" in refusal.message


def test_a_request_waits_for_an_instance_that_is_coming() -> None:
    shell = CoreShell()
    shell.add(spec("a", 40))
    request = shell.request("a")
    shell.up(cpu=100)
    shell.work()
    assert request in shell.leases


def test_a_request_waits_for_a_device_of_an_instance_that_is_down() -> None:
    shell = CoreShell()
    shell.up("one", 1, cpu=100)
    shell.up("two", 1, cuda_0=100)
    shell.send(InstanceDown("two", 1, "killed"))
    shell.add(spec("a", 40, device_kinds=("cuda",)))
    request = shell.request("a")
    assert request in shell.asked
    shell.up("two", 2, cuda_0=100)
    shell.work()
    assert request in shell.leases


def test_a_request_waits_for_a_device_whose_instance_is_busy() -> None:
    shell = CoreShell()
    shell.up("one", 1, cpu=100)
    shell.up("two", 1, cuda_0=100)
    shell.add(spec("a", 40, device_kinds=("cuda",)), spec("b", 40, device_kinds=("cuda",)))
    shell.request("a")
    request = shell.request("b")
    assert len(shell.loads) == 1
    shell.work()
    assert request in shell.leases


def test_the_emptier_of_two_instances_is_taken() -> None:
    shell = CoreShell()
    shell.up("one", 1, cpu=100)
    shell.up("two", 1, cpu=100)
    shell.add(spec("a", 40), spec("b", 40))
    shell.serve("a")
    shell.serve("b")
    assert {shell.copy("a").instance, shell.copy("b").instance} == {"one", "two"}


def test_a_busy_instance_leaves_others_to_load() -> None:
    shell = CoreShell(loads_at_once=1)
    shell.up("one", 1, cpu=100)
    shell.up("two", 1, cpu=50)
    shell.add(spec("a", 60), spec("b", 60), spec("c", 30))
    shell.request("a")
    shell.request("b")
    shell.request("c")
    assert sorted(load.model for load in shell.loads.values()) == ["a", "c"]
    shell.work()
    for request in list(shell.leases):
        shell.end(request)
    shell.work()
    assert not shell.asked


def test_explanations_of_what_is_there_and_what_is_not() -> None:
    shell = pool(100, 40, 40, 40)
    for name in "ab":
        shell.serve(name)
    state, now, _ = explain(shell.core, "b", shell.now)
    assert state == "READY"
    assert any("would go before it" in sentence for sentence in now)
    _, _, to_load = explain(shell.core, "c", shell.now)
    assert any("would leave" in sentence for sentence in to_load)
    shell.eject("a")
    shell.work()
    _, _, to_load = explain(shell.core, "c", shell.now)
    assert any("nothing has to leave" in sentence for sentence in to_load)
    waiting = shell.request("c")
    shell.loaded("c")
    assert any("would go before it" in sentence for sentence in explain(shell.core, "c", shell.now)[1])
    shell.end(waiting)


def test_late_loads_are_ignored() -> None:
    shell = pool(100, 40)
    shell.send(Loaded("local", 1, 999, 1, 1, 0.1))
    shell.send(Loaded("local", 7, 999, 1, 1, 0.1))
    assert shell.world.counters.late_events == 2


def test_learned_figures_are_for_one_revision() -> None:
    shell = CoreShell(overrun_bytes=ANY_OVERRUN)
    shell.up(cpu=100)
    shell.send(ModelAdded(spec("a", estimate_bytes=10)))
    shell.serve("a")
    assert shell.world.models["a"].learned
    shell.send(ModelAdded(spec("a", estimate_bytes=10, revision="2")))
    assert not shell.world.models["a"].learned


# --- what the residency policy does not do yet ---------------------------------------------------------------------------------------
def test_a_model_has_one_copy() -> None:
    shell = pool(100, 10)
    shell.add(spec("many", 10, min_copies=3, max_copies=3))
    assert [load.model for load in shell.loads.values()] == ["many"]  # kept without any demand
    shell.loaded("many")
    requests = [shell.request("many"), shell.request("many")]
    assert shell.loads == {}
    for request in requests:
        shell.end(request)
    shell.eject("many")
    shell.unloaded("many")
    assert [load.model for load in shell.loads.values()] == ["many"]


# --- what a process of its own holds ------------------------------------------------------------------------------------------------
def test_a_process_that_grows_costs_its_own_model_only() -> None:
    shell = pool(1000, 300, verify_slack_bytes=0, unreturned_limit_bytes=50)
    shell.add(spec("leak", 200, isolation="process"))
    shell.serve("a")
    shell.serve("leak")
    leak = shell.copy("leak").ident
    shell.send(Observed("local", 1, total_bytes=300, own_bytes=((leak, 240),)))
    assert shell.world.devices()[0].unreturned_bytes == 40  # not given away
    assert shell.leaving() == []
    request = shell.request("leak")
    shell.send(Observed("local", 1, total_bytes=300, own_bytes=((leak, 260),)))
    assert shell.leaving() == ["leak"]
    assert shell.resident() == {"a"}
    assert not shell.recycles
    shell.end(request)
    shell.unloaded("leak", 300)
    assert shell.world.devices()[0].unreturned_bytes == 0
    assert shell.world.counters.unloads["leak", "grown"] == 1
    shell.serve("leak")


def test_a_process_that_grew_and_is_on_its_way_out_is_not_sent_away_twice() -> None:
    shell = pool(1000, 300, verify_slack_bytes=0, unreturned_limit_bytes=50)
    shell.add(spec("leak", 200, isolation="process"))
    shell.serve("leak")
    shell.eject("leak")
    shell.send(Observed("local", 1, total_bytes=0, own_bytes=((shell.copy("leak").ident, 400),)))
    assert shell.leaving() == ["leak"]
    shell.unloaded("leak", 0)
    assert shell.world.counters.unloads["leak", "eject"] == 1


def test_while_others_load_nothing_is_concluded_from_memory() -> None:
    shell = pool(1000, 300, 300, verify_slack_bytes=0, unreturned_limit_bytes=50)
    shell.serve("a")
    shell.load("b")
    shell.send(Observed("local", 1, total_bytes=900))
    assert not shell.recycles


def test_what_an_isolated_copy_was_charged_excuses_no_other_process() -> None:
    shell = pool(1000, 300, verify_slack_bytes=0, unreturned_limit_bytes=50)
    shell.add(spec("own", 200, isolation="process"))
    shell.serve("a")
    shell.serve("own")
    shell.send(Observed("local", 1, total_bytes=360, own_bytes=((shell.copy("own").ident, 10),)))
    (recycle,) = shell.recycles
    assert "60 B did not come back" in recycle.reason


def test_a_load_that_blocks_in_a_process_of_its_own_keeps_others_waiting_only_so_long() -> None:
    shell = pool(1000, 300, 300)
    shell.add(spec("blocks", 200, isolation="process"))
    shell.request("blocks")
    shell.request("a")
    shell.request("b")
    assert [load.model for load in shell.loads.values()] == ["blocks"]
    shell.wait(SLOW_LOAD_S)
    assert [load.model for load in shell.loads.values()] == ["blocks", "a"]
    shell.loaded("a")
    assert [load.model for load in shell.loads.values()] == ["blocks", "b"]
