"""Real Triton servers behind modelpool: loads, evictions, losses, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from modelpool.testing.triton import RunningTriton, command, running_triton
from tests.integration.running import RunningServer, running, until
from tests.integration.tritonpool import broken_model, needs_triton, scale_model

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
