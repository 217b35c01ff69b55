from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from modelpool import errors
from modelpool.client import Client
from modelpool.protocol.inference import decode_request, encode_response
from modelpool.protocol.tensors import Tensor
from tests.unit.client.fake_server import Answer, Asked, FakeServer, running

HEADER = "inference-header-content-length"


def echo(asked: Asked) -> Answer:
    """Every input as an output."""
    request, form = decode_request(asked.body, int(asked.headers[HEADER]), 1)
    outputs = {name: tensor for name, tensor in request.inputs.items() if not request.wanted or name in request.wanted}
    encoded = encode_response("m", 1, "", outputs, form)
    return Answer(encoded.joined(), headers={HEADER: str(encoded.json_bytes)} if encoded.json_bytes >= 0 else {})


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running(echo) as server:
        yield server


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.url, timeout_s=30.0) as client:
        yield client


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"])
def test_arrays_of_each_type_go_and_come_back(client: Client, dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    found = client.infer("m", {"x": array, "empty": array[:0]})
    assert found["x"].dtype == array.dtype
    np.testing.assert_array_equal(found["x"], array)
    assert found["empty"].shape == (0, 3)


@pytest.mark.parametrize("text", [np.array(["a", "é"]), np.array([b"a", "é".encode()], object), ["a", "é"]])
def test_text_comes_back_as_bytes(client: Client, text: object) -> None:
    assert client.infer("m", {"x": text})["x"].tolist() == [b"a", "é".encode()]


def test_an_answer_may_be_changed(client: Client) -> None:
    found = client.infer("m", {"x": np.zeros(3, np.float32)})["x"]
    found += 1
    assert found.tolist() == [1, 1, 1]


def test_what_the_request_says(server: FakeServer, client: Client) -> None:
    found = client.infer("hf/e5 x", {"x": [1.0], "y": [2.0]}, version=3, outputs=["y"], parameters={"keep_alive": "5m"}, timeout_s=2.0)
    assert list(found) == ["y"]
    (asked,) = server.asked
    assert asked.path == "/v2/models/hf%2Fe5%20x/versions/3/infer"
    head = json.loads(asked.body[: int(asked.headers[HEADER])])
    assert head["parameters"]["keep_alive"] == "5m"
    assert 0 < head["parameters"]["timeout"] <= 2_000_000


@pytest.mark.parametrize(
    ("name", "path"), [("..", "/v2/models/%2E%2E/infer"), (".", "/v2/models/%2E/infer"), ("../x", "/v2/models/..%2Fx/infer")]
)
def test_no_name_leads_elsewhere(server: FakeServer, client: Client, name: str, path: str) -> None:
    client.infer(name, {"x": [1.0]})
    assert server.asked[0].path == path


def test_a_model_that_is_loading_is_waited_for(server: FakeServer) -> None:
    server.script = [Answer({"error": "its queue is full", "code": "queue_full"}, 429, {"Retry-After": "1"})]
    slept: list[float] = []
    with Client(server.url, sleep=slept.append) as client:
        assert client.infer("m", {"x": [1.0]})["x"].tolist() == [1.0]
    assert slept == [1.0]


def test_an_array_of_no_known_type_is_never_sent(server: FakeServer, client: Client) -> None:
    with pytest.raises(errors.InvalidTensor, match="complex"):
        client.infer("m", {"x": np.zeros(3, complex)})
    assert server.asked == []


def test_a_json_answer_is_read_too(server: FakeServer, client: Client) -> None:
    encoded = encode_response("m", 1, "", {"y": Tensor("FP32", np.ones(2, np.float32))})
    assert encoded.json_bytes == -1
    server.script = [Answer(encoded.joined())]
    assert client.infer("m", {"x": [1.0]})["y"].tolist() == [1, 1]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"<html>"),
        Answer(b"{}", headers={HEADER: "soon"}),
        Answer(b"{}", headers={HEADER: "9"}),
        Answer({"outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1.0]}]}),
    ],
)
def test_an_answer_that_is_none_is_the_servers_fault(server: FakeServer, client: Client, answer: Answer) -> None:
    server.script = [answer]
    with pytest.raises(errors.ModelpoolError, match="did not answer as the Open Inference Protocol") as caught:
        client.infer("m", {"x": [1.0]})
    assert caught.value.code == "internal_error"
