"""What users of such systems ran into, with real servers and workers: each test is one case, by its number in tests/README.md."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from modelpool.controller.state import StateStore
from modelpool.controller.views import Decision
from modelpool.testing.models import scale
from tests.integration.running import alive, running, until
from tests.integration.test_server_faults import add_python

MIB = 1 << 20


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    scale(folder / "times2.onnx", 2.0)
    return folder


def _with_initialize(repository: Path, name: str, line: str) -> None:
    add_python(repository, name, "pass")
    source = repository / name / "1" / "model.py"
    source.write_text(source.read_text().replace("    def execute", f"    def initialize(self, args):\n        {line}\n\n    def execute"))


def test_case_03_and_04_memory_of_a_python_model_comes_back_with_its_process(repository: Path, tmp_path: Path) -> None:
    _with_initialize(repository, "greedy", f"self.hoard = bytearray({64 * MIB})")
    with running(repository, tmp_path / "state", "--device", "cpu=1GiB") as server:
        assert server.value("greedy", 2) == 4
        (worker,) = [pid for name, pid in server.workers().items() if name != "local"]
        assert server.client.delete("/models", params={"model_name": "greedy"}).status_code == 200
        assert not alive(worker)
        assert server.client.get("/devices").json()["devices"][0]["resident_bytes"] == 0


def test_case_15_a_preload_that_fails_stops_nothing(repository: Path, tmp_path: Path) -> None:
    _with_initialize(repository, "broken", "raise RuntimeError('no such weights')")
    with running(repository, tmp_path / "state", "--preload", "broken", "--preload", "missing", "--preload", "times2") as server:
        until(lambda: server.view("times2")["state"] == "READY", "the good preload")
        assert server.value("times2", 2) == 4
        answer = server.infer("broken")
        assert answer.status_code == 400
        assert "no such weights" in answer.json()["error"]


def test_case_16_a_small_file_is_charged_what_it_takes(repository: Path, tmp_path: Path) -> None:
    _with_initialize(repository, "greedy", f"self.hoard = bytearray(b'x') * {64 * MIB}")
    with running(repository, tmp_path / "state", "--device", "cpu=1GiB") as server:
        assert server.value("greedy", 2) == 4
        view = server.view("greedy")
        assert view["size_from"] == "measured"
        assert view["size_bytes"] >= 64 * MIB


def test_case_20_and_21_others_are_served_while_one_loads_and_its_first_requests_wait(repository: Path, tmp_path: Path) -> None:
    _with_initialize(repository, "sluggish", "time.sleep(2)")
    with running(repository, tmp_path / "state", "--device", "cpu=1GiB") as server:
        assert server.value("times2", 2) == 4
        with ThreadPoolExecutor(5) as pool:
            first = [pool.submit(server.value, "sluggish", 1.0) for _ in range(5)]
            until(lambda: server.view("sluggish")["state"] == "LOADING", "the slow load")
            answered = 0
            while server.view("sluggish")["state"] == "LOADING":
                assert server.value("times2", 3) == 6
                answered += 1
            assert answered > 10
            assert [one.result() for one in first] == [2.0] * 5


def test_case_23_a_failed_reload_is_not_called_available(repository: Path, tmp_path: Path) -> None:
    add_python(repository, "fragile", "pass")
    with running(repository, tmp_path / "state", "--device", "cpu=1GiB") as server:
        assert server.value("fragile", 2) == 4
        (repository / "fragile" / "1" / "model.py").write_text("raise RuntimeError('broken by its author')\n")
        until(lambda: server.infer("fragile").status_code == 400, "the failing reload")
        until(lambda: server.view("fragile")["state"] == "UNAVAILABLE", "the end of the old copy")
        assert "broken by its author" in server.view("fragile")["reason"]
        assert server.client.get("/v2/models/fragile/ready").status_code == 400
        assert server.value("times2", 2) == 4


def test_case_30_what_is_kept_on_disk_is_bounded(tmp_path: Path) -> None:
    state = StateStore(tmp_path / "state", journal_entries=100)
    for number in range(50):
        state.save_decisions([Decision(at=float(number), kind="load", model="m", text="x" * 100) for _ in range(20)])
    state.close()
    again = StateStore(tmp_path / "state", journal_entries=100)
    try:
        assert len(again.decisions(10_000)) <= 100
    finally:
        again.close()
