from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import modelpool
from modelpool.client import Client
from tests.unit.client.fake_server import Answer, Asked, FakeServer, running


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running() as server:
        yield server


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def test_the_package_exports_the_client() -> None:
    assert modelpool.Client is Client
    with pytest.raises(AttributeError, match="nonsense"):
        _ = modelpool.nonsense


def test_load_sends_only_what_was_given(server: FakeServer, client: Client) -> None:
    client.load_model("m")
    client.load_model("hf/e5", "cpu", {"url": "/models/e5.onnx", "type": "onnx"})
    assert [(asked.method, asked.path, asked.json) for asked in server.asked] == [
        ("POST", "/models", {"model_name": "m"}),
        (
            "POST",
            "/models",
            {"model_name": "hf/e5", "model_device": "cpu", "model_properties": {"url": "/models/e5.onnx", "type": "onnx"}},
        ),
    ]


def test_names_with_special_characters_arrive_whole(server: FakeServer, client: Client) -> None:
    name = "a/b c+d|é&x=1"
    client.eject_model(name, "cuda:0")
    client.pin(name)
    assert server.asked[0].params == {"model_name": name, "model_device": "cuda:0"}
    assert server.asked[1].params == {"model_name": name}


@pytest.mark.parametrize(
    ("call", "method", "path", "params"),
    [
        (lambda client: client.eject_model("m"), "DELETE", "/models", {"model_name": "m"}),
        (lambda client: client.forget_model("m"), "DELETE", "/models", {"model_name": "m", "forget": "true"}),
        (lambda client: client.models(), "GET", "/models", {"all": "true"}),
        (lambda client: client.model("m"), "GET", "/models/view", {"model_name": "m"}),
        (lambda client: client.pin("m"), "POST", "/models/pin", {"model_name": "m"}),
        (lambda client: client.unpin("m"), "POST", "/models/unpin", {"model_name": "m"}),
        (lambda client: client.explain("m"), "GET", "/models/explain", {"model_name": "m"}),
        (lambda client: client.decisions(), "GET", "/decisions", {"limit": "50"}),
        (lambda client: client.decisions("m", limit=3), "GET", "/decisions", {"limit": "3", "model_name": "m"}),
        (lambda client: client.devices(), "GET", "/devices", {}),
        (lambda client: client.get_device_info("cuda"), "GET", "/device/cuda", {}),
    ],
)
def test_each_wish_is_one_request(server: FakeServer, client: Client, call, method, path, params) -> None:
    call(client)
    assert [(asked.method, asked.path, asked.params) for asked in server.asked] == [(method, path, params)]


def test_loaded_models_are_grouped_by_device(server: FakeServer, client: Client) -> None:
    def entry(name: str, device: str, **properties: object) -> dict[str, object]:
        return {"model_name": name, "modelName": name, "model_device": device, "size_bytes": 7, "model_properties": properties}

    entries = [entry("a", "cpu", dimensions=384, note="small", size_bytes=1), entry("a", "cuda:0"), entry("b", "cuda:1")]
    server.respond = lambda asked: Answer({"models": entries})
    assert client.get_loaded_models() == {
        "cpu": {"a": {"dimensions": 384, "note": "small", "size_bytes": 7}},
        "cuda:0": {"a": {"size_bytes": 7}},
        "cuda:1": {"b": {"size_bytes": 7}},
    }
    assert list(client.get_loaded_models("cuda")) == ["cuda:0", "cuda:1"]
    assert list(client.get_loaded_models("cuda:1")) == ["cuda:1"]
    assert client.get_loaded_models("cuda:7") == {}


def test_one_client_serves_many_threads(server: FakeServer, client: Client) -> None:
    def respond(asked: Asked) -> Answer:
        return Answer({"model": asked.params["model_name"]})

    server.respond = respond
    found: dict[int, str] = {}

    def ask(number: int) -> None:
        found[number] = client.explain(f"m{number}")["model"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: f"m{number}" for number in range(16)}
