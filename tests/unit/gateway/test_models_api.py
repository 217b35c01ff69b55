"""The model API in both of its dialects, as clients see it."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace

import httpx
import pytest
from packaging.version import Version

from modelpool.errors import QueueFull
from modelpool.gateway.server import HttpServer
from tests.unit.gateway.fakes import FakeController


@pytest.fixture
async def http(server: HttpServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        yield client


async def test_the_root_says_who_we_are_and_a_version_that_the_client_takes(http: httpx.AsyncClient) -> None:
    found = (await http.get("/")).json()
    assert found["message"] == "Welcome to modelpool"
    assert Version(found["version"]) >= Version("2.23.1")
    assert found["modelpool_version"] == "1.2.3"


# --- what is resident --------------------------------------------------------------------------------------------------------------
async def test_resident_models_stand_there_once_for_each_device(http: httpx.AsyncClient) -> None:
    found = (await http.get("/models")).json()["models"]
    assert [(entry["model_name"], entry["modelName"], entry["model_device"]) for entry in found] == [
        ("echo", "echo", "cpu"),
        ("hf/e5", "hf/e5", "cuda:0"),
    ]
    assert found[0]["model_properties"] == {"dimensions": 384, "note": "n", "name": "echo", "type": "onnx"}
    assert (found[0]["tier"], found[0]["size_bytes"], found[0]["last_use_s"]) == ("DEVICE", 1000, 1.5)
    assert "modelProperties" not in found[0]


async def test_details_carry_the_properties_as_json_text(http: httpx.AsyncClient) -> None:
    found = (await http.get("/models?detailed=true&telemetry=True")).json()["models"]
    assert json.loads(found[0]["modelProperties"]) == found[0]["model_properties"]


async def test_the_whole_catalogue(http: httpx.AsyncClient, controller: FakeController) -> None:
    await http.get("/models")
    found = (await http.get("/models", params={"all": "true"})).json()["models"]
    assert [(entry["name"], entry["state"]) for entry in found] == [("echo", "READY"), ("wait", "UNAVAILABLE"), ("hf/e5", "READY")]
    assert controller.asked == [("views", True), ("views", False)]  # no more than what is asked for


# --- load and eject ------------------------------------------------------------------------------------------------------------------
async def test_load(http: httpx.AsyncClient, controller: FakeController) -> None:
    reply = await http.post("/models", json={"model_name": "echo", "model_device": "cpu"})
    assert reply.json()["message"] == "successfully loaded model `echo` on device `cpu`"
    properties = {"url": "file:///m.onnx", "type": "onnx", "dimensions": 384}
    reply = await http.post("/models", json={"model_name": "new", "model_properties": properties})
    assert (reply.status_code, reply.json()["result"]) == (200, "success")
    assert controller.asked == [("load", "echo", "cpu"), ("post", "new", properties, None)]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"model_name": 1}',
        b'{"model_name": ""}',
        b'{"model_name": "m", "model_device": 1}',
        b'{"model_name": "m", "model_properties": "x"}',
        b'{"model_name": "m", "colour": 1}',
    ],
)
async def test_a_load_request_that_is_none(http: httpx.AsyncClient, body: bytes) -> None:
    reply = await http.post("/models", content=body)
    assert (reply.status_code, reply.json()["code"], reply.json()["type"]) == (400, "bad_request", "invalid_request")
    assert set(reply.json()) >= {"message", "code", "type", "link"}


@pytest.mark.parametrize(
    ("model", "status", "code", "own_code"),
    [
        ("full", 409, "model_cache_management_error", "no_space"),
        ("broken", 400, "bad_request", "load_failed"),
        ("nobody", 404, "model_not_found", "model_not_found"),
        ("bad", 400, "bad_request", "malformed_model"),
    ],
)
async def test_loads_that_go_wrong(http: httpx.AsyncClient, model: str, status: int, code: str, own_code: str) -> None:
    reply = await http.post("/models", json={"model_name": model})
    assert (reply.status_code, reply.json()["code"], reply.json()["modelpool_code"]) == (status, code, own_code)


async def test_a_full_queue_has_marqos_status(http: httpx.AsyncClient, controller: FakeController, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(name: str, device: str | None = None) -> tuple[str, ...]:
        raise QueueFull("full", retry_after_s=4.0)

    monkeypatch.setattr(controller, "load", full)
    reply = await http.post("/models", json={"model_name": "echo"})
    assert (reply.status_code, reply.json()["code"], reply.headers["retry-after"]) == (429, "too_many_requests", "4")


@pytest.mark.parametrize(
    ("query", "name", "device"),
    [
        ("model_name=echo", "echo", None),
        ("model_name=echo&model_device=cpu", "echo", "cpu"),
        ("model_name=hf/e5", "hf/e5", None),
        ("model_name=hf%2Fe5", "hf/e5", None),
        ("model_name=a+b", "a+b", None),
        ("model_name=a%2Bb", "a+b", None),
        ("model_name=c%20d", "c d", None),
        ("model_name=c+d", "c d", None),
        ("telemetry=True&model_name=echo", "echo", None),
    ],
)
async def test_eject(http: httpx.AsyncClient, controller: FakeController, query: str, name: str, device: str | None) -> None:
    reply = await http.delete(f"/models?{query}")
    assert (reply.status_code, reply.json()["result"]) == (200, "success")
    assert reply.json()["message"] == f"successfully ejected model `{name}` from device `cpu`"
    assert controller.asked == [("eject", name, device)]


@pytest.mark.parametrize("query", ["model_name=wait", "model_name=nobody", "model_name=echo%20", "model_name=hf/e"])
async def test_eject_of_what_is_not_resident(http: httpx.AsyncClient, query: str) -> None:
    reply = await http.delete(f"/models?{query}")
    assert (reply.status_code, reply.json()["code"], reply.json()["type"]) == (404, "model_not_in_cache", "invalid_request")
    assert "is not cached or found" in reply.json()["message"]
    assert reply.json()["link"] is None


@pytest.mark.parametrize("query", ["", "model_name=", "model_device=cpu", "model_name=echo&forget=perhaps", "model_name=%ff"])
async def test_an_eject_request_that_is_none(http: httpx.AsyncClient, query: str) -> None:
    assert (await http.delete(f"/models?{query}")).status_code == 400


async def test_forget(http: httpx.AsyncClient, controller: FakeController) -> None:
    reply = await http.delete("/models?model_name=echo&forget=true")
    assert reply.status_code == 200
    assert controller.asked == [("eject", "echo", None), ("forget", "echo")]
    assert (await http.delete("/models?model_name=wait&forget=true")).status_code == 200  # known, not resident
    assert (await http.delete("/models?model_name=nobody&forget=true")).json()["code"] == "model_not_found"
    for query in ("model_name=forgotten", "model_name=forgotten&forget=true"):
        reply = await http.delete(f"/models?{query}")
        assert (reply.status_code, reply.json()["code"]) == (404, "model_forgotten")
    assert (await http.post("/models", json={"model_name": "forgotten"})).status_code == 200  # known again
    assert (await http.get("/models/explain?model_name=forgotten")).status_code == 200


# --- devices -----------------------------------------------------------------------------------------------------------------------
async def test_the_cpu_in_texts_and_numbers(http: httpx.AsyncClient) -> None:
    found = (await http.get("/device/cpu")).json()
    assert found["cpu_usage_percent"].endswith(" %")
    assert found["memory_used_percent"].endswith(" %")
    assert float(found["memory_used_gb"]) > 0
    assert found["memory_used_bytes"] <= found["total_memory_bytes"]


async def test_no_gpu(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reply = await http.get("/device/cuda")
    assert reply.status_code == 400
    assert reply.json() == {
        "message": "CUDA is not available on this instance",
        "code": "hardware_compatability_error",
        "type": "invalid_request",
        "link": None,
        "modelpool_code": "device_not_found",
    }


async def test_gpus(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=3 << 29, total=6 << 30),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=11),
        nvmlDeviceGetName=lambda handle: b"Card",
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert (await http.get("/device/cuda")).json()["cuda_devices"] == [
        {
            "device_id": 0,
            "device_name": "Card",
            "memory_used": "1.5 GiB",
            "total_memory": "6.0 GiB",
            "utilization": "11.0 %",
            "memory_used_percent": "25.0 %",
            "memory_usage": "1.5 GiB",
            "total_device_memory": "6.0 GiB",
            "memory_used_bytes": 3 << 29,
            "total_memory_bytes": 6 << 30,
            "utilization_percent": 11.0,
        }
    ]


# --- our own -----------------------------------------------------------------------------------------------------------------------
async def test_devices_views_explanations_and_decisions(http: httpx.AsyncClient, controller: FakeController) -> None:
    assert (await http.get("/devices")).json()["devices"][0]["budget_bytes"] == 100
    assert (await http.get("/models/view", params={"model_name": "hf/e5"})).json()["copies"][0]["device"] == "cuda:0"
    assert (await http.get("/models/explain?model_name=echo")).json()["now"] == ["it is there"]
    assert (await http.get("/decisions")).json()["decisions"][0]["text"] == "loaded"
    assert (await http.get("/decisions?limit=5&model_name=echo")).status_code == 200
    assert controller.asked == [("view", "hf/e5"), ("decisions", 100, None), ("decisions", 5, "echo")]


@pytest.mark.parametrize("limit", ["0", "-1", "x", "99999", "9" * 30])
async def test_a_limit_that_is_none(http: httpx.AsyncClient, limit: str) -> None:
    assert (await http.get(f"/decisions?limit={limit}")).status_code == 400


async def test_pins(http: httpx.AsyncClient, controller: FakeController) -> None:
    assert (await http.post("/models/pin?model_name=echo")).json()["result"] == "success"
    assert (await http.post("/models/unpin?model_name=echo")).json()["result"] == "success"
    assert controller.asked == [("pin", "echo"), ("unpin", "echo")]


@pytest.mark.parametrize("path", ["/models/pin", "/models/unpin", "/models/explain", "/models/view"])
async def test_our_own_of_unknown_models(http: httpx.AsyncClient, path: str) -> None:
    method = "POST" if "pin" in path else "GET"
    reply = await http.request(method, path, params={"model_name": "nobody"})
    assert (reply.status_code, reply.json()["code"]) == (404, "model_not_found")
    assert (await http.request(method, path)).status_code == 400


async def test_what_is_not_there_has_code_and_type(http: httpx.AsyncClient) -> None:
    for method, path, status in (("GET", "/nothing", 404), ("PUT", "/models", 405), ("GET", "/indexes/any/stats", 400), ("POST", "/", 405)):
        reply = await http.request(method, path)
        assert reply.status_code == status
        assert {"message", "code", "type", "link"} <= set(reply.json())
