"""Instances that differ: what each can run, and whether it can give a copy a process of its own."""

from __future__ import annotations

from dataclasses import replace

from modelpool.core.copies import CopyState
from modelpool.core.events import InstanceDown, InstanceUp, LoadFailed, LoadWanted, Observed, Unloaded
from modelpool.core.model import ModelSpec
from tests.core_shell import CoreShell, spec


def up(shell: CoreShell, instance: str, runtimes: tuple[str, ...] | None = None, *, isolates: bool = True) -> None:
    shell.send(InstanceUp(instance, 1, (("cpu", 100),), (), runtimes, isolates))


def test_a_model_goes_where_its_backend_is() -> None:
    shell = CoreShell()
    up(shell, "local", ("onnx", "python"))
    up(shell, "triton0", ("tensorrt",), isolates=False)
    shell.add(_of("a", "tensorrt"), _of("b", "python"))
    shell.request("a")
    shell.request("b")
    assert {shell.copy(name).instance for name in "a"} == {"triton0"}
    assert shell.copy("b").instance == "local"


def _of(name: str, runtime: str) -> ModelSpec:
    return replace(spec(name, 30), runtime=runtime)


def test_a_model_whose_backend_nobody_has_is_refused() -> None:
    shell = CoreShell()
    up(shell, "local", ("onnx",))
    shell.add(_of("a", "tensorrt"))
    request = shell.request("a")
    assert "backend tensorrt" in shell.refused[request].message


def test_a_device_is_named_with_its_instance() -> None:
    shell = CoreShell()
    up(shell, "triton0")
    up(shell, "triton1")
    shell.add(spec("a", 30))
    shell.send(LoadWanted(1, "a", "triton1/cpu"))
    assert shell.copy("a").instance == "triton1"


def test_where_copies_share_a_process_no_load_is_in_one_of_its_own() -> None:
    shell = CoreShell()
    up(shell, "triton0", isolates=False)
    shell.add(spec("a", 30, isolation="process"))
    shell.request("a")
    assert not shell.copy("a").isolated


def test_there_only_deaths_that_came_of_loads_count() -> None:
    shell = CoreShell(retry_min_s=1.0)
    up(shell, "triton0", isolates=False)
    shell.add(spec("a", 30))
    for generation in range(1, 4):
        shell.send(InstanceUp("triton0", generation, (("cpu", 100),), (), None, False))
        shell.serve("a")
        shell.send(InstanceDown("triton0", generation, "killed", running=("a",)))
    assert shell.world.models["a"].deaths == 0
    shell.send(InstanceUp("triton0", 9, (("cpu", 100),), (), None, False))
    for death in range(1, 4):
        shell.wait(100)
        request = shell.request("a")
        copy = shell.copy("a")
        shell.loads.pop(copy.ident)
        assert copy.state is CopyState.LOADING
        shell.send(LoadFailed("triton0", 9, copy.ident, "load_failed", "it ended the server", died=True))
        assert request in shell.refused
        assert shell.world.models["a"].deaths == death
    assert shell.world.models["a"].failure is not None
    assert shell.world.models["a"].failure.code == "quarantined"


def test_who_waits_for_a_load_on_an_instance_that_was_killed_goes_on_waiting() -> None:
    shell = CoreShell()
    up(shell, "triton0", isolates=False)
    shell.add(spec("a", 30))
    request = shell.request("a")
    shell.send(InstanceDown("triton0", 1, "killed", outside=True))
    assert request not in shell.refused
    up(shell, "triton1", isolates=False)
    shell.loaded("a")
    assert request in shell.leases


def test_an_ensemble_is_loaded_after_its_steps() -> None:
    shell = CoreShell()
    up(shell, "triton0", isolates=False)
    shell.add(spec("step", 30), spec("other", 30), spec("both", 1, requires=("step", "other"), steps_first=True))
    request = shell.request("both")
    order = []
    while shell.loads:
        (name,) = [load.model for load in shell.loads.values()]
        order.append(name)
        shell.loaded(name)
    assert sorted(order[:2]) == ["other", "step"]
    assert order[2:] == ["both"]
    assert request in shell.leases


def test_an_instance_may_say_itself_what_no_copy_of_it_has() -> None:
    shell = CoreShell(verify_slack_bytes=4, unreturned_limit_bytes=20, overrun_bytes=1000)
    up(shell, "triton0", isolates=False)
    shell.add(spec("a", 30))
    shell.serve("a")
    device = shell.world.instances["triton0"].devices["cpu"]
    shell.send(Observed("triton0", 1, unclaimed_bytes=14))
    assert device.unreturned_bytes == 10
    shell.send(Observed("triton0", 1, unclaimed_bytes=2))
    assert device.unreturned_bytes == 0
    shell.add(spec("b", 30))
    shell.request("b")
    shell.send(Observed("triton0", 1, unclaimed_bytes=50))  # what loads is not yet what it will be
    assert device.unreturned_bytes == 0
    shell.loaded("b")
    shell.eject("a")
    shell.unloads.clear()
    copy = shell.copy("a").ident
    shell.send(Unloaded("triton0", 1, copy, unclaimed_bytes=30))
    assert shell.world.instances["triton0"].recycling
