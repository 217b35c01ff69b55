"""What people are told about a model."""

from __future__ import annotations

from modelpool.core.events import InstanceDown, LoadFailed, ModelAdded, ModelRemoved, Observed, PinWanted
from modelpool.core.explain import explain
from modelpool.core.inspect import model_state, size_of
from modelpool.core.model import Learned
from tests.core_shell import ANY_OVERRUN, CoreShell, spec


def pool(*sizes: int, **settings: object) -> CoreShell:
    """A device of 100 bytes, and models a, b, c, .. of these sizes."""
    shell = CoreShell(**settings)
    shell.up(cpu=100)
    for name, size in zip("abcdefgh", sizes, strict=False):
        shell.add(spec(name, size))
    return shell


def now(shell: CoreShell, model: str) -> str:
    """All that is said about how things stand."""
    return "\n".join(explain(shell.core, model, shell.now)[1])


def to_load(shell: CoreShell, model: str) -> str:
    """All that is said about what a load would need."""
    return "\n".join(explain(shell.core, model, shell.now)[2])


def state(shell: CoreShell, model: str) -> tuple[str, str]:
    return model_state(shell.world.models[model])


def test_a_model_that_nobody_knows() -> None:
    assert explain(pool().core, "a", 0.0) == ("UNAVAILABLE", ("model 'a' is not in the catalogue",), ())


def test_a_model_that_was_never_asked_for() -> None:
    shell = pool(60)
    assert state(shell, "a") == ("UNAVAILABLE", "not resident")
    assert "it is not resident" in now(shell, "a")
    assert "never used" in now(shell, "a")
    assert "the user's figure: 60 B loaded" in to_load(shell, "a")
    assert "nothing has to leave" in to_load(shell, "a")


def test_a_model_on_its_way() -> None:
    shell = pool(60)
    shell.request("a")
    shell.load("a")
    shell.wait(3)
    assert state(shell, "a") == ("LOADING", "loading")
    assert "it has been loading on cpu of local for 3s; 60 B are held" in now(shell, "a")
    assert "1 requests and 1 commands wait for it, the longest for 3s" in now(shell, "a")
    assert to_load(shell, "a") == ""


def test_a_model_at_work_and_idle() -> None:
    shell = pool(60, keep_alive_s=60.0)
    request = shell.request("a")
    shell.loaded("a")
    assert state(shell, "a") == ("READY", "")
    assert "1 requests run on it; 0 have ended" in now(shell, "a")
    shell.end(request)
    shell.wait(10)
    assert "it has been ready on cpu of local for 10s, charged 60 B (the user's figure)" in now(shell, "a")
    assert "it has been idle for 10s; its keep-alive of 1m ends in 50s" in now(shell, "a")
    assert "the next to go when space is needed on cpu (policy demand)" in now(shell, "a")
    assert "requests/s over the last 10s; last used 10s ago" in now(shell, "a")


def test_models_that_stay() -> None:
    shell = CoreShell()
    shell.up(cpu=100)
    shell.add(spec("kept", 10, min_copies=1), spec("pinned", 10, pinned=True), spec("endless", 10, keep_alive_s=float("inf")))
    shell.work()
    shell.serve("endless")
    assert "min_copies is 1" in now(shell, "kept")
    assert "it is kept whatever its keep-alive of 5m" in now(shell, "kept")
    assert "it is pinned: never unloaded" in now(shell, "pinned")
    assert "no keep-alive that would end" in now(shell, "endless")
    unmoving = pool(10, eviction="none")
    unmoving.serve("a")
    assert "policy none" in now(unmoving, "a")


def test_how_many_would_go_before_it() -> None:
    shell = pool(10, 10, 10)
    for name in "abc":
        shell.serve(name)
        shell.wait(1)
    assert "2 of 3 would go before it" in now(shell, "c")


def test_a_model_that_has_to_leave_and_the_one_that_comes() -> None:
    shell = pool(60, 60)
    shell.serve("a")
    request = shell.request("a")
    winner = shell.request("b")
    assert state(shell, "a") == ("DRAINING", "leaves when its requests end (space)")
    assert "it leaves when its 1 requests have ended (space), for 0s now" in now(shell, "a")
    assert "60 B are reserved for it on cpu; it waits until these have left: a" in now(shell, "b")
    shell.end(request)
    assert state(shell, "a") == ("UNLOADING", "unloading (space)")
    assert "it has been unloading on cpu of local for 0s (space)" in now(shell, "a")
    shell.work()
    shell.end(winner)
    shell.wait(60)
    assert "unloaded to make room 1m ago" in now(shell, "a")
    assert "to make room 1 would leave cpu: b (60 B)" in to_load(shell, "a")


def test_wishes_of_users() -> None:
    shell = CoreShell()
    shell.add(spec("a", 10, priority=2, pinned=True, isolation="process"))
    assert "it is pinned" in now(shell, "a")
    assert "its weight is 4 times that of others" in now(shell, "a")
    assert "a process of its own" in now(shell, "a")
    assert "no instance with a device that it may use is up now" in to_load(shell, "a")


def test_a_device_that_is_not_there() -> None:
    shell = pool()
    shell.add(spec("a", 10, device="cuda"))
    assert "needs device cuda; this server has cpu" in to_load(shell, "a")


def test_a_load_that_failed() -> None:
    shell = pool(60, retry_min_s=4.0)
    shell.request("a")
    load = shell.loading("a")
    del shell.loads[load.copy]
    shell.send(LoadFailed("local", 1, load.copy, "load_failed", "it is broken"))
    assert state(shell, "a") == ("UNAVAILABLE", "it is broken")
    assert "its last load failed (1 in a row): it is broken; it is tried again in 4s" in now(shell, "a")
    shell.wait(4)
    assert "at its next request" in now(shell, "a")


def test_what_cannot_be_loaded() -> None:
    shell = pool(60, 60, 150)
    shell.send(PinWanted("a", True))
    shell.work()
    assert "unpin a first" in to_load(shell, "b")
    assert "can never be loaded on cpu" in to_load(shell, "c")
    assert "150 B" in to_load(shell, "c")


def test_what_cannot_be_loaded_now() -> None:
    shell = pool(60, 60)
    shell.request("a")
    assert "20 B lack on cpu" in to_load(shell, "b")


def test_a_measured_model_and_how_long_its_loads_take() -> None:
    shell = pool()
    shell.send(ModelAdded(spec("a", estimate_bytes=10), (("cpu", Learned(20, 30, 5, 1.5)),)))
    assert "measured at earlier loads: 20 B loaded, 30 B while loading, 5 B more while running" in to_load(shell, "a")
    assert "its loads take 1.50 s" in to_load(shell, "a")


def test_a_removed_model_whose_copy_still_works() -> None:
    shell = pool(60)
    shell.request("a")
    shell.loaded("a")
    shell.send(ModelRemoved("a"))
    assert state(shell, "a")[0] == "DRAINING"
    assert to_load(shell, "a") == ""


def test_sizes_and_where_they_come_from() -> None:
    shell = CoreShell(overrun_bytes=ANY_OVERRUN)
    shell.add(spec("user", 60), spec("guessed", estimate_bytes=10))
    models = shell.world.models
    assert size_of(models["user"], shell.world) == (60, "user")
    assert size_of(models["guessed"], shell.world) == (10, "estimate")
    shell.up(cpu=100)
    assert size_of(models["guessed"], shell.world) == (10, "estimate")
    request = shell.request("guessed")
    assert size_of(models["guessed"], shell.world) == (10, "estimate")
    shell.loaded("guessed", private_bytes=25)
    assert size_of(models["guessed"], shell.world) == (25, "measured")
    shell.end(request)
    shell.send(InstanceDown("local", 1, "killed"))
    assert size_of(models["user"], shell.world) == (60, "user")


def test_bytes_that_did_not_come_back_are_told_once() -> None:
    shell = pool(10, verify_slack_bytes=0)
    shell.send(Observed("local", 1, total_bytes=20))
    assert shell.noted("unreturned")
    shell.send(Observed("local", 1, total_bytes=20))
    assert not shell.noted("unreturned")
