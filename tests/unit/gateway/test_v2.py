"""The Open Inference Protocol beside inference, as clients see it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from modelpool.gateway.server import HttpServer
from tests.unit.gateway.fakes import BODY_LIMIT_BYTES, FakeController


@pytest.fixture
async def http(server: HttpServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        yield client


async def test_the_server_describes_itself(http: httpx.AsyncClient) -> None:
    found = (await http.get("/v2")).json()
    assert (found["name"], found["version"]) == ("modelpool", "1.2.3")
    assert {"binary_tensor_data", "model_repository", "statistics"} <= set(found["extensions"])


async def test_health(http: httpx.AsyncClient, controller: FakeController) -> None:
    assert [(await http.get(f"/v2/health/{what}")).status_code for what in ("live", "ready")] == [200, 200]
    assert (await http.head("/v2/health/live")).status_code == 200
    controller.is_ready = False
    assert (await http.get("/v2/health/ready")).status_code == 400


@pytest.mark.parametrize("path", ["echo", "echo/versions/3"])
async def test_metadata(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(f"/v2/models/{path}")).json() == {
        "name": "echo",
        "versions": ["3"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
    }


async def test_config_ready_and_statistics(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v2/models/echo/config")).json() == {"name": "echo", "max_batch_size": 8}
    assert (await http.get("/v2/models/echo/ready")).status_code == 200
    assert (await http.get("/v2/models/hf%2Fe5/ready")).status_code == 200
    assert (await http.get("/v2/models/hf/e5/versions/3/ready")).status_code == 200
    assert (await http.get("/v2/models/echo/stats")).json()["model_stats"][0]["inference_count"] == 7
    assert (await http.get("/v2/models/stats")).json()["model_stats"][0]["name"] == "echo"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("nobody", 404, "model_not_found"),
        ("nobody/config", 404, "model_not_found"),
        ("nobody/ready", 400, "model_not_found"),
        ("nobody/stats", 400, "model_not_found"),
        ("unready/ready", 400, "model_not_ready"),
        ("bad", 404, "malformed_model"),
        ("bad/config", 404, "malformed_model"),
        ("bad/ready", 400, "malformed_model"),
        ("forgotten", 404, "model_forgotten"),
        ("echo/versions/9", 404, "version_not_found"),
        ("echo/versions/9/ready", 400, "version_not_found"),
        ("echo/versions/x/ready", 400, "bad_request"),
        ("%ff", 400, "invalid_name"),
    ],
)
async def test_what_is_wrong_with_a_model(http: httpx.AsyncClient, path: str, status: int, code: str) -> None:
    reply = await http.get(f"/v2/models/{path}")
    assert (reply.status_code, reply.json()["code"]) == (status, code)
    assert reply.json()["error"]


# --- the repository --------------------------------------------------------------------------------------------------------------
async def test_the_index(http: httpx.AsyncClient) -> None:
    everything = [{"name": "echo", "version": "3", "state": "READY"}, {"name": "bad", "reason": "no such file"}]
    assert (await http.post("/v2/repository/index")).json() == everything
    assert (await http.post("/v2/repository/index", json={"ready": False})).json() == everything
    assert (await http.post("/v2/repository/index", json={"ready": True})).json() == everything[:1]


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"ready": 1}', b"\xff", b"[" * 5000])
async def test_an_index_request_that_is_none(http: httpx.AsyncClient, body: bytes) -> None:
    reply = await http.post("/v2/repository/index", content=body)
    assert (reply.status_code, reply.json()["code"]) == (400, "bad_request")


@pytest.mark.parametrize("path", ["echo", "hf%2Fe5", "hf/e5"])
async def test_load_and_unload(http: httpx.AsyncClient, controller: FakeController, path: str) -> None:
    assert (await http.post(f"/v2/repository/models/{path}/load")).status_code == 200
    assert (await http.post(f"/v2/repository/models/{path}/unload", json={"parameters": {"unload_dependents": True}})).status_code == 200
    name = path.replace("%2F", "/")
    assert controller.asked == [("load", name, None), ("eject", name, None)]


@pytest.mark.parametrize("model", ["nobody", "wait"])
async def test_unload_of_what_is_not_there_is_no_error(http: httpx.AsyncClient, model: str) -> None:
    assert (await http.post(f"/v2/repository/models/{model}/unload")).status_code == 200


@pytest.mark.parametrize(
    ("model", "body", "status", "code", "words"),
    [
        ("nobody", {}, 500, "model_not_found", "failed to poll from model repository"),
        ("bad", {}, 500, "malformed_model", "no such file"),
        ("broken", {}, 400, "load_failed", "load failed for model"),
        ("full", {}, 409, "no_space", "echo"),
        ("echo", {"parameters": {"config": "{}"}}, 501, "unsupported", "later version"),
        ("echo", {"parameters": {"file:1/model.onnx": "AA=="}}, 400, "bad_request", "config"),
        ("echo", {"parameters": {"colour": 1}}, 400, "bad_request", "colour"),
        ("echo", {"parameters": []}, 400, "bad_request", "object"),
    ],
)
async def test_loads_that_go_wrong(
    http: httpx.AsyncClient, controller: FakeController, model: str, body: object, status: int, code: str, words: str
) -> None:
    reply = await http.post(f"/v2/repository/models/{model}/load", json=body)
    assert (reply.status_code, reply.json()["code"]) == (status, code)
    assert words in reply.json()["error"]


async def test_unloads_that_go_wrong(http: httpx.AsyncClient) -> None:
    for parameters in ({"unload_dependents": 1}, {"colour": True}):
        assert (await http.post("/v2/repository/models/echo/unload", json={"parameters": parameters})).status_code == 400


# --- what is not there -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/models/echo/generate"),
        ("POST", "/v2/models/echo/versions/3/generate_stream"),
        ("GET", "/v2/models/echo/trace/setting"),
        ("GET", "/v2/trace/setting"),
        ("POST", "/v2/logging"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/cudasharedmemory/region/r/register"),
    ],
)
async def test_what_comes_later_says_so(http: httpx.AsyncClient, method: str, path: str) -> None:
    reply = await http.request(method, path)
    assert (reply.status_code, reply.json()["code"]) == (501, "unsupported")
    assert "later version" in reply.json()["error"]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/", "GET, HEAD"),
        ("/models", "DELETE, GET, HEAD, POST"),
        ("/models/view", "GET, HEAD"),
        ("/models/pin", "POST"),
        ("/metrics", "GET, HEAD"),
        ("/v2", "GET, HEAD"),
        ("/v2/models/stats", "GET, HEAD"),
        ("/v2/models/echo", "GET, HEAD"),
        ("/v2/models/echo/versions/3/config", "GET, HEAD"),
        ("/v2/models/echo/infer", "POST"),
        ("/v2/models/echo/trace/setting", "GET, HEAD, POST"),
        ("/v2/repository/index", "POST"),
        ("/v2/logging", "GET, HEAD, POST"),
    ],
)
async def test_a_wrong_method_is_told_all_that_the_path_takes(http: httpx.AsyncClient, path: str, allowed: str) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        reply = await http.request(method, path)
        assert (reply.status_code == 405) == (method not in allowed.split(", ")), method
        if reply.status_code == 405:
            assert reply.headers["allow"] == allowed
            if method != "HEAD":
                assert reply.json()["code"] == "method_not_allowed"
                assert f"{path}; use {allowed}" in (reply.json().get("error") or reply.json()["message"])


async def test_wrong_paths_and_heads(http: httpx.AsyncClient) -> None:
    for path in ("/v2/nothing", "/v2/models/", "/v2/models"):
        reply = await http.get(path)
        assert (reply.status_code, reply.json()["code"]) == (404, "path_not_found")
    assert (await http.head("/v2/models/echo/infer")).status_code == 405
    assert (await http.head("/v2/models/echo")).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_are_bounded(http: httpx.AsyncClient, chunked: bool) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b" " * (BODY_LIMIT_BYTES // 20)

    content = parts() if chunked else b" " * (BODY_LIMIT_BYTES + 1)
    reply = await http.post("/v2/repository/index", content=content)
    assert (reply.status_code, reply.json()["code"]) == (413, "body_too_large")


async def test_a_fault_of_ours_is_told_without_its_details(
    http: httpx.AsyncClient, controller: FakeController, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(ready_only: bool = False) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(controller, "index", broken)
    reply = await http.post("/v2/repository/index")
    assert (reply.status_code, reply.json()["code"]) == (500, "internal_error")
    assert "a secret" not in reply.text
    assert "a secret" in caplog.text


async def test_a_double_slash_at_the_start_does_no_harm(http: httpx.AsyncClient, server: HttpServer) -> None:
    assert (await http.get(f"{server.url}//v2/models/echo")).json()["name"] == "echo"
    assert json.loads((await http.get(f"{server.url}//models")).content)["models"]
