"""Workers that are stopped or die, and servers that die, in the middle of a load or an unload: real processes, real signals."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from modelpool.testing.models import scale
from tests.integration.rawclient import RawClient
from tests.integration.running import RunningServer, Traffic, alive, running, until
from tests.integration.scripted import Gate, Orders, add_python


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Orders:
    return Orders(tmp_path / "orders", monkeypatch)


@pytest.fixture
def settings() -> tuple[str, ...]:
    """More arguments for the server."""
    return ()


@pytest.fixture
def server(tmp_path: Path, orders: Orders, settings: tuple[str, ...]) -> Iterator[RunningServer]:
    """ONNX models `times2`, `times3`, `times5` share a worker; `fine`, and `held`, `loads` and `leaves`, which wait at the gate with their
    answer, their load and their end, have processes of their own.
    """
    repository = tmp_path / "models"
    repository.mkdir()
    for number in (2, 3, 5):
        scale(repository / f"times{number}.onnx", float(number))
    add_python(repository, "fine")
    line = Gate(tmp_path / "gate").line
    add_python(repository, "held", line)
    add_python(repository, "loads", load=line)
    add_python(repository, "leaves", unload=line)
    with running(repository, tmp_path / "state", "--device", "cpu=2GiB", *settings) as found:
        yield found


# --- stopped (SIGSTOP) -----------------------------------------------------------------------------------------------------------
def test_stopped_workers_are_replaced_and_their_requests_answered(server: RunningServer, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    assert server.value("times2", 2) == 4
    assert server.value("fine", 2) == 4
    before = server.workers()
    with ThreadPoolExecutor(12) as pool:
        running = pool.submit(server.value, "held", 7)
        gate.reached()
        (holder,) = server.workers().keys() - before.keys()
        stopped = [before["local"], server.workers()[holder]]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        sent = [pool.submit(server.value, "times2", number) for number in range(8)]
        loading = pool.submit(server.value, "times3", 4)
        assert server.value("fine", 3) == 6
        assert [one.result() for one in sent] == [2 * number for number in range(8)]
        assert loading.result() == 12
        until(lambda: not any(alive(pid) for pid in stopped), "the end of the stopped workers")
        gate.open()
        assert running.result() == 14
    after = server.workers()
    assert before.items() - after.items() == {("local", stopped[0])}, "a worker that was not stopped was restarted"
    assert len(after) == 3, "a model was blamed for what was done to its process"
    assert "not go on" in server.log.read_text()


def test_a_worker_that_was_stopped_for_a_moment_answers_once(server: RunningServer) -> None:
    assert server.value("times2", 2) == 4
    worker = server.shared_worker()
    with RawClient(server) as client:
        for _ in range(3):
            os.kill(worker, signal.SIGSTOP)
            for number in range(4):
                client.send("times2", number)
            until(lambda: server.view("times2")["in_flight"] == 1, "a request in the stopped worker")
            os.kill(worker, signal.SIGCONT)
            assert [client.answer() for _ in range(4)] == [2 * number for number in range(4)]
        assert client.rest() == b""
    assert server.shared_worker() == worker
    assert server.metric('modelpool_requests_total{model="times2",outcome="ok"}') == 13


def test_stopped_workers_are_not_adopted(server: RunningServer) -> None:
    assert server.value("times2", 2) == 4
    assert server.value("fine", 2) == 4
    before = server.workers()
    server.kill()
    os.kill(before["local"], signal.SIGSTOP)
    server.start()
    assert not alive(before["local"])
    assert server.shared_worker() != before["local"]
    assert server.view("fine")["state"] == "READY"
    assert server.value("times2", 3) == 6
    assert server.value("fine", 3) == 6


# --- killed by a load ------------------------------------------------------------------------------------------------------------
def test_a_load_that_kills_the_shared_worker_does_so_once(server: RunningServer, orders: Orders) -> None:
    orders.die("times5", "load")
    shared = {server.shared_worker()}

    def ask(number: int) -> None:
        factor = (2, 3)[number % 2]
        assert server.value(f"times{factor}", number) == factor * number

    def refused() -> str:
        answer = server.infer("times5", 1)
        shared.add(server.workers().get("local", server.process.pid))
        assert answer.status_code in (400, 503), answer.text
        assert "signal 9" in answer.json()["error"]
        return str(answer.json()["code"])

    with Traffic(ask, 4) as traffic:
        until(lambda: traffic.asked > 20, "answers before")
        assert refused() == "load_failed"
        until(lambda: server.view("times2")["state"] == server.view("times3")["state"] == "READY", "the others on demand")
        assert server.view("times5")["state"] == "UNAVAILABLE"
        again = server.shared_worker()
        until(lambda: refused() == "quarantined", "the quarantine")
        assert server.shared_worker() == again
        before = traffic.asked
        until(lambda: traffic.asked > before + 20, "answers after")
    assert not traffic.faults
    assert server.metric('modelpool_load_failures_total{model="times5"}') == 3
    assert server.metric('modelpool_loads_total{model="times2"}') == 2
    assert len(server.workers()) == 1

    orders.relent("times5", "load")
    assert refused() == "quarantined"
    assert server.client.post("/v2/repository/models/times5/load").status_code == 200  # a user tries again
    assert server.value("times5", 3) == 15
    assert server.shared_worker() == again
    assert len(server.workers()) == 2


@pytest.mark.parametrize("settings", [("--set", "load_timeout=1.5s")])
def test_a_load_without_an_end_costs_the_shared_worker_once_and_others_nothing(server: RunningServer, orders: Orders) -> None:
    orders.wait("times5", "load")
    assert server.value("times2", 2) == 4
    assert server.value("fine", 2) == 4
    before = server.workers()
    shared = set()

    def failed(times: int) -> bool:
        answer = server.infer("times5", 1)
        assert (answer.status_code, answer.json()["code"]) == (400, "load_failed")
        assert "load_timeout (1.5 s)" in answer.json()["error"]
        return server.metric('modelpool_load_failures_total{model="times5"}') == times

    for times in (1, 2):
        until(lambda times=times: failed(times), "the end of a load")  # type: ignore[misc]
        assert server.value("times2", 3) == 6
        assert server.value("fine", 3) == 6
        shared.add(server.shared_worker())
    assert len(shared) == 1
    assert before["local"] not in shared
    assert before.items() - server.workers().items() == {("local", before["local"])}, (
        "a worker that had nothing to do with it was restarted"
    )


# --- killed in the middle of an unload ---------------------------------------------------------------------------------------------
def ledger(server: RunningServer, kind: str) -> float:
    """A figure of the device in bytes."""
    return server.metric(f'modelpool_device_bytes{{device="cpu",instance="local",kind="{kind}"}}')


def eject(server: RunningServer, model: str) -> int:
    return server.client.post(f"/v2/repository/models/{model}/unload").status_code


def test_a_shared_worker_that_dies_in_the_middle_of_an_unload(server: RunningServer, orders: Orders) -> None:
    assert server.value("times2", 2) == 4
    assert server.value("times3", 2) == 6
    orders.wait("times2", "close")
    with ThreadPoolExecutor(2) as pool:
        ejected = pool.submit(eject, server, "times2")
        orders.reached("times2", "close")
        assert server.view("times2")["state"] == "UNLOADING"
        assert server.value("times3", 3) == 9
        asked = pool.submit(server.value, "times2", 5)
        until(lambda: server.view("times2")["queue"] == 1, "a request for the model that leaves")
        os.kill(server.shared_worker(), signal.SIGKILL)
        assert ejected.result() == 200
        assert asked.result() == 10
    assert server.value("times3", 4) == 12
    orders.relent("times2", "close")
    for model in ("times2", "times3"):
        assert eject(server, model) == 200
    assert [ledger(server, kind) for kind in ("resident", "loading", "unreturned")] == [0, 0, 0]


def test_the_process_of_a_model_that_dies_in_the_middle_of_its_unload(server: RunningServer, tmp_path: Path) -> None:
    assert server.value("fine", 2) == 4
    before = server.workers()
    assert server.value("leaves", 2) == 4
    (name,) = server.workers().keys() - before.keys()
    with ThreadPoolExecutor(2) as pool:
        ejected = pool.submit(eject, server, "leaves")
        Gate(tmp_path / "gate").reached()
        asked = pool.submit(server.value, "leaves", 5)
        until(lambda: server.view("leaves")["queue"] == 1, "a request for the model that leaves")
        os.kill(server.workers()[name], signal.SIGKILL)
        assert ejected.result() == 200
        assert asked.result() == 10
    Gate(tmp_path / "gate").open()
    assert before.items() <= server.workers().items()
    for model in ("leaves", "fine"):
        assert eject(server, model) == 200
    assert [ledger(server, kind) for kind in ("resident", "loading", "unreturned")] == [0, 0, 0]
    assert server.workers().keys() == {"local"}


# --- servers that die in the middle ------------------------------------------------------------------------------------------------
def start_again(server: RunningServer) -> float:
    """Kill the server and start the next; the seconds that the start took."""
    server.kill()
    started = time.monotonic()
    server.start()
    return time.monotonic() - started


def test_a_server_killed_in_the_middle_of_a_load_and_its_successor(server: RunningServer, orders: Orders) -> None:
    assert server.value("times2", 2) == 4
    orders.wait("times5", "load")
    with ThreadPoolExecutor(1) as pool:
        broken = pool.submit(server.infer, "times5", 3)
        orders.reached("times5", "load")
        before = server.workers()
        start_again(server)
        assert broken.exception() is not None
        assert server.workers() == before
        assert server.view("times2")["state"] == "READY"
        assert server.view("times5")["state"] == "UNAVAILABLE"
        assert server.value("times2", 3) == 6  # while the load of the dead server goes on in the worker
        asked = pool.submit(server.value, "times5", 3)
        until(lambda: server.view("times5")["state"] == "LOADING", "the load anew")
        orders.relent("times5", "load")
        assert asked.result() == 15
    assert server.metric('modelpool_loads_total{model="times5"}') == 1
    assert eject(server, "times5") == 200
    assert server.value("times5", 4) == 20


def test_a_process_in_which_a_load_of_a_dead_server_goes_on_is_ended_at_once(server: RunningServer, tmp_path: Path) -> None:
    assert server.value("fine", 2) == 4
    before = server.workers()
    with ThreadPoolExecutor(1) as pool:
        broken = pool.submit(server.infer, "loads", 3)
        Gate(tmp_path / "gate").reached()
        (name,) = server.workers().keys() - before.keys()
        loading = server.workers()[name]
        took_s = start_again(server)
        assert broken.exception() is not None
    assert took_s < 4.0  # less than a worker gets to finish what it does
    assert not alive(loading)
    assert server.workers() == before
    assert server.view("fine")["state"] == "READY"
    Gate(tmp_path / "gate").open()
    assert server.value("loads", 3) == 6


def test_a_server_killed_in_the_middle_of_unloads_and_its_successor(server: RunningServer, orders: Orders, tmp_path: Path) -> None:
    for model in ("times2", "times3", "leaves"):
        server.value(model, 2)
    shared = server.shared_worker()
    orders.wait("times2", "close")
    with ThreadPoolExecutor(2) as pool:
        broken = [pool.submit(eject, server, model) for model in ("times2", "leaves")]
        orders.reached("times2", "close")
        Gate(tmp_path / "gate").reached()
        start_again(server)
        assert all(one.exception() is not None for one in broken)
        assert server.workers() == {"local": shared}
        assert server.view("times3")["state"] == "READY"
        assert server.view("times2")["state"] == server.view("leaves")["state"] == "UNAVAILABLE"
        assert server.value("times3", 3) == 9
        asked = pool.submit(server.value, "times2", 3)
        until(lambda: server.view("times2")["state"] == "LOADING", "the load anew")
        orders.relent("times2", "close")
        assert asked.result() == 6
    Gate(tmp_path / "gate").open()
    assert server.value("leaves", 3) == 6


@pytest.mark.heavy
def test_a_model_that_leaks_costs_no_other_its_process(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    repository.mkdir()
    scale(repository / "times3.onnx", 3.0)
    add_python(repository, "sound")
    add_python(repository, "leaks", "kept.append(np.ones(250_000))", load="global kept; kept = []")
    with running(repository, tmp_path / "state", "--device", "cpu=2GiB") as server:
        assert server.value("times3", 1) == 3
        assert server.value("sound", 1) == 2
        assert server.value("leaks", 1) == 2
        before = server.workers()
        until(
            lambda: server.value("leaks", 1) == 2 and server.metric('modelpool_unloads_total{model="leaks",reason="grown"}') >= 2,
            "two unloads",
        )
        after = server.workers()
        assert len(before.keys() & after.keys()) == 2
        assert all(before[name] == after[name] for name in before.keys() & after.keys())
        assert server.value("leaks", 1) == 2
