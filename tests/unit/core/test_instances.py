"""Instances that come and go, and the copies that they hold."""

from __future__ import annotations

import pytest

from modelpool.core.actions import Unload
from modelpool.core.copies import CopyState
from modelpool.core.events import (
    BudgetChanged,
    CopyLost,
    Held,
    InstanceDown,
    InstanceUp,
    Loaded,
    LoadFailed,
    ModelAdded,
    ModelRemoved,
    Observed,
    Unloaded,
)
from modelpool.core.model import Learned
from tests.core_shell import ANY_OVERRUN, CoreShell, spec

LEARNED = Learned(private_bytes=30, load_peak_bytes=40, run_peak_bytes=5, load_s=0.2)


def held(copy: int, model: str, revision: str = "1", device: str = "cpu") -> Held:
    return Held(copy, model, revision, device, LEARNED)


def up(shell: CoreShell, *copies: Held, generation: int = 1, budget: int = 100) -> None:
    shell.send(InstanceUp("local", generation, (("cpu", budget),), copies))


# --- copies from before ------------------------------------------------------------------------------------------------------------
def test_a_copy_from_before_serves_those_who_wait() -> None:
    shell = CoreShell()
    shell.add(spec("a", estimate_bytes=10))
    request = shell.request("a")
    up(shell, held(7, "a"))
    assert request in shell.leases
    assert shell.copy("a").charge_bytes == 30
    assert shell.world.next_copy == 8
    assert shell.world.models["a"].learned["cpu"] == LEARNED


def test_a_copy_from_before_takes_the_place_of_a_reservation() -> None:
    shell = CoreShell()
    up(shell)
    shell.add(spec("a", 60), spec("b", 60))
    shell.serve("a")
    running = shell.request("a")
    waiting = shell.request("b")
    shell.send(InstanceUp("other", 1, (("cpu", 100),), (held(50, "b"),)))
    assert waiting in shell.leases
    assert shell.copy("a").state is CopyState.READY
    shell.end(running)


def test_copies_from_before_that_nobody_may_have_are_unloaded() -> None:
    shell = CoreShell(overrun_bytes=ANY_OVERRUN)
    shell.add(spec("changed", revision="2"), spec("twice"))
    up(shell, held(1, "stranger"), held(2, "changed"), held(3, "twice"), held(4, "twice"), held(5, "twice", device="cuda:3"), budget=200)
    reasons = {copy.ident: copy.unload_reason for copy in shell.world.copies.values() if copy.state is CopyState.UNLOADING}
    assert reasons == {1: "removed", 2: "changed", 4: "duplicate"}
    assert shell.copy("changed").charge_bytes == 30
    assert Unload("local", 1, 5, "twice") in shell.actions  # of a device without a budget
    assert shell.unloads.pop(5)
    shell.work()
    assert shell.resident() == {"twice"}
    assert "stranger" not in shell.world.models


def test_a_size_that_was_not_measured_yet_counts_as_nothing() -> None:
    shell = CoreShell()
    shell.add(spec("a", revision="2"))
    shell.send(InstanceUp("local", 1, (("cpu", 100),), (Held(1, "a", "1", "cpu", Learned(30, 40, -1, 0.1)),)))
    assert shell.copy("a").run_peak_bytes == 0


def test_more_copies_from_before_than_the_budget_allows_are_thinned_out() -> None:
    shell = CoreShell(overrun_bytes=ANY_OVERRUN)
    shell.add(spec("a", 30), spec("b", 30))
    up(shell, held(1, "a"), held(2, "b"), budget=50)
    assert shell.leaving() == ["a"]


def test_an_instance_that_comes_up_again_unannounced_holds_only_what_it_says() -> None:
    shell = CoreShell()
    up(shell)
    shell.add(spec("a", 30), spec("b", 30))
    shell.serve("a")
    shell.serve("b")
    running = shell.request("a")
    shell.send(ModelRemoved("a"))
    up(shell, held(40, "b"), generation=2)
    assert shell.resident() == {"b"}
    assert "a" not in shell.world.models
    assert not shell.core.end_lease(shell.leases.pop(running), shell.now)


# --- deaths ------------------------------------------------------------------------------------------------------------------------
def test_a_load_that_dies_with_its_process_fails() -> None:
    shell = CoreShell()
    up(shell)
    shell.add(spec("a", 30), spec("b", 30))
    request = shell.request("a")
    shell.send(InstanceDown("local", 1, "signal 11"))
    assert shell.refused[request].code == "load_failed"
    assert "signal 11" in shell.refused[request].message


def test_an_instance_that_died_takes_its_reservations_along() -> None:
    shell = CoreShell()
    up(shell)
    shell.add(spec("a", 60), spec("b", 60))
    shell.serve("a")
    shell.request("a")
    waiting = shell.request("b")
    shell.send(InstanceDown("local", 1, "killed", ("a",)))
    shell.leases.clear()
    assert shell.world.models["a"].deaths == 1
    up(shell, generation=2)
    shell.work()
    assert waiting in shell.leases


@pytest.mark.parametrize("change", [ModelRemoved("a"), ModelAdded(spec("a", 30, revision="2"))])
def test_the_failure_of_what_nobody_wants_any_more_is_held_against_nobody(change: ModelRemoved | ModelAdded) -> None:
    for died in (False, True):
        shell = CoreShell()
        up(shell)
        shell.add(spec("a", 30))
        shell.load("a")
        load = shell.loading("a")
        shell.send(change)
        del shell.loads[load.copy]
        event = CopyLost("local", 1, load.copy, "killed") if died else LoadFailed("local", 1, load.copy, "load_failed", "no")
        shell.send(event)
        model = shell.world.models.get("a")
        assert model is None or model.failure is None
        assert (model is None) == isinstance(change, ModelRemoved)


def test_news_of_instances_that_are_not_there_is_late() -> None:
    shell = CoreShell()
    up(shell)
    for event in (
        InstanceDown("local", 9, "late"),
        InstanceDown("nobody", 1, "late"),
        LoadFailed("local", 1, 5, "load_failed", "late"),
        Loaded("local", 1, 5, 1, 1, 0.1),
        Unloaded("local", 1, 5),
        CopyLost("local", 1, 5, "late"),
        Observed("local", 2, 5),
        BudgetChanged("local", 2, "cpu", 5),
    ):
        late = shell.world.counters.late_events
        shell.send(event)
        assert shell.world.counters.late_events == late + 1


def test_a_lost_copy_ends_the_eject_that_waits_for_it() -> None:
    shell = CoreShell()
    up(shell)
    shell.send(InstanceUp("other", 1, (("cpu", 100),), ()))
    shell.add(spec("a", 30))
    shell.serve("a")
    request = shell.request("a")
    command = shell.eject("a")
    assert command not in shell.done
    copy = shell.copy("a")
    shell.leases.pop(request)
    shell.send(CopyLost(copy.instance, 1, copy.ident, "killed"))
    assert shell.done[command].code is None


def test_a_copy_that_ends_with_the_server_was_unloaded_and_nobody_is_blamed() -> None:
    shell = CoreShell()
    up(shell)
    shell.add(spec("a", 30))
    for deaths in range(3):  # enough to quarantine a model that does it by itself
        shell.serve("a")
        shell.request("a")
        copy = shell.copy("a")
        shell.leases.clear()
        shell.send(CopyLost("local", 1, copy.ident, "signal 9", running=True, stopped=True))
        assert [(reason.kind, reason.text) for reason in shell.reasons] == [("unloaded", "from cpu (stop)")], deaths
        assert shell.reasons[0].figures == {"reason": "stop", "bytes": 30, "worker": "signal 9"}
    assert shell.world.models["a"].deaths == 0


def test_an_eject_of_two_copies_ends_with_the_second() -> None:
    shell = CoreShell()
    shell.add(spec("a", 30))
    up(shell, held(1, "a"))
    shell.send(InstanceUp("other", 1, (("cpu", 100),), (held(2, "a"),)))
    command = shell.eject("a")
    shell.unloaded("a")
    assert command not in shell.done
    shell.unloaded("a")
    assert shell.done[command].devices == ("cpu",)


def test_requests_go_to_the_copy_with_fewer_of_them() -> None:
    shell = CoreShell()
    shell.add(spec("a", 30))
    up(shell, held(1, "a"))
    shell.send(InstanceUp("other", 1, (("cpu", 100),), (held(2, "a"),)))
    requests = [shell.request("a") for _ in range(4)]
    assert [copy.leases for copy in shell.world.copies.values()] == [2, 2]
    for request in requests:
        shell.end(request)


# --- started anew ------------------------------------------------------------------------------------------------------------------
def test_a_load_that_ends_while_its_instance_drains_serves_and_is_started_anew_with_it() -> None:
    shell = CoreShell(verify_timeout_s=10.0)
    up(shell)
    shell.add(spec("a", 30), spec("b", 30), spec("c", 30))
    shell.serve("a")
    shell.eject("a")
    request = shell.request("b")
    shell.wait(10)  # the unload of a does not end
    assert not shell.recycles
    shell.loaded("b")
    assert shell.copy("b").state is CopyState.DRAINING
    assert not shell.recycles
    shell.end(request)
    assert len(shell.recycles) == 1
    shell.wait(100)
    assert len(shell.recycles) == 1


def test_a_copy_that_drains_for_space_does_not_stay_when_its_instance_is_started_anew() -> None:
    shell = CoreShell(overrun_bytes=ANY_OVERRUN, verify_slack_bytes=0, unreturned_limit_bytes=10)
    up(shell)
    shell.add(spec("a", 60), spec("b", 60))
    shell.serve("a")
    running = shell.request("a")
    shell.send(BudgetChanged("local", 1, "cpu", 50))
    assert shell.copy("a").unload_reason == "space"
    shell.send(Observed("local", 1, total_bytes=90))
    assert shell.copy("a").unload_reason == "recycle"
    shell.send(Observed("local", 1, total_bytes=95))  # it is under way already
    shell.end(running)
    assert len(shell.recycles) == 1


def test_an_isolated_load_that_hangs_is_ended_alone_and_once() -> None:
    shell = CoreShell(load_timeout_s=20.0)
    up(shell)
    shell.add(spec("a", 30, isolation="process"))
    request = shell.request("a")
    shell.wait(21)
    (action,) = shell.recycles
    assert action.copy == shell.copy("a").ident
    shell.loaded("a")  # it came through after all, too late
    assert shell.copy("a").state is CopyState.DRAINING
    shell.wait(400)
    assert len(shell.recycles) == 1
    shell.send(CopyLost("local", 1, action.copy, "killed"))
    assert request in shell.leases


def test_a_shared_load_that_hangs_ends_the_process_at_once() -> None:
    shell = CoreShell(load_timeout_s=20.0)
    up(shell)
    shell.add(spec("a", 30), spec("b", 30))
    shell.serve("b")
    shell.request("b")
    shell.request("a")
    shell.wait(21)
    assert [action.copy for action in shell.recycles] == [None]


def test_only_the_model_for_which_an_instance_was_started_anew_is_blamed() -> None:
    shell = CoreShell(run_limit_s=100.0)
    up(shell)
    shell.add(spec("a", 30), spec("b", 30, isolation="process"), spec("c", 30))
    for name in ("a", "b"):
        shell.serve(name)
    shell.request("a")
    shell.wait(90)
    shell.request("b")
    waiting = shell.request("c")
    assert shell.loading("c")
    shell.wait(36)
    assert [action.copy for action in shell.recycles] == [None]
    shell.send(InstanceDown("local", 1, "a request to 'a' ran longer than run_limit", ("a", "b")))
    assert {name: model.deaths for name, model in shell.world.models.items()} == {"a": 1, "b": 0, "c": 0}
    assert not shell.refused
    shell.leases.clear()
    up(shell, generation=2)
    shell.work()
    assert waiting in shell.leases
    shell.send(InstanceDown("local", 2, "signal 11", ("c",)))  # nobody meant that
    assert shell.world.models["c"].deaths == 1


def test_an_isolated_unload_that_hangs_is_ended_alone() -> None:
    shell = CoreShell(verify_timeout_s=10.0)
    up(shell)
    shell.add(spec("a", 30, isolation="process"))
    shell.serve("a")
    command = shell.eject("a")
    shell.wait(11)
    (action,) = shell.recycles
    shell.send(CopyLost("local", 1, action.copy or 0, "killed"))
    assert shell.done[command].code is None


def test_a_load_or_unload_in_time_is_left_alone() -> None:
    shell = CoreShell(verify_timeout_s=10.0, load_timeout_s=20.0)
    up(shell)
    shell.add(spec("a", 30))
    shell.serve("a")
    shell.eject("a")
    shell.unloaded("a")
    shell.wait(30)
    assert not shell.recycles


def test_an_instance_without_a_cpu_budget_is_not_measured() -> None:
    shell = CoreShell(verify_slack_bytes=0)
    shell.up(cuda_0=100)
    shell.send(Observed("local", 1, total_bytes=90))
    assert shell.world.devices()[0].unreturned_bytes == 0
