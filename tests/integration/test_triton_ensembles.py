"""Ensembles on real Triton servers: their steps come with them, are counted once, and stay while they are needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelpool.testing.models import write_config
from modelpool.testing.triton import running_triton
from tests.integration.running import RunningServer, running
from tests.integration.tritonpool import needs_triton, scale_model

pytestmark = needs_triton

_TENSORS = """
    platform: "ensemble"
    input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
    output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def ensemble(models: Path, name: str, first: str, second: str) -> None:
    """y = the second of the first of x."""
    steps = f"""
    ensemble_scheduling {{ step [
        {{ model_name: "{first}" model_version: -1 input_map {{ key: "x" value: "x" }} output_map {{ key: "y" value: "t" }} }},
        {{ model_name: "{second}" model_version: -1 input_map {{ key: "x" value: "t" }} output_map {{ key: "y" value: "y" }} }}
    ] }}
    """
    write_config(models / name, _TENSORS + steps)
    (models / name / "1").mkdir()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    for name, factor in (("double", 2.0), ("triple", 3.0), ("times5", 5.0), ("times7", 7.0)):
        scale_model(folder, name, factor)
    ensemble(folder, "times6", "double", "triple")
    ensemble(folder, "times10", "double", "times5")
    return folder


def resident(pool: RunningServer) -> set[str]:
    return {entry["model_name"] for entry in pool.client.get("/models").json()["models"]}


def test_an_ensemble_comes_with_its_steps_and_they_are_shared(models: Path, tmp_path: Path) -> None:
    with (
        running_triton(models, tmp_path / "triton") as triton,
        running(models, tmp_path / "state", "--triton", triton.address, "--device", "cpu=100MiB") as pool,
    ):
        assert pool.value("times6", 2.0) == 12.0
        assert resident(pool) == triton.ready() == {"times6", "double", "triple"}
        assert pool.client.get("/devices").json()["devices"][0]["resident_bytes"] == 2 * 48 * 2**20
        assert pool.value("times10", 2.0) == 20.0
        assert {"times10", "double", "times5"} <= triton.ready()
        assert "triple" not in triton.ready()
        assert pool.value("times7", 2.0) == 14.0
        assert pool.value("times6", 3.0) == 18.0
        assert pool.value("triple", 3.0) == 9.0


def test_on_several_servers_an_ensemble_lives_with_its_steps(models: Path, tmp_path: Path) -> None:
    with (
        running_triton(models, tmp_path / "a") as one,
        running_triton(models, tmp_path / "b") as other,
        running(models, tmp_path / "state", "--triton", one.address, "--triton", other.address, "--device", "cpu=150MiB") as pool,
    ):
        assert pool.value("double", 2.0) == 4.0
        assert pool.value("times6", 2.0) == 12.0
        assert pool.value("times10", 2.0) == 20.0
        assert pool.value("times7", 2.0) == 14.0
        where = {entry["model_name"]: entry["instance"] for entry in pool.client.get("/models").json()["models"]}
        assert len({where[name] for name in ("double", "triple", "times5", "times6", "times10")}) == 1
        assert where["times7"] != where["double"]
        assert pool.client.post("/v2/repository/models/times6/unload").status_code == 200
        assert pool.client.post("/v2/repository/models/times6/load").status_code == 200
        assert pool.value("times6", 2.0) == 12.0


def test_an_ensemble_without_one_of_its_steps_says_so(models: Path, tmp_path: Path) -> None:
    ensemble(models, "lacks", "double", "nobody")
    with (
        running_triton(models, tmp_path / "triton") as triton,
        running(models, tmp_path / "state", "--triton", triton.address, "--device", "cpu=150MiB") as pool,
    ):
        answer = pool.infer("lacks")
        assert answer.status_code >= 400
        assert "nobody" in answer.json()["error"]
