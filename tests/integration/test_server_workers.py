"""Workers that are stopped, that die of a load, or that die in the middle of an unload: real servers, real workers, real signals."""

from __future__ import annotations

import os
import signal
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
    """ONNX models `times2`, `times3`, `times5` share a worker; `fine` and `held` have processes of their own."""
    repository = tmp_path / "models"
    repository.mkdir()
    for number in (2, 3, 5):
        scale(repository / f"times{number}.onnx", float(number))
    add_python(repository, "fine")
    add_python(repository, "held", Gate(tmp_path / "gate").line)
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
