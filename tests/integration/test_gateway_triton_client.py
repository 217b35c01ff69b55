"""Triton's own HTTP client, unmodified, against the real server."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from modelpool.testing.server import serving
from tests.integration.gateway_repository import build


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    with serving([str(build(folder / "models")), "--device", "cpu=200MiB"], folder) as (url, _):
        yield url.removeprefix("http://")


@pytest.fixture
def client(url: str) -> Iterator[triton.InferenceServerClient]:
    client = triton.InferenceServerClient(url, concurrency=4, connection_timeout=20, network_timeout=20)
    yield client
    client.close()


def tensor(name: str, array: np.ndarray, *, binary: bool = True) -> triton.InferInput:
    found = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    found.set_data_from_numpy(array, binary_data=binary)
    return found


def test_health_and_metadata(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata()["name"] == "modelpool"
    found = client.get_model_metadata("tiny")
    assert (found["name"], found["versions"], found["platform"]) == ("tiny", ["1"], "onnxruntime_onnx")
    assert found["inputs"][0] == {"name": "a", "datatype": "FP32", "shape": [-1, 4]}
    assert client.get_model_config("tiny")["max_batch_size"] == 64
    assert client.is_model_ready("tiny")
    assert client.is_model_ready("tiny", "1")
    assert not client.is_model_ready("tiny", "7")
    assert not client.is_model_ready("nobody")
    assert not client.is_model_ready("malformed")


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_inference(client: triton.InferenceServerClient, binary_in: bool, binary_out: bool, compression: str | None) -> None:
    a, b = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones((2, 4), np.float32)
    outputs = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in ("difference", "sum")]
    found = client.infer(
        "tiny",
        [tensor("a", a, binary=binary_in), tensor("b", b, binary=binary_in)],
        outputs=outputs,
        request_id="mine",
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    np.testing.assert_array_equal(found.as_numpy("sum"), a + b)
    np.testing.assert_array_equal(found.as_numpy("difference"), a - b)
    assert (found.get_response()["model_name"], found.get_response()["id"]) == ("tiny", "mine")


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("FLOAT", np.array([1.5, -2.5, np.inf], np.float32)),
        ("FLOAT16", np.array([1.5, -2.5], np.float16)),
        ("DOUBLE", np.array([1e300], np.float64)),
        ("INT8", np.array([-128, 127], np.int8)),
        ("INT64", np.array([-(2**63), 2**63 - 1], np.int64)),
        ("UINT8", np.array([0, 255], np.uint8)),
        ("BOOL", np.array([True, False])),
        ("STRING", np.array([b"", b"abc", "ünï".encode()], np.object_)),
        ("FLOAT", np.zeros(0, np.float32)),
    ],
)
def test_all_sorts_of_tensors(client: triton.InferenceServerClient, name: str, array: np.ndarray) -> None:
    found = client.infer(f"same-{name}", [tensor("x", array)], outputs=[triton.InferRequestedOutput("y", binary_data=True)])
    np.testing.assert_array_equal(found.as_numpy("y"), array)


def test_large_bodies_go_both_ways(client: triton.InferenceServerClient) -> None:
    array = np.random.default_rng(0).standard_normal(1_300_000, np.float32)  # 5 MB
    found = client.infer("triple", [tensor("x", array)])
    np.testing.assert_array_equal(found.as_numpy("y"), array * np.float32(3))


def test_requests_at_once_are_answered_right(client: triton.InferenceServerClient) -> None:
    ones = np.ones((1, 4), np.float32)
    asked = [client.async_infer("tiny", [tensor("a", ones * number), tensor("b", ones)]) for number in range(64)]
    for number, request in enumerate(asked):
        np.testing.assert_array_equal(request.get_result().as_numpy("sum"), ones * (number + 1))


def test_load_unload_and_index(client: triton.InferenceServerClient) -> None:
    def row(name: str) -> dict[str, str]:
        return next(row for row in client.get_model_repository_index() if row["name"] == name)

    client.load_model("triple")
    assert row("triple")["state"] == "READY"
    client.unload_model("triple")
    assert (row("triple")["state"], row("triple")["reason"]) == ("UNAVAILABLE", "not resident")
    assert client.is_model_ready("triple")
    found = client.infer("triple", [tensor("x", np.ones(1, np.float32))])  # loads it again
    assert found.as_numpy("y")[0] == 3
    assert row("triple")["state"] == "READY"
    assert row("malformed")["reason"]
    client.unload_model("nobody")


def test_statistics(client: triton.InferenceServerClient) -> None:
    client.infer("triple", [tensor("x", np.ones(1, np.float32))])
    (found,) = client.get_inference_statistics("triple")["model_stats"]
    assert found["name"] == "triple"
    assert found["inference_count"] >= 1
    assert {"success", "fail", "queue", "compute_infer"} <= set(found["inference_stats"])
    assert "triple" in {row["name"] for row in client.get_inference_statistics()["model_stats"]}


@pytest.mark.parametrize(
    ("model", "status", "words"),
    [("nobody", "404", "unknown model"), ("malformed", "404", "malformed"), ("cut", "4", "cut"), ("no/../body", "4", "")],
)
def test_models_that_cannot_be_asked(client: triton.InferenceServerClient, model: str, status: str, words: str) -> None:
    with pytest.raises(InferenceServerException) as failure:
        client.infer(model, [tensor("x", np.ones(1, np.float32))])
    assert str(failure.value.status()).startswith(status)
    assert words in failure.value.message()


def test_loads_of_models_that_cannot_be_loaded(client: triton.InferenceServerClient) -> None:
    for model, status in (("nobody", "500"), ("malformed", "500")):
        with pytest.raises(InferenceServerException) as failure:
            client.load_model(model)
        assert failure.value.status() == status
    with pytest.raises(InferenceServerException) as failure:
        client.get_inference_statistics("nobody")
    assert failure.value.status() == "400"


def test_wrong_tensors(client: triton.InferenceServerClient) -> None:
    one = np.ones((1, 4), np.float32)
    for inputs in (
        [tensor("a", one)],
        [tensor("a", one), tensor("colour", one)],
        [tensor("a", one), tensor("b", np.ones((1, 5), np.float32))],
        [tensor("a", one), tensor("b", one.astype(np.float64))],
    ):
        with pytest.raises(InferenceServerException) as failure:
            client.infer("tiny", inputs)
        assert failure.value.status() == "400"
        assert failure.value.message()


def test_what_comes_later_says_so(client: triton.InferenceServerClient) -> None:
    for ask in (client.get_log_settings, client.get_trace_settings, client.get_system_shared_memory_status):
        with pytest.raises(InferenceServerException, match="later version"):
            ask()
    with pytest.raises(InferenceServerException, match="later version"):
        client.load_model("triple", config="{}")
