"""What happens when parts die or block: real servers, real workers, real signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from modelpool.testing.models import scale
from tests.integration.running import RunningServer, Traffic, alive, running, until
from tests.integration.scripted import Gate, add_python


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for number in (2, 3, 5):
        scale(folder / f"times{number}.onnx", float(number))
    return folder


def test_what_was_resident_at_a_stop_was_unloaded_not_lost(repository: Path, tmp_path: Path) -> None:
    add_python(repository, "fine", "pass")
    with running(repository, tmp_path / "state", "--device", "cpu=2GiB") as server:
        assert (server.value("times2"), server.value("fine")) == (2.0, 2.0)
        assert server.client.post("/models/pin", params={"model_name": "times3"}).status_code == 200
        until(lambda: server.view("times3")["state"] == "READY", "the pinned model")
        assert server.stop() == 0
        server.start()
        decisions = server.client.get("/decisions", params={"limit": 1000}).json()["decisions"]
    stop = next(at for at, one in enumerate(decisions) if one["kind"] == "stop")
    ended = {one["model"]: one["text"] for one in decisions[stop:] if one["kind"] == "unloaded"}
    assert ended == dict.fromkeys(("times2", "times3", "fine"), "from cpu (stop)")
    assert not [one for one in decisions if one["kind"] in ("lost", "instance down", "quarantine")]


@pytest.fixture
def server(repository: Path, tmp_path: Path) -> Iterator[RunningServer]:
    add_python(repository, "fine", "pass")
    add_python(repository, "slow", "time.sleep(float(x[0]))")
    add_python(repository, "deadly", "x[0] > 5 and os._exit(3)")
    with running(repository, tmp_path / "state", "--device", "cpu=2GiB", "--set", "run_limit=3s") as found:
        yield found


def test_a_killed_worker_loses_no_request_and_no_answer_is_wrong(server: RunningServer) -> None:
    def ask(number: int) -> None:
        factor = (2, 3, 5)[number % 3]
        answer = server.infer(f"times{factor}", float(number))
        assert answer.status_code in (200, 503), answer.text
        if answer.status_code == 200:
            assert answer.json()["outputs"][0]["data"] == [number * factor]

    with Traffic(ask, 6) as traffic:
        for _ in range(3):
            before = traffic.asked
            until(lambda before=before: traffic.asked > before + 30, "answers")  # type: ignore[misc]
            os.kill(server.shared_worker(), signal.SIGKILL)
        before = traffic.asked
        until(lambda: traffic.asked > before + 30, "answers after the last death")
    assert not traffic.faults
    assert server.value("times2", 4) == 8


def test_a_python_model_that_kills_its_process_hurts_no_other_and_is_quarantined(server: RunningServer) -> None:
    assert server.value("fine", 2) == 4
    fine = server.workers()
    refusals = [server.infer("deadly", 9.0) for _ in range(4)]
    assert all(answer.status_code == 503 for answer in refusals), [answer.text for answer in refusals]
    assert refusals[-1].json()["code"] == "quarantined"
    assert "died" in refusals[-1].json()["error"]
    assert server.value("fine", 3) == 6
    assert server.value("times2", 3) == 6
    assert fine.items() <= server.workers().items(), "another worker was restarted"
    assert server.client.post("/v2/repository/models/deadly/load").status_code == 200  # a user tries again
    assert server.value("deadly", 1) == 2


def test_a_blocked_python_model_is_recycled_and_hurts_no_other(server: RunningServer) -> None:
    assert server.value("slow", 0.0) == 0.0
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(server.infer, "slow", 3600.0)
        assert server.value("fine", 2) == 4
        assert server.value("times3", 2) == 6
        answer = blocked.result()
    assert answer.status_code == 503
    assert answer.json()["code"] == "instance_lost"
    assert "Retry-After" in answer.headers
    assert server.value("fine", 2) == 4


def test_workers_outlive_a_killed_server_and_are_adopted(server: RunningServer) -> None:
    assert server.value("times2", 2) == 4
    assert server.value("fine", 2) == 4
    before = server.workers()
    server.kill()
    assert all(alive(pid) for pid in before.values())
    server.start()
    assert server.workers() == before
    assert server.view("times2")["state"] == "READY"
    assert server.view("fine")["state"] == "READY"
    assert server.value("times2", 3) == 6
    assert server.value("fine", 3) == 6
    metrics = server.client.get("/metrics").text
    assert 'modelpool_hits_total{model="times2"} 1.0' in metrics
    assert 'modelpool_loads_total{model="times2"} 0.0' in metrics


def test_workers_that_nobody_adopts_end(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path / "state", "--set", "orphan_grace=1s") as server:
        assert server.value("times2", 2) == 4
        worker = server.shared_worker()
        server.kill()
        until(lambda: not alive(worker), "the end of the orphan")
        assert not list((tmp_path / "state" / "run").glob("*.sock"))


def test_sigterm_finishes_what_was_accepted(server: RunningServer) -> None:
    assert server.value("slow", 0.0) == 0.0
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(server.infer("slow", 1.5).status_code))
    thread.start()
    until(lambda: server.view("slow")["in_flight"] == 1, "the request in flight")
    server.process.send_signal(signal.SIGTERM)
    thread.join()
    assert answers == [200]
    assert server.process.wait(30) == 0
    assert "waiting for 1 request: slow (1)" in server.log.read_text()


def test_one_load_serves_thirty_first_requests(server: RunningServer) -> None:
    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda number: server.value("times5", float(number)), range(30)))
    assert answers == [5.0 * number for number in range(30)]
    assert 'modelpool_loads_total{model="times5"} 1.0' in server.client.get("/metrics").text


@pytest.mark.heavy
def test_a_worker_that_nobody_adopts_ends_though_its_model_never_does(repository: Path, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    add_python(repository, "stuck", gate.line)
    with running(repository, tmp_path / "state", "--set", "orphan_grace=0.5s") as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.infer, "stuck")
        gate.reached()
        workers = list(server.workers().values())
        server.kill()
        until(lambda: not any(alive(pid) for pid in workers), "the end of the orphans")
        assert asked.exception() is not None


def test_what_a_model_started_ends_with_its_adopted_process(repository: Path, tmp_path: Path) -> None:
    marker = tmp_path / "child"
    start = f"import subprocess; open({str(marker)!r}, 'w').write(str(subprocess.Popen(['sleep', '3333']).pid))"
    add_python(repository, "parent", load=start)
    with running(repository, tmp_path / "state") as server:
        assert server.value("parent", 1) == 2
        child = int(marker.read_text())
        server.kill()
        server.start()
        assert server.value("parent", 1) == 2
        assert int(marker.read_text()) == child
        server.client.post("/v2/repository/models/parent/unload").raise_for_status()
        until(lambda: not alive(child), "the end of the child")
