"""`tritonclient.http`, unmodified: everything that it can ask of a server, over models of every sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.integration import zoo
from tests.integration.serving import RunningServer

Client = triton.InferenceServerClient

VALUES: dict[str, NDArray[Any]] = {
    "BOOL": np.array([[True, False, True]]),
    "UINT8": np.array([[0, 255]], np.uint8),
    "UINT16": np.array([[0, 65535]], np.uint16),
    "UINT32": np.array([[0, 2**32 - 1]], np.uint32),
    "UINT64": np.array([[0, 2**64 - 1]], np.uint64),
    "INT8": np.array([[-128, 127]], np.int8),
    "INT16": np.array([[-(2**15), 2**15 - 1]], np.int16),
    "INT32": np.array([[-(2**31), 2**31 - 1]], np.int32),
    "INT64": np.array([[-(2**63), 2**63 - 1]], np.int64),
    "FP16": np.array([[0.0, -1.5, 65504.0, np.inf, np.nan]], np.float16),
    "FP32": np.array([[0.1, -3.4e38, np.inf, -np.inf, np.nan]], np.float32),
    "FP64": np.array([[0.1, 1.7e308, np.inf, -np.inf, np.nan]], np.float64),
    "BYTES": np.array([b"", b"abc", "Größe 模型".encode(), b'quote " and \\'], np.object_),
}


def tensor(name: str, array: NDArray[Any], *, binary: bool = True, datatype: str | None = None) -> triton.InferInput:
    found = triton.InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
    found.set_data_from_numpy(array, binary_data=binary)
    return found


def wanted(*names: str, binary: bool = True) -> list[triton.InferRequestedOutput]:
    return [triton.InferRequestedOutput(name, binary_data=binary) for name in names]


def pair(value: float = 1.0, rows: int = 1) -> list[triton.InferInput]:
    """The inputs of the models that add and subtract: `a` full of the value, `b` of ones."""
    ones = np.ones((rows, 4), np.float32)
    return [tensor("a", ones * np.float32(value)), tensor("b", ones)]


def state(client: Client, model: str) -> dict[str, str]:
    return next(row for row in client.get_model_repository_index() if row["name"] == model)


# --- about the server and its models ------------------------------------------------------------------------------------------------
def test_the_server(triton_client: Client) -> None:
    assert triton_client.is_server_live()
    assert triton_client.is_server_ready()
    about = triton_client.get_server_metadata()
    assert about["name"] == "modelpool"
    assert "binary_tensor_data" in about["extensions"]


@pytest.mark.parametrize("datatype", zoo.ONNX_TYPES)
def test_metadata_and_config_name_the_data_type(triton_client: Client, datatype: str) -> None:
    model = f"same-{datatype}"
    rank = 1 if datatype == "BYTES" else 2
    metadata = triton_client.get_model_metadata(model)
    assert metadata["inputs"] == [{"name": "x", "datatype": datatype, "shape": [-1] * rank}]
    assert metadata["outputs"] == [{"name": "y", "datatype": datatype, "shape": [-1] * rank}]
    config = triton_client.get_model_config(model)
    assert config["input"] == [
        {"name": "x", "data_type": f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}", "dims": [-1] * rank},
    ]
    assert (config["name"], config["backend"], config["max_batch_size"]) == (model, "onnxruntime", 0)


def test_metadata_of_a_model_in_batches_shows_the_batch_and_its_config_does_not(triton_client: Client) -> None:
    assert [one["shape"] for one in triton_client.get_model_metadata("batched")["inputs"]] == [[-1, 4], [-1, 4]]
    config = triton_client.get_model_config("batched")
    assert [one["dims"] for one in config["input"]] == [[4], [4]]
    assert config["max_batch_size"] == 64
    assert "dynamic_batching" in config


@pytest.mark.parametrize(
    ("model", "platform"), [("python-add-sub", "python"), ("plain-folder", "onnxruntime_onnx"), ("Größe 模型", "onnxruntime_onnx")]
)
def test_models_of_all_layouts_have_metadata(triton_client: Client, model: str, platform: str) -> None:
    metadata = triton_client.get_model_metadata(model)
    assert (metadata["name"], metadata["platform"], metadata["versions"]) == (model, platform, ["1"])
    assert metadata["inputs"]
    assert triton_client.is_model_ready(model)


def test_looking_at_models_loads_none(triton_client: Client, zoo_server: RunningServer) -> None:
    models = ["same-UINT16", "python-text", "newest"]
    for model in models:
        triton_client.unload_model(model)
    for model in models:
        triton_client.get_model_metadata(model)
        triton_client.get_model_config(model)
        triton_client.get_inference_statistics(model)
        assert triton_client.is_model_ready(model)
    triton_client.get_inference_statistics()
    triton_client.get_model_repository_index()
    for model in models:
        assert (state(triton_client, model)["state"], state(triton_client, model)["reason"]) == ("UNAVAILABLE", "not resident")
        assert not zoo_server.view(model)["copies"]


def test_ready_tells_what_can_be_served(triton_client: Client) -> None:
    for model, version in (("all", ""), ("all", "2"), ("some", "1"), ("newest", "10")):
        assert triton_client.is_model_ready(model, version)
    for model, version in (("nobody", ""), ("all", "3"), ("some", "10"), ("newest", "1"), ("bad-text", ""), ("bad-half", "1")):
        assert not triton_client.is_model_ready(model, version)


def test_the_index_lists_malformed_models_with_their_reasons(triton_client: Client) -> None:
    rows = {row["name"]: row for row in triton_client.get_model_repository_index()}
    bad = {name for name in rows if name.startswith("bad-")}
    assert len(bad) == 10
    for name in bad:
        assert rows[name]["state"] == "UNAVAILABLE"
        assert len(rows[name]["reason"]) > 20
        assert "version" not in rows[name]
    assert "not an ONNX file" in rows["bad-text"]["reason"]
    assert "cut off" in rows["bad-half"]["reason"]
    assert "pinned" in rows["bad-residency"]["reason"]  # the nearest known field


# --- inference ----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("datatype", VALUES)
def test_every_data_type_in_both_forms(triton_client: Client, datatype: str, binary_in: bool, binary_out: bool) -> None:
    array = VALUES[datatype]
    answer = triton_client.infer(f"same-{datatype}", [tensor("x", array, binary=binary_in)], outputs=wanted("y", binary=binary_out))
    found = answer.as_numpy("y")
    if datatype == "BYTES" and not binary_out:  # the client leaves what came as JSON as text
        found = np.array([text.encode() for text in found.tolist()], np.object_)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    assert answer.get_output("y")["datatype"] == datatype


def test_bf16(triton_client: Client) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([[1.5, -2.0, 3e38]], ml_dtypes.bfloat16)
    answer = triton_client.infer("same-BF16", [tensor("x", array, datatype="BF16")], outputs=wanted("y"))
    assert answer.get_output("y")["datatype"] == "BF16"
    np.testing.assert_array_equal(answer.as_numpy("y").astype(np.float32), array.astype(np.float32))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (500, 300)])
def test_tensors_of_all_sizes(triton_client: Client, shape: tuple[int, int]) -> None:
    array = np.random.default_rng(0).standard_normal(shape, np.float32)
    answer = triton_client.infer("same-FP32", [tensor("x", array)], outputs=wanted("y"))
    np.testing.assert_array_equal(answer.as_numpy("y"), array)


def test_some_inputs_binary_and_some_not(triton_client: Client) -> None:
    ones = np.ones((1, 4), np.float32)
    outputs = [*wanted("sum", binary=True), *wanted("difference", binary=False)]
    answer = triton_client.infer("batched", [tensor("a", ones * 5, binary=False), tensor("b", ones, binary=True)], outputs=outputs)
    np.testing.assert_array_equal(answer.as_numpy("sum"), ones * 6)
    np.testing.assert_array_equal(answer.as_numpy("difference"), ones * 4)


@pytest.mark.parametrize("names", [("sum",), ("difference",), ("difference", "sum")])
def test_only_the_outputs_that_were_asked_for_come(triton_client: Client, names: tuple[str, ...]) -> None:
    answer = triton_client.infer("batched", pair(3), outputs=wanted(*names))
    assert {output["name"] for output in answer.get_response()["outputs"]} == set(names)
    for name in names:
        np.testing.assert_array_equal(answer.as_numpy(name), np.full((1, 4), 4 if name == "sum" else 2, np.float32))


def test_the_request_id_comes_back_and_none_stays_none(triton_client: Client) -> None:
    assert triton_client.infer("batched", pair(), request_id="Größe/1 \U0001f600").get_response()["id"] == "Größe/1 \U0001f600"
    assert "id" not in triton_client.infer("batched", pair()).get_response()


@pytest.mark.parametrize(
    ("model", "served"), [("newest", {"": 10, "10": 10}), ("all", {"": 10, "1": 1, "2": 2}), ("some", {"": 2, "1": 1})]
)
def test_versions(triton_client: Client, model: str, served: dict[str, int]) -> None:
    for version, factor in served.items():
        answer = triton_client.infer(model, [tensor("x", np.array([2.0], np.float32))], model_version=version)
        assert answer.as_numpy("y").tolist() == [2.0 * factor]
        assert answer.get_response()["model_version"] == (version or str(max(served.values())))


def test_a_version_that_is_not_served(triton_client: Client) -> None:
    with pytest.raises(InferenceServerException, match="version 10 is not found; it serves 1, 2") as failure:
        triton_client.infer("some", [tensor("x", np.ones(1, np.float32))], model_version="10")
    assert failure.value.status() == "404"


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_compressed_requests(triton_client: Client, compression: str) -> None:
    options = {"request_compression_algorithm": compression, "response_compression_algorithm": compression}
    answer = triton_client.infer("batched", pair(2), outputs=wanted("sum"), **options)
    np.testing.assert_array_equal(answer.as_numpy("sum"), np.full((1, 4), 3, np.float32))


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 3},
        {"timeout": 10_000_000},
        {"parameters": {"mine": "yes", "other": 5, "third": True}},
        {"sequence_id": 7, "sequence_start": True, "sequence_end": True},
        {"headers": {"X-Mine": "yes"}, "query_params": {"mine": 1}},
    ],
)
def test_parameters_that_a_model_does_not_know_are_no_fault(triton_client: Client, options: dict[str, Any]) -> None:
    np.testing.assert_array_equal(triton_client.infer("batched", pair(2), **options).as_numpy("sum"), np.full((1, 4), 3, np.float32))


def test_many_rows_at_once(triton_client: Client) -> None:
    (before,) = triton_client.get_inference_statistics("batched")["model_stats"]
    asked = [triton_client.async_infer("batched", pair(number, rows=1 + number % 3)) for number in range(64)]
    for number, request in enumerate(asked):
        np.testing.assert_array_equal(request.get_result().as_numpy("sum"), np.full((1 + number % 3, 4), number + 1, np.float32))
    (after,) = triton_client.get_inference_statistics("batched")["model_stats"]
    assert after["inference_count"] - before["inference_count"] == 64


def test_many_at_once_over_several_models(triton_client: Client) -> None:
    models = ["batched", "fixed", "python-add-sub"]
    asked = []
    for number in range(96):
        model = models[number % 3]
        inputs = pair(number)
        if model == "python-add-sub":
            inputs = [tensor("a", np.full(4, number, np.float32)), tensor("b", np.ones(4, np.float32))]
        asked.append((number, triton_client.async_infer(model, inputs)))
    for number, request in asked:
        answer = request.get_result()
        assert set(answer.as_numpy("sum").ravel().tolist()) == {number + 1.0}
        assert set(answer.as_numpy("difference").ravel().tolist()) == {number - 1.0}


# --- Python models ------------------------------------------------------------------------------------------------------------------
def test_a_python_model(triton_client: Client) -> None:
    a, b = np.array([1, 2, 3, 4], np.float32), np.array([4, 3, 2, 1], np.float32)
    answer = triton_client.infer("python-add-sub", [tensor("a", a), tensor("b", b)])
    np.testing.assert_array_equal(answer.as_numpy("sum"), a + b)
    np.testing.assert_array_equal(answer.as_numpy("difference"), a - b)


def test_a_python_model_that_works_on_text(triton_client: Client) -> None:
    words = np.array(["abc", "größe", "", "模型"], np.object_)
    for binary in (True, False):
        answer = triton_client.infer("python-text", [tensor("words", words, binary=binary)], outputs=wanted("upper", "lengths"))
        assert [word.decode() for word in answer.as_numpy("upper")] == ["ABC", "GRÖSSE", "", "模型"]
        assert answer.as_numpy("lengths").tolist() == [3, 7, 0, 6]
        assert answer.get_response()["parameters"] == {"words": 4, "text": "é", "cut": False}


@pytest.mark.parametrize(("value", "words"), [(-1.0, "negative numbers are not for me"), (0.0, "zero is not for me")])
def test_a_python_model_that_raises_says_so_and_goes_on(triton_client: Client, value: float, words: str) -> None:
    with pytest.raises(InferenceServerException, match=words) as failure:
        triton_client.infer("python-raising", [tensor("x", np.array([value], np.float32))])
    assert failure.value.status() == "500"
    assert triton_client.infer("python-raising", [tensor("x", np.array([2.0], np.float32))]).as_numpy("y").tolist() == [4.0]


# --- coming and going ---------------------------------------------------------------------------------------------------------------
def test_load_unload_and_the_index(triton_client: Client) -> None:
    for model in ("triple", "python-add-sub"):
        triton_client.load_model(model)
        assert state(triton_client, model)["state"] == "READY"
        triton_client.load_model(model)  # twice is no fault
        triton_client.unload_model(model)
        assert state(triton_client, model) == {"name": model, "version": "1", "state": "UNAVAILABLE", "reason": "not resident"}
        triton_client.unload_model(model)
        assert triton_client.is_model_ready(model)
    assert triton_client.infer("triple", [tensor("x", np.ones(1, np.float32))]).as_numpy("y").tolist() == [3.0]  # loads it again
    assert state(triton_client, "triple")["state"] == "READY"


def test_each_version_has_a_row_in_the_index(triton_client: Client) -> None:
    triton_client.load_model("some")
    rows = [row for row in triton_client.get_model_repository_index() if row["name"] == "some"]
    assert [(row["version"], row["state"]) for row in rows] == [("1", "READY"), ("2", "READY")]


def test_a_load_of_what_is_not_there_or_malformed(triton_client: Client) -> None:
    for model, words in (("nobody", "failed to poll from model repository"), ("bad-text", "is not an ONNX file")):
        with pytest.raises(InferenceServerException, match=words) as failure:
            triton_client.load_model(model)
        assert failure.value.status() == "500"
    triton_client.unload_model("nobody")


def test_statistics_count(triton_client: Client) -> None:
    (before,) = triton_client.get_inference_statistics("python-raising")["model_stats"]
    for value in (1.0, 2.0, -1.0):
        try:
            triton_client.infer("python-raising", [tensor("x", np.array([value], np.float32))])
        except InferenceServerException:
            assert value < 0
    (after,) = triton_client.get_inference_statistics("python-raising", "1")["model_stats"]
    assert (after["name"], after["version"]) == ("python-raising", "1")
    assert after["inference_count"] - before["inference_count"] == 2
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 2
    assert after["inference_stats"]["fail"]["count"] - before["inference_stats"]["fail"]["count"] == 1
    assert after["inference_stats"]["success"]["ns"] > before["inference_stats"]["success"]["ns"]
    assert after["last_inference"] > before["last_inference"]


def test_parts_of_the_protocol_that_come_later_say_so(triton_client: Client) -> None:
    ask = [
        triton_client.get_log_settings,
        triton_client.get_trace_settings,
        lambda: triton_client.update_log_settings({}),
        triton_client.get_system_shared_memory_status,
        lambda: triton_client.register_system_shared_memory("region", "/region", 64),
        lambda: triton_client.load_model("triple", config='{"max_batch_size": 8}'),
        lambda: triton_client.load_model("triple", config="{}", files={"file:1/model.onnx": b"bytes"}),
    ]
    for one in ask:
        with pytest.raises(InferenceServerException, match="later version") as failure:
            one()
        assert failure.value.status() == "501"
    with pytest.raises(InferenceServerException, match="classification"):
        triton_client.infer("batched", pair(), outputs=[triton.InferRequestedOutput("sum", class_count=2)])
