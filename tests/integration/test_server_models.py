"""The catalogue, residency and the model API of a real server: what comes and goes, what is refused and why."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import modelpool
from modelpool.errors import ForgottenModel, NotCached
from modelpool.testing.models import dense, scale
from tests.integration.running import RunningServer, running, until

MIB = 1 << 20


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for number in (2, 3):
        scale(folder / f"times{number}.onnx", float(number))
    return folder


@pytest.fixture
def server(repository: Path, tmp_path: Path) -> Iterator[RunningServer]:
    with running(repository, tmp_path / "state", "--device", "cpu=256MiB", "--allow-root", str(tmp_path)) as found:
        yield found


def index(server: RunningServer) -> dict[str, dict[str, str]]:
    """The repository index by name."""
    return {row["name"]: row for row in server.client.post("/v2/repository/index").json()}


def test_new_changed_and_removed_models_are_noticed(server: RunningServer, repository: Path) -> None:
    scale(repository / "new.onnx", 7.0)
    until(lambda: server.infer("new").status_code == 200, "the new model")
    assert server.value("new", 2) == 14
    scale(repository / "new.onnx", 9.0)
    until(lambda: server.value("new", 2) == 18, "the changed model")
    (repository / "new.onnx").unlink()
    until(lambda: server.infer("new").status_code == 404, "the removed model")
    assert server.value("times2", 2) == 4


def test_malformed_entries_are_listed_and_harm_nobody(server: RunningServer, repository: Path) -> None:
    (repository / "junk.onnx").write_bytes(b"this is not a model")
    whole = (repository / "times2.onnx").read_bytes()
    (repository / "half.onnx").write_bytes(whole[: len(whole) // 2])
    until(lambda: {"junk", "half"} <= set(index(server)), "the malformed entries")
    rows = index(server)
    for name in ("junk", "half"):
        assert rows[name]["state"] == "UNAVAILABLE"
        assert rows[name]["reason"]
        assert server.infer(name).status_code == 404
    assert server.value("times2", 2) == 4


def test_ready_is_true_for_what_can_be_loaded_and_looking_loads_nothing(server: RunningServer) -> None:
    for path in ("", "/ready", "/config", "/stats"):
        assert server.client.get(f"/v2/models/times2{path}").status_code == 200
    assert index(server)["times2"]["state"] == "UNAVAILABLE"
    assert index(server)["times2"]["reason"] == "not resident"
    assert server.client.get("/models").json() == {"models": []}


def test_unload_means_eject(server: RunningServer) -> None:
    assert server.value("times2", 2) == 4
    assert index(server)["times2"]["state"] == "READY"
    assert server.client.post("/v2/repository/models/times2/unload").status_code == 200
    assert index(server)["times2"]["reason"] == "not resident"
    assert server.value("times2", 3) == 6


def test_a_posted_model_survives_a_restart_and_a_forgotten_one_stays_away(server: RunningServer, tmp_path: Path) -> None:
    scale(tmp_path / "extra.onnx", 4.0)
    with modelpool.Client(server.about["url"]) as client:
        client.load_model("hf/extra", "cpu", {"url": str(tmp_path / "extra.onnx"), "type": "onnx", "dimensions": 384, "note": "mine"})
        info = client.get_loaded_models()["cpu"]["hf/extra"]
        assert info["dimensions"] == 384
        assert info["note"] == "mine"
        answer = client.infer("hf/extra", {"x": np.array([2.0], np.float32)})
        np.testing.assert_array_equal(answer["y"], [8.0])
    server.stop()
    server.start()
    assert server.value("hf%2Fextra", 3) == 12
    with modelpool.Client(server.about["url"]) as client:
        client.eject_model("hf/extra")
        with pytest.raises(NotCached):
            client.eject_model("hf/extra")
        assert server.value("hf%2Fextra", 3) == 12  # only ejected: it comes back
        client.forget_model("hf/extra")
        client.forget_model("times3")
        with pytest.raises(ForgottenModel):
            client.infer("times3", {"x": np.array([2.0], np.float32)})
    server.stop()
    server.start()
    assert server.infer("times3").json()["code"] == "model_forgotten"
    assert server.infer("hf%2Fextra").json()["code"] == "model_forgotten"
    properties = {"url": str(tmp_path / "extra.onnx"), "type": "onnx"}
    posted = server.client.post("/models", json={"model_name": "hf/extra", "model_properties": properties})
    assert posted.status_code == 200, posted.text
    assert server.value("hf%2Fextra", 3) == 12


def test_pins_survive_a_restart(server: RunningServer) -> None:
    assert server.client.post("/models/pin", params={"model_name": "times2"}).status_code == 200
    until(lambda: server.view("times2")["state"] == "READY", "the pinned model")
    assert server.client.delete("/models", params={"model_name": "times2"}).status_code == 400
    server.stop()
    server.start()
    until(lambda: server.view("times2")["state"] == "READY", "the pinned model after a restart")
    assert server.view("times2")["pinned"]


def test_files_outside_the_allowed_roots_are_refused(server: RunningServer) -> None:
    answer = server.client.post("/models", json={"model_name": "passwords", "model_properties": {"url": "/etc/passwd", "type": "onnx"}})
    assert answer.status_code == 403
    assert "allowed_roots" in answer.json()["message"]


def test_what_never_fits_is_507_and_evicts_nothing(repository: Path, tmp_path: Path) -> None:
    dense(repository / "large.onnx", weight_bytes=40 * MIB)
    with running(repository, tmp_path / "state", "--device", "cpu=20MiB") as server:
        assert server.value("times2", 2) == 4
        answer = server.client.post("/v2/repository/models/large/load")
        assert answer.status_code == 507
        assert "20 MiB" in answer.json()["error"]
        assert server.view("times2")["state"] == "READY"


def test_policy_none_refuses_and_says_what_to_eject(repository: Path, tmp_path: Path) -> None:
    for name in "ab":
        dense(repository / f"{name}.onnx", weight_bytes=20 * MIB)
    with running(repository, tmp_path / "state", "--device", "cpu=50MiB", "--eviction", "none") as server:
        assert server.client.post("/models", json={"model_name": "a"}).status_code == 200
        answer = server.client.post("/models", json={"model_name": "b"})
        assert answer.status_code == 409
        assert answer.json()["code"] == "model_cache_management_error"
        assert "eject a first" in answer.json()["message"]
        assert server.client.delete("/models", params={"model_name": "a"}).status_code == 200
        assert server.client.post("/models", json={"model_name": "b"}).status_code == 200


def test_more_models_than_fit_are_all_served(repository: Path, tmp_path: Path) -> None:
    for number in range(8):
        dense(repository / f"big{number}.onnx", weight_bytes=10 * MIB, seed=number)
    with running(repository, tmp_path / "state", "--device", "cpu=40MiB") as server, modelpool.Client(server.about["url"]) as client:
        entries = {number: server.client.get(f"/v2/models/big{number}").json()["inputs"][0] for number in range(8)}

        def ask(number: int) -> int:
            name, shape = entries[number]["name"], [1 if size < 0 else size for size in entries[number]["shape"]]
            client.infer(f"big{number}", {name: np.ones(shape, np.float32)})
            return 1

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(ask, [number % 8 for number in range(48)])) == 48
        device = server.client.get("/devices").json()["devices"][0]
        assert device["resident_bytes"] <= 40 * MIB
        evicted = [one for one in client.decisions(limit=500) if one["kind"] == "evict"]
        assert evicted
        assert all(one["figures"]["winner"] for one in evicted)
        assert client.explain("big0")["to_load"] or client.explain("big0")["now"]
