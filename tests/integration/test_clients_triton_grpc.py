"""`tritonclient.grpc`, unmodified, blocking and with asyncio: what it can ask of a server, over models of every sort."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.integration import zoo
from tests.integration.running import until
from tests.integration.serving import RunningServer, serving
from tests.integration.test_clients_triton import VALUES

LIMIT_S = 40.0
Client = triton.InferenceServerClient


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The zoo, and a model that takes a while to load."""
    folder = tmp_path_factory.mktemp("grpc")
    zoo.build(folder / "models")
    zoo.python_slow(folder / "models" / "slow", load_s=1.5)
    with serving(folder, "--grpc-port", "0", "--device", "cpu=2GiB", "--set", "body_limit=8MiB") as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    found = triton.InferenceServerClient(server.about["grpc"])
    yield found
    found.close()


@pytest.fixture
def stub(server: RunningServer) -> Iterator[Any]:
    """The protocol without a client's help."""
    with grpc.insecure_channel(server.about["grpc"]) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def tensor(name: str, array: NDArray[Any], module: Any = triton, datatype: str | None = None) -> Any:
    found = module.InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
    found.set_data_from_numpy(array)
    return found


def pair(value: float = 1.0, rows: int = 1) -> list[Any]:
    ones = np.ones((rows, 4), np.float32)
    return [tensor("a", ones * np.float32(value)), tensor("b", ones)]


def code_of(error: pytest.ExceptionInfo[InferenceServerException]) -> str:
    return str(error.value.status()).removeprefix("StatusCode.")


# --- about the server and its models ------------------------------------------------------------------------------------------------
def test_the_server(client: Client) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    about = client.get_server_metadata()
    assert about.name == "modelpool"
    assert {"model_repository", "statistics"} <= set(about.extensions)


def test_looking_at_models_loads_none(client: Client, server: RunningServer) -> None:
    name = "fixed"
    assert client.is_model_ready(name)
    metadata = client.get_model_metadata(name)
    assert [(one.name, one.datatype, list(one.shape)) for one in metadata.inputs] == [("a", "FP32", [-1, 4]), ("b", "FP32", [-1, 4])]
    assert (metadata.platform, list(metadata.versions)) == ("onnxruntime_onnx", ["1"])
    config = client.get_model_config(name).config
    assert (config.name, config.max_batch_size, config.input[0].data_type) == (name, 4, 11)
    assert client.get_inference_statistics(name).model_stats[0].inference_count == 0
    states = {row.name: row.state for row in client.get_model_repository_index().models}
    assert states[name] == "UNAVAILABLE"
    assert not client.is_model_ready("nobody")
    assert not client.is_model_ready(name, "7")


def test_statistics_count(client: Client) -> None:
    for _ in range(3):
        client.infer("batched", pair())
    (row,) = client.get_inference_statistics("batched").model_stats
    assert row.inference_count >= 3
    assert row.inference_stats.success.count == row.inference_count


# --- inference ----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("datatype", VALUES)
def test_every_data_type(client: Client, datatype: str) -> None:
    array = VALUES[datatype]
    answer = client.infer(f"same-{datatype}", [tensor("x", array)])
    found = answer.as_numpy("y")
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)


TYPED = {
    "BOOL": ("bool_contents", [True, False]),
    "INT8": ("int_contents", [-128, 127]),
    "INT16": ("int_contents", [-1, 2**15 - 1]),
    "INT32": ("int_contents", [-(2**31), 7]),
    "INT64": ("int64_contents", [-(2**63), 7]),
    "UINT8": ("uint_contents", [0, 255]),
    "UINT16": ("uint_contents", [0, 2**16 - 1]),
    "UINT32": ("uint_contents", [0, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 2**64 - 1]),
    "FP32": ("fp32_contents", [0.5, -2.0]),
    "FP64": ("fp64_contents", [0.1, -2.0]),
    "BYTES": ("bytes_contents", [b"", b"\xc3\xa9t\xc3\xa9"]),
}


def typed(datatype: str, field: str, values: list[Any], shape: list[int] | None = None) -> Any:
    request = pb.ModelInferRequest(model_name=f"same-{datatype}")
    one = request.inputs.add(name="x", datatype=datatype, shape=shape or ([1, len(values)] if datatype != "BYTES" else [len(values)]))
    getattr(one.contents, field).extend(values)
    return request


@pytest.mark.parametrize("datatype", TYPED)
def test_elements_may_come_in_the_fields_of_their_type(client: Client, stub: Any, datatype: str) -> None:
    field, values = TYPED[datatype]
    answer = triton.InferResult(stub.ModelInfer(typed(datatype, field, values)))
    assert answer.as_numpy("y").ravel().tolist() == values


def test_ids_parameters_versions_and_wanted_outputs(client: Client) -> None:
    answer = client.infer("batched", pair(3.0), request_id="seven", outputs=[triton.InferRequestedOutput("sum")], parameters={"mine": 1})
    assert answer.get_response().id == "seven"
    assert [one.name for one in answer.get_response().outputs] == ["sum"]
    words = np.array([b"a", b"bc"], np.object_)
    told = client.infer("python-text", [tensor("words", words)]).get_response().parameters
    assert (told["words"].int64_param, told["text"].string_param, told["cut"].bool_param) == (2, "é", False)
    x = [tensor("x", np.array([1.5], np.float32))]
    assert client.infer("newest", x).as_numpy("y").tolist() == [15.0]
    assert client.infer("newest", x, model_version="10").as_numpy("y").tolist() == [15.0]


def test_one_load_serves_all_who_wait(server: RunningServer, client: Client) -> None:
    client.unload_model("slow")
    found: list[float] = []

    def ask(value: float) -> None:
        with triton.InferenceServerClient(server.about["grpc"]) as own:
            found.append(float(own.infer("slow", [tensor("x", np.array([value], np.float32))]).as_numpy("y")[0]))

    threads = [threading.Thread(target=ask, args=(float(number),)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(LIMIT_S)
    assert sorted(found) == [float(number) for number in range(8)]


def test_load_unload_and_the_index(client: Client) -> None:
    client.load_model("batched")
    assert {row.name: row.state for row in client.get_model_repository_index(None).models}["batched"] == "READY"
    client.unload_model("batched")
    row = next(row for row in client.get_model_repository_index().models if row.name == "batched")
    assert (row.state, row.reason) == ("UNAVAILABLE", "not resident")
    np.testing.assert_array_equal(client.infer("batched", pair(2.0)).as_numpy("sum"), np.full((1, 4), 3.0))


# --- what is wrong ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("model", "version", "inputs", "code", "says"),
    [
        ("nobody", "", pair(), "NOT_FOUND", "Request for unknown model"),
        ("newest", "3", [tensor("x", np.ones(1, np.float32))], "NOT_FOUND", "version 3"),
        ("newest", "one", [tensor("x", np.ones(1, np.float32))], "INVALID_ARGUMENT", "is not a number"),
        ("newest", "9" * 30, [tensor("x", np.ones(1, np.float32))], "INVALID_ARGUMENT", "too large"),
        ("batched", "", pair()[:1], "INVALID_ARGUMENT", "missing"),
        ("batched", "", [*pair(), tensor("c", np.ones((1, 4), np.float32))], "INVALID_ARGUMENT", "unexpected inference input 'c'"),
        ("batched", "", [tensor("a", np.ones((1, 5), np.float32)), pair()[1]], "INVALID_ARGUMENT", "unexpected shape"),
        ("batched", "", [tensor("a", np.ones((1, 4), np.int32)), pair()[1]], "INVALID_ARGUMENT", "data-type"),
        ("python-raising", "", [tensor("x", -np.ones(1, np.float32))], "INTERNAL", "negative numbers are not for me"),
        ("broken", "", pair(), "NOT_FOUND", ""),
    ],
)
def test_faults_have_codes_and_words(client: Client, model: str, version: str, inputs: list[Any], code: str, says: str) -> None:
    with pytest.raises(InferenceServerException) as error:
        client.infer(model, inputs, model_version=version)
    assert (code_of(error), says in error.value.message()) == (code, True), error.value.message()
    np.testing.assert_array_equal(client.infer("batched", pair(2.0)).as_numpy("sum"), np.full((1, 4), 3.0))


@pytest.mark.parametrize(
    ("request_", "code", "says"),
    [
        (typed("FP32", "fp32_contents", [1.0], [2**33]), "INVALID_ARGUMENT", "sizes go from 0"),
        (typed("FP32", "fp32_contents", [1.0], [-1, 1]), "INVALID_ARGUMENT", "sizes go from 0"),
        (typed("FP32", "fp32_contents", [1.0], [2**30, 2**30]), "INVALID_ARGUMENT", "x"),
        (typed("FP32", "fp64_contents", [1.0]), "INVALID_ARGUMENT", "belong in fp32_contents"),
        (typed("INT8", "int_contents", [300]), "INVALID_ARGUMENT", "does not fit INT8"),
        (typed("FP16", "fp32_contents", [1.0]), "INVALID_ARGUMENT", "raw_input_contents"),
        (typed("FP32", "fp32_contents", [1.0, 2.0], [1, 3]), "INVALID_ARGUMENT", "x"),
    ],
)
def test_messages_that_contradict_themselves(stub: Any, request_: Any, code: str, says: str) -> None:
    with pytest.raises(grpc.RpcError) as error:
        stub.ModelInfer(request_)
    assert (error.value.code().name, says in error.value.details()) == (code, True), error.value.details()  # type: ignore[attr-defined]


def test_raw_and_typed_elements_do_not_mix(stub: Any) -> None:
    request = typed("FP32", "fp32_contents", [1.0])
    request.raw_input_contents.append(b"\0\0\0\0")
    with pytest.raises(grpc.RpcError, match="send one of them"):
        stub.ModelInfer(request)
    request.raw_input_contents.append(b"\0\0\0\0")
    with pytest.raises(grpc.RpcError, match="send one for each input"):
        stub.ModelInfer(request)


def test_a_message_that_is_too_large(client: Client) -> None:
    with pytest.raises(InferenceServerException) as error:
        client.infer("same-FP32", [tensor("x", np.ones((1, 9 << 18), np.float32))])
    assert code_of(error) == "RESOURCE_EXHAUSTED"


def test_what_tells_programs_more_stands_beside_the_message(stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as error:
        stub.ModelInfer(pb.ModelInferRequest(model_name="nobody"))
    assert dict(error.value.trailing_metadata())["modelpool-code"] == "model_not_found"  # type: ignore[attr-defined]


def test_loads_that_fail(client: Client) -> None:
    with pytest.raises(InferenceServerException) as error:
        client.load_model("nobody")
    assert (code_of(error), "failed to poll from model repository" in error.value.message()) == ("INTERNAL", True)
    client.unload_model("nobody")


def test_what_is_not_there_says_so(client: Client) -> None:
    for refused in (
        lambda: client.register_system_shared_memory("r", "/r", 64),
        lambda: client.register_cuda_shared_memory("r", b"cg==", 0, 64),
        lambda: client.get_trace_settings(),
        lambda: client.get_log_settings(),
    ):
        with pytest.raises(InferenceServerException, match="not supported") as error:
            refused()
        assert code_of(error) == "UNIMPLEMENTED"
    assert not client.get_system_shared_memory_status().regions
    shared = triton.InferInput("x", [1, 1], "FP32")
    shared.set_shared_memory("r", 4)
    with pytest.raises(InferenceServerException, match="shared memory"):
        client.infer("same-FP32", [shared])


def test_a_request_that_is_given_up_is_taken_back(server: RunningServer, client: Client) -> None:
    client.unload_model("slow")
    with pytest.raises(InferenceServerException) as error:
        client.infer("slow", [tensor("x", np.ones(1, np.float32))], client_timeout=0.3)
    assert code_of(error) == "DEADLINE_EXCEEDED"
    until(lambda: server.view("slow")["queue"] == 0, "an empty queue")
    np.testing.assert_array_equal(client.infer("slow", [tensor("x", np.ones(1, np.float32))]).as_numpy("y"), [1.0])


# --- streams ------------------------------------------------------------------------------------------------------------------------
def test_a_stream_of_several_models_answers_in_order_and_survives_errors(client: Client) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(40):
        model = ("batched", "python-raising", "nobody")[number % 3]
        inputs = [tensor("x", np.array([number], np.float32))] if model == "python-raising" else pair(float(number))
        client.async_stream_infer(model, inputs, request_id=str(number), enable_empty_final_response=number % 2 == 0)
    for number in range(40):
        result, error = answers.get(timeout=LIMIT_S)
        if number % 3 == 2:
            assert "unknown model" in str(error)
            continue
        assert error is None, error
        assert result.get_response().id == str(number)
        expected = number + 1 if number % 3 == 0 else 2 * number
        assert result.as_numpy("sum" if number % 3 == 0 else "y").ravel()[0] == expected
        assert ("triton_final_response" in result.get_response().parameters) == (number % 2 == 0)
    client.stop_stream()


def test_a_stream_that_is_cancelled_takes_its_requests_back(server: RunningServer, client: Client) -> None:
    client.unload_model("slow")
    client.start_stream(lambda result, error: None)
    for _ in range(5):
        client.async_stream_infer("slow", [tensor("x", np.ones(1, np.float32))])
    until(lambda: server.view("slow")["queue"] > 0, "requests that wait")
    client.stop_stream(cancel_requests=True)
    until(lambda: server.view("slow")["queue"] == 0, "an empty queue")
    np.testing.assert_array_equal(client.infer("batched", pair(2.0)).as_numpy("sum"), np.full((1, 4), 3.0))


# --- asyncio ------------------------------------------------------------------------------------------------------------------------
async def test_the_client_for_asyncio(server: RunningServer) -> None:
    async with triton_aio.InferenceServerClient(server.about["grpc"]) as client:
        assert await client.is_server_live()
        answers = await asyncio.gather(*(client.infer("batched", pair(float(number))) for number in range(50)))
        assert [one.as_numpy("sum")[0, 0] for one in answers] == [number + 1 for number in range(50)]

        async def questions() -> Any:
            for number in range(20):
                yield {"model_name": "batched", "inputs": pair(float(number)), "request_id": str(number)}

        found = [(result, error) async for result, error in client.stream_infer(questions())]
        assert [(result.get_response().id, error) for result, error in found] == [(str(number), None) for number in range(20)]


# --- the server's beginning and end --------------------------------------------------------------------------------------------------
def test_a_stop_finishes_what_was_accepted(tmp_path: Path) -> None:
    zoo.python_slow(tmp_path / "models" / "slow", load_s=1.0)
    with (
        serving(tmp_path, "--grpc-port", "0", "--device", "cpu=1GiB") as server,
        triton.InferenceServerClient(server.about["grpc"]) as client,
    ):
        found: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.async_infer("slow", [tensor("x", np.ones(1, np.float32))], lambda result, error: found.put((result, error)))
        until(lambda: server.view("slow")["queue"] > 0, "a request that waits")
        assert server.stop() == 0
        result, error = found.get(timeout=LIMIT_S)
    # It waited for a load, which a server that stops does not begin; one that is under way goes on.
    assert error is None or "UNAVAILABLE" in str(error), error
    if error is None:
        np.testing.assert_array_equal(result.as_numpy("y"), [1.0])
