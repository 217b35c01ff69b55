"""`modelpool.Client` against a real server: what it gives back, and which exceptions tell what went wrong."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import modelpool
from modelpool.client import ConnectionFailed
from modelpool.errors import (
    Forbidden,
    ForgottenModel,
    InvalidName,
    InvalidRequest,
    InvalidTensor,
    LoadFailed,
    MalformedModel,
    ModelError,
    NeverFits,
    NoSpace,
    NotCached,
    QueueFull,
    RequestTimeout,
    UnknownDevice,
    UnknownModel,
    UnknownVersion,
    Unsupported,
)
from modelpool.testing.models import dense, python_model, scale, write_config
from tests.integration import zoo
from tests.integration.serving import RunningServer, serving, until

MIB = 1 << 20
ONE = {"x": np.array([1.0], np.float32)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("client")
    models = folder / "models"
    zoo.build(models)
    zoo.python_slow(models / "slow", load_s=1.0)
    dense(models / "huge.onnx", weight_bytes=150 * MIB)
    write_config(models / "raises", 'backend: "python"')
    python_model(models / "raises", "raise RuntimeError('no weights today')")
    scale(folder / "secret.onnx", 1.0)
    with serving(folder, "--device", "cpu=120MiB", "--set", "queue_bound=2") as found:
        yield found


@pytest.fixture
def client(server: RunningServer) -> Iterator[modelpool.Client]:
    with modelpool.Client(server.about["url"], timeout_s=30.0, retries=0) as client:
        yield client


# --- models ---------------------------------------------------------------------------------------------------------------------------
def test_load_look_and_eject(client: modelpool.Client) -> None:
    assert client.load_model("triple")["result"] == "success"
    info = client.get_loaded_models()["cpu"]["triple"]
    assert (info["type"], info["state"], info["tier"]) == ("onnx", "READY", "DEVICE")
    assert info["size_bytes"] > 0
    assert client.get_loaded_models("cuda") == {}
    assert "triple" in client.get_loaded_models("cpu")["cpu"]
    assert client.eject_model("triple", "cpu")["result"] == "success"
    assert "triple" not in client.get_loaded_models().get("cpu", {})
    with pytest.raises(NotCached, match="not cached or found"):
        client.eject_model("triple")


def test_a_generic_model(client: modelpool.Client) -> None:
    properties = {"url": "triple.onnx", "type": "onnx", "dimensions": 384, "note": "mine"}
    client.load_model("hf/mine", "cpu", properties)
    info = client.get_loaded_models("cpu")["cpu"]["hf/mine"]
    assert (info["dimensions"], info["note"], info["url"]) == (384, "mine", "triple.onnx")
    np.testing.assert_array_equal(client.infer("hf/mine", ONE)["y"], [3.0])
    client.forget_model("hf/mine")
    for use in (lambda: client.infer("hf/mine", ONE), lambda: client.load_model("hf/mine"), lambda: client.model("hf/mine")):
        with pytest.raises(ForgottenModel, match="post it again"):
            use()
    client.load_model("hf/mine", properties=properties)
    np.testing.assert_array_equal(client.infer("hf/mine", ONE)["y"], [3.0])


def test_devices_and_decisions(client: modelpool.Client) -> None:
    client.load_model("triple")
    (device,) = client.devices()
    assert (device["device"], device["up"], device["budget_bytes"]) == ("cpu", True, 120 * MIB)
    assert client.get_device_info("cpu")["total_memory_bytes"] > 0
    assert client.explain("triple")["state"] == "READY"
    assert client.decisions("triple")[-1]["model"] == "triple"
    assert {one["name"] for one in client.models()} >= {"triple", "slow", "bad-text"}


# --- inference ------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("datatype", [name for name in zoo.ONNX_TYPES if name not in ("BYTES", "BF16")])
def test_arrays_of_all_types(client: modelpool.Client, datatype: str) -> None:
    dtype = np.dtype({"FP16": "float16", "FP32": "float32", "FP64": "float64"}.get(datatype, datatype.lower()))
    array = np.array([[0, 1, 1], [1, 0, 1]], dtype)
    found = client.infer(f"same-{datatype}", {"x": array})["y"]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_arrays_of_text(client: modelpool.Client) -> None:
    for words in (np.array(["ab", "größe", ""]), np.array([b"ab", "größe".encode(), b""], np.object_)):
        found = client.infer("python-text", {"words": words})
        assert found["upper"].tolist() == [b"AB", "GRÖSSE".encode(), b""]
        assert found["lengths"].tolist() == [2, 7, 0]


def test_versions_outputs_and_parameters(client: modelpool.Client) -> None:
    np.testing.assert_array_equal(client.infer("all", ONE, version=2)["y"], [2.0])
    np.testing.assert_array_equal(client.infer("Größe 模型", ONE)["y"], [7.0])
    row = np.ones((1, 4), np.float32)
    assert set(client.infer("batched", {"a": row, "b": row}, outputs=["sum"], parameters={"keep_alive": "1m"})) == {"sum"}


def test_a_client_is_shared_by_threads(client: modelpool.Client) -> None:
    def work(number: int) -> list[float]:
        row = np.full((1, 4), number, np.float32)
        return [float(one) for one in client.infer("batched", {"a": row, "b": row})["sum"].ravel()]

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(100))) == [[2.0 * number] * 4 for number in range(100)]


# --- what goes wrong --------------------------------------------------------------------------------------------------------------------
def test_each_fault_has_its_exception(client: modelpool.Client, server: RunningServer) -> None:
    wrong = np.ones((2, 2), np.float32)
    secret = {"url": str(server.state.parent / "secret.onnx"), "type": "onnx"}
    for error, use in (
        (UnknownModel, lambda: client.infer("nobody", ONE)),
        (UnknownModel, lambda: client.load_model("nobody")),
        (UnknownModel, lambda: client.infer("..", ONE)),
        (UnknownVersion, lambda: client.infer("some", ONE, version=10)),
        (InvalidTensor, lambda: client.infer("triple", {"z": wrong})),
        (InvalidTensor, lambda: client.infer("triple", {"x": wrong})),
        (InvalidTensor, lambda: client.infer("triple", {"x": np.array([1], np.int8)})),
        (InvalidTensor, lambda: client.infer("triple", {"x": np.array([1 + 2j])})),
        (InvalidTensor, lambda: client.infer("triple", ONE, outputs=["z"])),
        (InvalidRequest, lambda: client.infer("triple", ONE, parameters={"keep_alive": "soon"})),
        (MalformedModel, lambda: client.infer("bad-text", ONE)),
        (MalformedModel, lambda: client.load_model("bad-half")),
        (LoadFailed, lambda: client.infer("raises", ONE)),
        (LoadFailed, lambda: client.load_model("raises")),
        (ModelError, lambda: client.infer("python-raising", {"x": np.array([-1.0], np.float32)})),
        (NeverFits, lambda: client.load_model("huge")),
        (UnknownDevice, lambda: client.load_model("triple", "cuda:0")),
        (InvalidName, lambda: client.load_model("a/../b", properties={"url": "triple.onnx", "type": "onnx"})),
        (Forbidden, lambda: client.load_model("secret", properties=secret)),
        (Unsupported, lambda: client.load_model("far", properties={"url": "https://example.org/m.onnx", "type": "onnx"})),
        (NotCached, lambda: client.eject_model("newest")),
    ):
        with pytest.raises(error) as failure:
            use()
        assert type(failure.value) is error
        assert failure.value.code == error.code
        assert len(failure.value.message) > 20
    np.testing.assert_array_equal(client.infer("triple", ONE)["y"], [3.0])


def test_a_time_limit_ends_a_wait(client: modelpool.Client) -> None:
    began = time.monotonic()
    with pytest.raises(RequestTimeout):
        client.infer("slow", ONE, timeout_s=0.3)
    assert time.monotonic() - began < 5
    until(lambda: client.model("slow")["queue"] == 0, "the end of the wait")
    np.testing.assert_array_equal(client.infer("slow", ONE)["y"], [1.0])


def test_refusals_are_tried_again_when_the_server_says_so(client: modelpool.Client, server: RunningServer) -> None:
    with contextlib.suppress(NotCached):  # whether it is resident depends on the tests before
        client.eject_model("slow")
    with ThreadPoolExecutor(8) as pool, modelpool.Client(server.about["url"], timeout_s=30.0) as patient:
        first = [pool.submit(client.infer, "slow", ONE) for _ in range(2)]
        until(lambda: client.model("slow")["queue"] == 2, "the full queue")
        with pytest.raises(QueueFull) as failure:
            client.infer("slow", ONE)
        assert (failure.value.retry_after_s or 0) >= 1
        later = [pool.submit(patient.infer, "slow", ONE) for _ in range(4)]
        for one in (*first, *later):
            np.testing.assert_array_equal(one.result()["y"], [1.0])


def test_policy_none_raises_what_to_eject(tmp_path: Path) -> None:
    for number, name in enumerate(("alpha", "beta")):
        dense(tmp_path / "models" / f"{name}.onnx", weight_bytes=12 * MIB, seed=number)
    with serving(tmp_path, "--device", "cpu=25MiB", "--eviction", "none") as server, modelpool.Client(server.about["url"]) as client:
        client.load_model("alpha")
        with pytest.raises(NoSpace, match="eject alpha first"):
            client.load_model("beta")
        client.eject_model("alpha")
        client.load_model("beta")


def test_nobody_is_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with (
            modelpool.Client(f"http://127.0.0.1:{unused.getsockname()[1]}", timeout_s=5) as client,
            pytest.raises(ConnectionFailed, match="modelpool serve"),
        ):
            client.get_loaded_models()
