"""Marqo's own client, unmodified, against the real server."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from modelpool.testing.server import serving
from tests.integration.gateway_repository import build

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it is written for an older pydantic
    import marqo
    from marqo.errors import MarqoWebError


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("served") / "models")


@pytest.fixture(scope="module")
def url(models: Path) -> Iterator[str]:
    with serving([str(models), "--device", "cpu=200MiB", "--eviction", "none"], models.parent) as (url, _):
        yield url


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as http:
        yield http


@pytest.fixture(params=["", "/"])
def index(url: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[marqo.index.Index]:
    with caplog.at_level(logging.WARNING):
        yield marqo.Client(url + request.param).index("any")
    assert not [record for record in caplog.records if record.name.startswith("marqo")]  # it takes our version


def resident(index: marqo.index.Index) -> list[tuple[str, str]]:
    return [(entry["model_name"], entry["model_device"]) for entry in index.get_loaded_models()["models"]]


def test_models_come_and_go(index: marqo.index.Index, http: httpx.Client) -> None:
    assert ("triple", "cpu") not in resident(index)
    reply = http.post("/models", json={"model_name": "triple", "model_device": "cpu"})
    assert (reply.status_code, reply.json()["result"]) == (200, "success")
    assert ("triple", "cpu") in resident(index)
    found = index.eject_model("triple")
    assert found == {"result": "success", "message": "successfully ejected model `triple` from device `cpu`"}
    assert ("triple", "cpu") not in resident(index)


def test_names_go_unescaped(index: marqo.index.Index, http: httpx.Client) -> None:
    assert http.post("/models", json={"model_name": "two words+plus"}).status_code == 200
    assert index.eject_model("two words+plus")["result"] == "success"


def test_the_dialect_with_devices(http: httpx.Client) -> None:
    http.post("/models", json={"model_name": "triple"})
    reply = http.delete("/models?model_name=triple&model_device=cuda")
    assert (reply.status_code, reply.json()["code"]) == (404, "model_not_in_cache")
    reply = http.delete("/models?model_name=triple&model_device=cpu")
    assert reply.json()["message"] == "successfully ejected model `triple` from device `cpu`"


@pytest.mark.parametrize("name", ["triple", "trip", "nobody", "malformed"])
def test_eject_of_what_is_not_resident(index: marqo.index.Index, name: str) -> None:
    with pytest.raises(MarqoWebError) as failure:
        index.eject_model(name)
    assert (failure.value.status_code, failure.value.code, failure.value.error_type) == (404, "model_not_in_cache", "invalid_request")
    assert failure.value.message["message"] == f"The model_name `{name}` device `any device` is not cached or found"


def test_devices(index: marqo.index.Index, http: httpx.Client) -> None:
    found = index.get_cpu_info()
    assert {"cpu_usage_percent", "memory_used_percent", "memory_used_gb"} <= set(found)
    if any(view["device"].startswith("cuda") for view in http.get("/devices").json()["devices"]):
        assert index.get_cuda_info()["cuda_devices"]
        return
    with pytest.raises(MarqoWebError) as failure:
        index.get_cuda_info()
    assert (failure.value.status_code, failure.value.code) == (400, "hardware_compatability_error")


def test_details(http: httpx.Client) -> None:
    http.post("/models", json={"model_name": "tiny"})
    (entry,) = (entry for entry in http.get("/models?detailed=true").json()["models"] if entry["modelName"] == "tiny")
    assert entry["model_name"] == "tiny"
    assert isinstance(entry["modelProperties"], str)
    assert entry["size_bytes"] > 0
    assert entry["tier"] == "DEVICE"


def test_a_posted_model_serves_until_it_is_forgotten(http: httpx.Client, models: Path) -> None:
    properties = {"url": str(models / "triple.onnx"), "type": "onnx", "dimensions": 1, "note": "three times as much"}
    reply = http.post("/models", json={"model_name": "generic", "model_properties": properties})
    assert reply.status_code == 200, reply.text
    (entry,) = (entry for entry in http.get("/models").json()["models"] if entry["model_name"] == "generic")
    assert entry["model_properties"]["dimensions"] == 1
    assert entry["model_properties"]["note"] == "three times as much"
    question = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [2.0]}]}
    assert http.post("/v2/models/generic/infer", json=question).json()["outputs"][0]["data"] == [6.0]
    assert http.delete("/models?model_name=generic").status_code == 200
    assert http.post("/v2/models/generic/infer", json=question).status_code == 200  # it came back by itself
    assert http.delete("/models?model_name=generic&forget=true").status_code == 200
    for reply in (http.post("/v2/models/generic/infer", json=question), http.delete("/models?model_name=generic")):
        assert (reply.status_code, reply.json()["code"]) == (404, "model_forgotten")
    assert http.post("/models", json={"model_name": "generic", "model_properties": properties}).status_code == 200
    assert http.post("/v2/models/generic/infer", json=question).status_code == 200


@pytest.mark.parametrize("properties", [{}, {"url": "/etc/hostname"}, {"url": "relative.onnx"}, {"url": 5}, {"url": "/nowhere.onnx"}])
def test_posts_that_are_refused(http: httpx.Client, properties: dict[str, object]) -> None:
    reply = http.post("/models", json={"model_name": "evil", "model_properties": properties})
    assert 400 <= reply.status_code < 500, reply.text
    assert {"message", "code", "type", "link"} <= set(reply.json())
    assert http.get("/models/view", params={"model_name": "evil"}).status_code == 404


def test_without_eviction_a_load_that_does_not_fit_says_what_to_eject(tmp_path: Path) -> None:
    from modelpool.testing.models import dense

    models = tmp_path / "models"
    models.mkdir()
    for name in ("one", "two"):
        dense(models / f"{name}.onnx", weight_bytes=20 << 20, seed=ord(name[0]))
    options = ["--device", "cpu=45MiB", "--eviction", "none"]
    with serving([str(models), *options], tmp_path) as (url, _), httpx.Client(base_url=url, trust_env=False, timeout=30) as http:
        assert http.post("/models", json={"model_name": "one"}).status_code == 200
        reply = http.post("/models", json={"model_name": "two"})
        assert (reply.status_code, reply.json()["code"]) == (409, "model_cache_management_error"), reply.text
        assert "one" in reply.json()["message"]
        assert http.delete("/models?model_name=one").status_code == 200
        assert http.post("/models", json={"model_name": "two"}).status_code == 200
