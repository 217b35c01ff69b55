"""Clients that hang up: while their request runs, while it waits, in the middle of a request."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from modelpool.testing.models import scale
from tests.integration.rawclient import RawClient
from tests.integration.running import RunningServer, Traffic, running, until
from tests.integration.scripted import Gate, add_python

HOW = pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture
def server(tmp_path: Path, gate: Gate) -> Iterator[RunningServer]:
    """`times2` and `times3`, and Python models that wait at the gate: `runs` with its answer, `loads` with its load."""
    repository = tmp_path / "models"
    repository.mkdir()
    scale(repository / "times2.onnx", 2.0)
    scale(repository / "times3.onnx", 3.0)
    add_python(repository, "runs", gate.line)
    add_python(repository, "loads", load=gate.line)
    with running(repository, tmp_path / "state", "--device", "cpu=2GiB") as found:
        assert found.value("times3", 1) == 3
        sockets = open_sockets(found)
        yield found
        if found.process.poll() is None:
            nothing_is_left(found, sockets)


def open_sockets(server: RunningServer) -> int:
    """Connections and all else of the kind that the server has open, but for those to its workers."""
    count = -len(server.workers())
    for file in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(file).startswith("socket:")
    return count


def nothing_is_left(server: RunningServer, sockets: int) -> None:
    """No request is under way, none is forgotten by the counters, no connection is open, nothing was complained of."""
    until(
        lambda: server.metric("modelpool_in_flight_requests") == server.metric("modelpool_waiting_requests") == 0, "the end of all requests"
    )
    text = server.client.get("/metrics").text
    ended = sum(float(count) for count in re.findall(r"^modelpool_requests_total\{.*\} (.*)$", text, re.MULTILINE))
    came = sum(float(count) for count in re.findall(r"^modelpool_(?:hits|misses)_total\{.*\} (.*)$", text, re.MULTILINE))
    assert ended == came
    server.client.close()  # its threads may have left it several connections
    server.connect()
    server.client.get("/v2")
    until(lambda: open_sockets(server) <= sockets, "the end of all connections")
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "ERROR" not in log


def outcomes(server: RunningServer, model: str) -> dict[str, float]:
    """How requests to a model ended."""
    found = {word: server.metric(f'modelpool_requests_total{{model="{model}",outcome="{word}"}}') for word in ("ok", "cancelled")}
    return {word: count for word, count in found.items() if count}


@HOW
def test_while_its_request_runs(server: RunningServer, gate: Gate, reset: bool) -> None:
    with RawClient(server) as client:
        client.send("runs", 7)
        gate.reached()
        client.send("times2", 7)  # behind it, on the same connection
        client.hang_up(reset=reset)
    assert server.value("times3", 2) == 6
    assert server.view("runs")["in_flight"] == 1  # the model still runs, and nothing is taken from it
    gate.open()
    until(lambda: server.view("runs")["in_flight"] == 0, "the end of the lease")
    assert outcomes(server, "runs") == {"ok": 1}  # it ran, whoever listened
    if reset:
        assert outcomes(server, "times2") == {}
    assert server.client.post("/v2/repository/models/runs/unload").status_code == 200
    until(lambda: server.view("runs")["state"] == "UNAVAILABLE", "the end of the unload")
    assert server.value("runs", 3) == 6


def test_while_its_request_waits_behind_another_that_runs(server: RunningServer, gate: Gate) -> None:
    with RawClient(server) as first, RawClient(server) as second:
        first.send("runs", 7)
        gate.reached()
        second.send("runs", 8)
        until(lambda: server.view("runs")["in_flight"] == 2, "both")
        second.hang_up(reset=True)
        until(lambda: server.view("runs")["in_flight"] == 1, "the second one's end")
        gate.open()
        assert first.answer() == 14
    assert outcomes(server, "runs") == {"ok": 1, "cancelled": 1}
    assert server.metric('modelpool_executions_total{model="runs"}') == 1


@HOW
def test_while_its_model_loads(server: RunningServer, gate: Gate, reset: bool) -> None:
    with RawClient(server) as client:
        client.send("loads", 7)
        gate.reached()
        client.hang_up(reset=reset)
    until(lambda: server.view("loads")["queue"] == 0, "its end in the queue")
    gate.open()
    until(lambda: server.view("loads")["state"] == "READY", "the load, which goes on")
    assert outcomes(server, "loads") == {"cancelled": 1}
    assert server.metric('modelpool_executions_total{model="loads"}') == 0
    assert server.value("loads", 2) == 4
    assert server.metric('modelpool_loads_total{model="loads"}') == 1


@HOW
def test_while_its_model_waits_for_the_load_of_another(server: RunningServer, gate: Gate, reset: bool) -> None:
    with RawClient(server) as first, RawClient(server) as second:
        first.send("loads", 7)
        gate.reached()
        second.send("times2", 7)
        until(lambda: server.view("times2")["queue"] == 1, "the second one in the queue")
        second.hang_up(reset=reset)
        until(lambda: server.view("times2")["queue"] == 0, "its end in the queue")
        gate.open()
        assert first.answer() == 14
    assert server.value("loads", 2) == 4
    assert server.view("times2")["state"] == "UNAVAILABLE"
    assert server.metric('modelpool_loads_total{model="times2"}') == 0  # nobody wanted it any more
    assert outcomes(server, "times2") == {"cancelled": 1}
    assert server.value("times2", 3) == 6


def test_while_its_request_runs_and_the_worker_dies_too(server: RunningServer, gate: Gate) -> None:
    before = server.workers()
    with RawClient(server) as client:
        client.send("runs", 7)
        gate.reached()
        client.hang_up(reset=True)
    assert server.value("times3", 2) == 6
    (pid,) = {*server.workers().values()} - {*before.values()}
    os.kill(pid, signal.SIGKILL)
    until(lambda: server.view("runs")["in_flight"] == 0, "the end of the lease")
    until(lambda: outcomes(server, "runs") == {"cancelled": 1}, "its end in the counters")
    gate.open()
    assert server.value("runs", 2) == 4


def test_at_any_moment(server: RunningServer, gate: Gate) -> None:
    gate.open()
    chance = random.Random(4)

    def ask(number: int) -> None:
        assert server.value("times3", number) == 3 * number

    with Traffic(ask, 2) as traffic:
        for _ in range(150):
            with RawClient(server) as client:
                for _ in range(chance.randrange(4)):
                    client.send(chance.choice(["times2", "times3", "runs"]), 1)
                if chance.random() < 0.5:
                    client.send("times2", 1, end=chance.randrange(1, 150))
                if chance.random() < 0.3:
                    until(lambda before=traffic.asked: traffic.asked > before, "an answer to others")  # type: ignore[misc]
                client.hang_up(reset=chance.random() < 0.5)
    assert not traffic.faults
