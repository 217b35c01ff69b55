"""Real Triton servers behind modelpool: loads, evictions, losses, refusals."""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from modelpool.testing.triton import RunningTriton, command, running_triton
from tests.integration.running import RunningServer, alive, running, until
from tests.integration.tritonpool import broken_model, clinging_model, needs_triton, scale_model

pytestmark = needs_triton


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for number in range(1, 5):
        scale_model(tmp_path / "models", f"m{number}", number)
    broken_model(tmp_path / "models", "broken")
    return tmp_path / "models"


@pytest.fixture
def triton(models: Path, tmp_path: Path) -> Iterator[RunningTriton]:
    with running_triton(models, tmp_path / "triton") as server:
        yield server


@pytest.fixture
def pool(models: Path, triton: RunningTriton, tmp_path: Path) -> Iterator[RunningServer]:
    """modelpool over one Triton, with room for two models."""
    with running(models, tmp_path / "state", "--triton", triton.address, "--device", "triton0/cpu=100MiB") as server:
        yield server


def resident(pool: RunningServer) -> set[str]:
    return {entry["model_name"] for entry in pool.client.get("/models").json()["models"]}


def test_it_loads_on_demand_evicts_and_answers(pool: RunningServer, triton: RunningTriton) -> None:
    for round_ in range(2):
        for number in range(1, 5):
            assert pool.value(f"m{number}", 3.0 + round_) == number * (3.0 + round_)
    assert triton.ready() == resident(pool) == {"m3", "m4"}


def test_a_failed_load_says_what_triton_said(pool: RunningServer) -> None:
    answer = pool.infer("broken")
    assert answer.status_code >= 400
    assert "no good" in answer.json()["error"]
    assert pool.value("m1", 2.0) == 2.0


def test_what_a_model_raises_is_an_error_of_that_request_alone(pool: RunningServer) -> None:
    answer = pool.infer("m2", -2.0)
    assert answer.status_code == 500
    assert "it was asked to" in answer.json()["error"]
    assert pool.value("m2", 2.0) == 4.0


def test_a_model_that_somebody_else_unloaded_comes_back(pool: RunningServer, triton: RunningTriton) -> None:
    assert pool.value("m1", 2.0) == 2.0
    httpx.post(f"{triton.url}/v2/repository/models/m1/unload", trust_env=False).raise_for_status()
    assert pool.value("m1", 3.0) == 3.0
    assert triton.ready() == resident(pool) == {"m1"}


def test_a_model_whose_process_died_comes_back(pool: RunningServer) -> None:
    answer = pool.infer("m2", -1.0)
    assert answer.status_code == 503
    assert answer.json()["code"] == "instance_lost"
    assert pool.value("m2", 3.0) == 6.0
    assert pool.client.delete("/models", params={"model_name": "m2"}).status_code == 200
    assert resident(pool) == set()


def test_what_triton_holds_at_the_start_is_adopted(models: Path, triton: RunningTriton, tmp_path: Path) -> None:
    httpx.post(f"{triton.url}/v2/repository/models/m3/load", trust_env=False).raise_for_status()
    with running(models, tmp_path / "state", "--triton", triton.address, "--device", "cpu=100MiB") as pool:
        assert resident(pool) == {"m3"}
        assert pool.value("m3", 2.0) == 6.0
        assert pool.metric('modelpool_loads_total{model="m3"}') == 0.0
        assert [pool.value(f"m{number}", 1.0) for number in (1, 2)] == [1.0, 2.0]
        assert triton.ready() == resident(pool) == {"m1", "m2"}


def test_a_triton_that_dies_fails_what_ran_there_and_is_taken_in_again(pool: RunningServer, triton: RunningTriton) -> None:
    assert pool.value("m1", 2.0) == 2.0
    triton.kill()
    until(lambda: not pool.client.get("/devices").json()["devices"][0]["up"], "the loss is noticed")
    assert pool.client.get("/v2/health/ready").status_code != 200
    triton.start()
    assert pool.value("m1", 2.0) == 2.0
    assert triton.ready() == resident(pool) == {"m1"}


@pytest.mark.parametrize("shape", [[2**33], [2**62, 2], [2**16, 2**16, 2**16], [-1], [2**40, 0]])
def test_a_shape_that_would_end_triton_does_not_reach_it(pool: RunningServer, triton: RunningTriton, shape: list[int]) -> None:
    assert pool.value("m1", 2.0) == 2.0
    body = {"inputs": [{"name": "x", "shape": shape, "datatype": "FP32", "data": [1.0]}]}
    answer = pool.client.post("/v2/models/m1/infer", json=body)
    assert answer.status_code == 400
    assert "shape" in answer.json()["error"]
    assert triton.process is not None
    assert triton.process.poll() is None
    assert pool.value("m1", 2.0) == 2.0


def test_servers_of_our_own_are_started_and_come_back(models: Path, tmp_path: Path) -> None:
    with running(models, tmp_path / "state", "--triton-command", command(), "--device", "cpu=100MiB") as pool:
        assert [pool.value(f"m{number}", 2.0) for number in range(1, 5)] == [2.0, 4.0, 6.0, 8.0]
        (device,) = pool.client.get("/devices").json()["devices"]
        os.kill(device["pid"], signal.SIGKILL)
        assert pool.value("m1", 2.0) == 2.0
        (after,) = pool.client.get("/devices").json()["devices"]
        assert after["pid"] != device["pid"]


def devices(pool: RunningServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pool.client.get("/devices").json()["devices"]
    return found


@pytest.mark.heavy
def test_an_unload_without_an_end_restarts_a_server_of_our_own(models: Path, tmp_path: Path) -> None:
    clinging_model(models, "clings", 7, finalize_s=600)
    arguments = ("--triton-command", command(), "--device", "cpu=100MiB", "--set", "verify_timeout=2s")
    with running(models, tmp_path / "state", *arguments) as pool:
        assert pool.value("clings", 2.0) == 14.0
        (before,) = devices(pool)
        assert pool.client.delete("/models", params={"model_name": "clings"}).status_code == 200
        assert pool.value("m1", 2.0) == 2.0
        (after,) = devices(pool)
        assert after["pid"] != before["pid"]
        assert after["budget_bytes"] == before["budget_bytes"]


@pytest.mark.heavy
def test_one_that_is_not_ours_is_left_alone_until_it_has_ended(models: Path, triton: RunningTriton, tmp_path: Path) -> None:
    clinging_model(models, "clings", 7, finalize_s=6)
    arguments = ("--triton", triton.address, "--device", "cpu=100MiB", "--set", "verify_timeout=1s")
    with running(models, tmp_path / "state", *arguments) as pool:
        assert pool.value("clings", 2.0) == 14.0
        assert pool.client.delete("/models", params={"model_name": "clings"}).status_code == 200
        assert not devices(pool)[0]["up"]
        assert triton.index()["clings"] == "UNLOADING"
        assert pool.value("m1", 2.0) == 2.0
        assert triton.index()["clings"] == "UNAVAILABLE"
        assert triton.ready() == resident(pool) == {"m1"}


def test_what_was_sent_with_a_load_is_sent_again_with_each(pool: RunningServer, models: Path) -> None:
    source = (models / "m2" / "1" / "model.py").read_text()
    config = {"backend": "python", "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}]}
    config["output"] = [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}]
    assert pool.value("m1", 2.0) == 2.0
    given = {"config": json.dumps(config), "file:1/model.py": base64.b64encode(source.encode()).decode()}
    pool.client.post("/v2/repository/models/m1/load", json={"parameters": given}).raise_for_status()
    assert pool.value("m1", 2.0) == 4.0
    assert pool.client.delete("/models", params={"model_name": "m1"}).status_code == 200
    assert resident(pool) == set()
    assert pool.value("m1", 2.0) == 4.0
    pool.client.post("/v2/repository/models/m1/unload").raise_for_status()
    assert pool.value("m1", 2.0) == 2.0
    refused = pool.client.post("/v2/repository/models/m1/load", json={"parameters": given | {"file:1/" + "m" * 256: ""}})
    assert refused.status_code == 400
    assert pool.value("m1", 2.0) == 2.0


@pytest.mark.heavy
@pytest.mark.parametrize("hard", [False, True])
def test_a_server_of_our_own_ends_with_modelpool(models: Path, tmp_path: Path, hard: bool) -> None:
    with running(models, tmp_path / "state", "--triton-command", command(), "--device", "cpu=100MiB") as pool:
        assert pool.value("m1", 2.0) == 2.0
        pid = devices(pool)[0]["pid"]
        tree = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
        assert len(tree) == 2
        if hard:
            pool.kill()
        else:
            assert pool.stop() == 0
        until(lambda: not any(alive(one) for one in tree), "server and model have ended")
        pool.start()
        assert pool.value("m1", 2.0) == 2.0
