"""Large bodies of requests that wait or run: one bound over all of them, in the server and so in its workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.integration.running import RunningServer, running, until
from tests.integration.scripted import Gate, add_python

KIB = 1024
BOUND_BYTES = 1024 * KIB


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture
def server(tmp_path: Path, gate: Gate) -> Iterator[RunningServer]:
    (tmp_path / "models").mkdir()
    add_python(tmp_path / "models", "plain")
    add_python(tmp_path / "models", "blocked", gate.line)
    add_python(tmp_path / "models", "dies", "os._exit(3)")
    options = ("--device", "cpu=2GiB", "--set", f"queue_bytes={BOUND_BYTES}")
    with running(tmp_path / "models", tmp_path / "state", *options) as found:
        yield found


def send(server: RunningServer, model: str, size_bytes: int, wrong: str = "") -> httpx.Response:
    """A request with a body of this size."""
    json = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]%b}], "id": "' % wrong.encode()
    return server.client.post(f"/v2/models/{model}/infer", content=json + b"x" * (size_bytes - len(json) - 2) + b'"}')


def test_bodies_that_run_count_until_they_are_answered(server: RunningServer, gate: Gate) -> None:
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(send, server, "blocked", 400 * KIB)
        gate.reached()
        second = pool.submit(send, server, "blocked", 400 * KIB)
        until(lambda: server.view("blocked")["in_flight"] + server.view("blocked")["queue"] == 2, "both requests")
        refused = send(server, "plain", 400 * KIB)
        assert (refused.status_code, refused.json()["code"]) == (503, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        assert "queue_bytes" in refused.json()["error"]
        assert send(server, "plain", 200 * KIB).status_code == 200
        assert server.value("plain", 2) == 4  # small ones that need not wait always pass
        gate.open()
        assert (first.result().status_code, second.result().status_code) == (200, 200)
    assert send(server, "plain", BOUND_BYTES).status_code == 200


def test_every_end_of_a_request_gives_its_bytes_back(server: RunningServer, gate: Gate) -> None:
    assert send(server, "nobody", 900 * KIB).status_code == 404
    assert send(server, "plain", 900 * KIB, ', "x": ').status_code == 400
    assert send(server, "plain", 900 * KIB, ', "keep_alive": "?"').status_code in (200, 400)
    assert send(server, "dies", 900 * KIB).status_code >= 500
    assert send(server, "plain", BOUND_BYTES + 1).status_code == 503
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(send, server, "blocked", 10 * KIB)
        gate.reached()
        with httpx.Client(base_url=server.about["url"], timeout=0.5, trust_env=False) as hasty, pytest.raises(httpx.TimeoutException):
            hasty.post("/v2/models/blocked/infer", content=b'{"inputs": [], "id": "' + b"x" * 900 * KIB + b'"}')
        gate.open()
        assert first.result().status_code == 200
    until(lambda: send(server, "plain", BOUND_BYTES).status_code == 200, "the bytes of the one that went away")


def test_a_body_is_sent_again_when_its_process_died_before_it_began(server: RunningServer, gate: Gate) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(send, server, "blocked", 300 * KIB)
        gate.reached()
        second = pool.submit(send, server, "blocked", 300 * KIB)
        until(lambda: server.view("blocked")["in_flight"] + server.view("blocked")["queue"] == 2, "both requests")
        gate.open()
        for name, pid in server.workers().items():
            if "+" in name:
                os.kill(pid, signal.SIGKILL)
        assert {first.result().status_code, second.result().status_code} == {200}
    assert send(server, "plain", BOUND_BYTES).status_code == 200
