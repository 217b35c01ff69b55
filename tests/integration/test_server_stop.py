"""Signals that tell a server to stop: what the first one waits for, and that a second one waits for nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from modelpool.testing.models import scale
from tests.integration.rawclient import RawClient
from tests.integration.running import RunningServer, alive, running, until
from tests.integration.scripted import Gate, Orders, add_python

AT_ONCE_S = 4.0
"""Less than a worker gets to finish what it does when it is told to stop."""


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Orders:
    return Orders(tmp_path / "orders", monkeypatch)


@pytest.fixture
def server(tmp_path: Path, gate: Gate, orders: Orders) -> Iterator[RunningServer]:
    """`times2`, and Python models that wait at the gate: `runs` with its answer, `loads` and `leaves` with what their names say."""
    repository = tmp_path / "models"
    repository.mkdir()
    scale(repository / "times2.onnx", 2.0)
    add_python(repository, "runs", gate.line)
    add_python(repository, "loads", load=gate.line)
    add_python(repository, "leaves", unload=gate.line)
    with running(repository, tmp_path / "state", "--device", "cpu=2GiB") as found:
        yield found


def says(server: RunningServer, words: str) -> None:
    """Wait until the log has these words."""
    until(lambda: words in server.log.read_text(), f"{words!r} in the log")


def ends(server: RunningServer, code: int) -> None:
    """It ends with this code, at once, and so do its workers."""
    left = server.workers()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(AT_ONCE_S) == code
    assert not any(alive(pid) for pid in left.values())
    assert not server.workers()


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_wait_for_a_model_that_runs(server: RunningServer, gate: Gate, first: signal.Signals) -> None:
    assert server.value("times2", 2) == 4
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.infer, "runs", 1)
        gate.reached()
        server.process.send_signal(first)
        says(server, "waiting for 1 request: runs (1); signal again to stop at once")
        ends(server, 1)
        answer = asked.result()
    assert (answer.status_code, answer.json()["code"]) == (503, "shutting_down")
    log = server.log.read_text()
    assert "told again to stop" in log
    assert "stopped without answers to 1 request: runs (1)" in log
    assert "Traceback" not in log


def test_a_second_signal_does_not_wait_for_a_load(server: RunningServer, gate: Gate) -> None:
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(server.infer, "loads", 1)
        gate.reached()
        wished = pool.submit(server.client.post, "/v2/repository/models/loads/load")
        server.process.send_signal(signal.SIGTERM)
        says(server, "waiting for 1 request: loads (1)")
        ends(server, 1)
        assert asked.result().json()["code"] == "shutting_down"
        assert wished.exception() is not None or wished.result().status_code == 503


def test_a_second_signal_does_not_wait_for_models_that_leave(server: RunningServer, gate: Gate) -> None:
    assert server.value("leaves", 2) == 4
    server.process.send_signal(signal.SIGTERM)
    gate.reached()
    says(server, "waiting for 1 worker process")
    ends(server, 0)
    assert "told again to stop" in server.log.read_text()


def test_a_client_that_does_not_finish_its_request_is_named_and_cut_off(server: RunningServer) -> None:
    assert server.value("times2", 2) == 4
    with RawClient(server) as client:
        client.send("times2", 3, end=-5)
        until(lambda: server.client.get("/v2/health/live").status_code == 200, "the server's next turn")
        server.process.send_signal(signal.SIGTERM)
        says(server, "waiting for 1 connection to end; signal again to stop at once")
        ends(server, 0)


def test_a_signal_at_the_start_ends_it(server: RunningServer, orders: Orders) -> None:
    assert server.stop() == 0
    orders.wait("worker", "start")
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(server.start)
        orders.reached("worker", "start")
        ends(server, 0)
        with pytest.raises(AssertionError, match="did not start"):
            starting.result()
    assert not any(alive(pid) for pid in orders.waiting("worker", "start"))
    orders.relent("worker", "start")
    server.start()
    assert server.value("times2", 2) == 4


HANGING = """
import sys, threading
from pathlib import Path
from modelpool.cli import serve
from modelpool.repository.catalogue import Repository
from modelpool.settings import Settings

kind, name, left = getattr(Repository, sys.argv[1]), sys.argv[1], [int(sys.argv[2])]

def hangs(*arguments, **named):
    left[0] -= 1
    if left[0] < 0:
        print("hangs", flush=True)
        threading.Event().wait()
    return kind(*arguments, **named)

setattr(Repository, name, hangs)
folder = Path(sys.argv[3])
serve.run(Settings(repositories=(folder / "models",), state_dir=folder / "state", http_port=0, grpc_port="off", poll_interval_s=0.05))
"""


@pytest.mark.parametrize(("method", "good"), [("__init__", 0), ("scan", 0), ("scan", 1)])
def test_a_repository_that_hangs_does_not_keep_the_server(tmp_path: Path, method: str, good: int) -> None:
    (tmp_path / "models").mkdir()
    command = [sys.executable, "-c", HANGING, method, str(good), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert any("hangs" in line for line in process.stdout)
            process.send_signal(signal.SIGTERM)
            assert process.wait(10.0) == 0
        finally:
            process.kill()
