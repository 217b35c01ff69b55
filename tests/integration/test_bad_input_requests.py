"""Requests that are wrong: each gets a clear error in the form of its protocol, at once, and nobody else notices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.integration.serving import RunningServer, ask, infer, question

ROW = np.ones((1, 4), np.float32)
ONE: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}
FLAT: dict[str, Any] = {"inputs": [ONE]}
NO_RANGE = "it takes whole numbers from"


@pytest.fixture(autouse=True)
def _all_well(zoo_server: RunningServer) -> Iterator[None]:
    """After each test the server serves as before, nothing is left over, and its log has no internal error."""
    yield
    assert ask(zoo_server, "triple", x=np.array([2.0], np.float32)) == {"y": [6.0]}
    assert ask(zoo_server, "batched", a=ROW, b=ROW)["sum"] == [2.0] * 4
    log = zoo_server.log.read_text()
    assert "internal error" not in log
    assert "Traceback" not in log


def one(**changes: Any) -> dict[str, Any]:
    """A request with one input, changed."""
    return {"inputs": [{**ONE, **changes}]}


def refused(answer: httpx.Response, status: int, code: str, words: str) -> None:
    """An error in the Open Inference Protocol's form."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert set(found) == {"error", "code"}
    assert found["code"] == code
    assert words in found["error"], found["error"]


# --- tensors ------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (one(name="z"), "unexpected inference input 'z' for model 'triple'; it has 'x'"),
        (one(name=""), "unexpected inference input ''"),
        (one(name="x" * 1000), "unexpected inference input"),
        (one(shape=[2]), "has 1 elements in its data, but its shape [2] needs 2"),
        (one(shape=[1, 1]), "Expected [-1], got [1,1]"),
        (one(shape=[]), "Expected [-1], got []"),
        (one(shape=[-1]), "sizes in a request must be 0 or more"),
        (one(shape=[2**33]), "needs 8589934592"),
        (one(shape=[2**62, 2**62]), "elements in its data"),
        (one(shape=[10**30]), "elements in its data"),
        (one(shape=[2**40, 2**40, 0], data=[]), "too large"),
        (one(shape=[1] * 33), "at most 32"),
        (one(datatype="INT32", data=[1]), "data-type is INT32, but model 'triple' expects FP32"),
        (one(datatype="FP31"), "unknown datatype 'FP31'; known are BOOL"),
        (one(datatype="fp32"), "unknown datatype 'fp32'"),
        (one(data=[1e39]), "is not FP32"),
        (one(data=["1.0"]), "is not FP32"),
        (one(data=[True]), "is not FP32"),
        (one(data=[None]), "is not FP32"),
        (one(data=[{}]), "is not FP32"),
        (one(data=1.0), "is not a list"),
        (one(data={}), "is not a list"),
        (one(data=[[1.0], [2.0, 3.0]], shape=[3]), "uneven lengths"),
        (one(data=[[[1.0]], [2.0]], shape=[2]), "is not FP32"),
        (one(data=json.loads("[" * 40 + "]" * 40)), "nested deeper than 32"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}, "has no data"),
        ({"inputs": [ONE, ONE]}, "is there twice"),
        ({"inputs": []}, "expected 1 inputs but got 0 inputs for model 'triple'; missing are 'x'"),
        ({"inputs": [ONE, {**ONE, "name": "z"}]}, "unexpected inference input 'z'"),
        ({**FLAT, "outputs": [{"name": "z"}]}, "unexpected inference output 'z' for model 'triple'; it has 'y'"),
        ({**FLAT, "outputs": [{"name": "y"}, {"name": "y"}]}, "is there twice"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_the_model(zoo_server: RunningServer, body: dict[str, Any], words: str) -> None:
    refused(infer(zoo_server, "triple", body), 400, "invalid_tensor", words)


@pytest.mark.parametrize(
    ("datatype", "value", "words"),
    [
        ("INT8", 128, NO_RANGE), ("INT8", -129, NO_RANGE), ("UINT8", 256, NO_RANGE), ("UINT8", -1, NO_RANGE), ("INT16", 1 << 15, NO_RANGE),
        ("INT32", 1 << 31, NO_RANGE), ("INT64", 1 << 63, NO_RANGE), ("INT64", 10**40, NO_RANGE), ("UINT64", 1 << 64, NO_RANGE),
        ("UINT64", -1, NO_RANGE), ("INT32", 1.5, NO_RANGE), ("INT32", "1", NO_RANGE), ("FP16", 65520.0, "is not FP16"),
        ("BF16", 3.4e38, "is not BF16"), ("FP64", 10**400, "is not FP64"), ("BOOL", 2, "is not BOOL"), ("BOOL", "true", "is not BOOL"),
        ("BOOL", 1.0, "is not BOOL"), ("FP32", "inf", "is not FP32"),
    ],
)  # fmt: skip
def test_numbers_out_of_range(zoo_server: RunningServer, datatype: str, value: Any, words: str) -> None:
    body = one(datatype=datatype, shape=[1, 1], data=[value])
    refused(infer(zoo_server, f"same-{datatype}", body), 400, "invalid_tensor", words)


def test_text_that_is_none(zoo_server: RunningServer) -> None:
    refused(infer(zoo_server, "same-BYTES", one(datatype="BYTES", data=[5])), 400, "invalid_tensor", "is not BYTES")


@pytest.mark.parametrize(
    ("model", "a_shape", "b_shape", "words"),
    [
        ("batched", [4], [4], "[-1,4]"),
        ("batched", [1, 5], [1, 5], "[-1,4]"),
        ("batched", [0, 4], [0, 4], "0"),
        ("batched", [65, 4], [65, 4], "64"),
        ("fixed", [5, 4], [5, 4], "4"),
        ("batched", [1, 4], [2, 4], "batch size does not match"),
        ("python-add-sub", [5], [5], "expected [4], got [5"),
        ("python-add-sub", [1, 4], [1, 4], "expected [4], got [1"),
    ],
)
def test_batches_and_shapes_that_a_model_does_not_take(
    zoo_server: RunningServer, model: str, a_shape: list[int], b_shape: list[int], words: str
) -> None:
    body = question(a=np.ones(a_shape, np.float32), b=np.ones(b_shape, np.float32))
    refused(infer(zoo_server, model, body), 400, "invalid_tensor", words)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"a": np.ones(4, np.float32)}, "'b'"),
        ({"a": np.ones(4, np.float32), "c": np.ones(4, np.float32)}, "unexpected input 'c'"),
        ({"a": np.ones(4, np.float32), "b": np.ones(4, np.int32)}, "expects FP32"),
        ({}, "'a'"),
    ],
)
def test_a_python_model_is_not_asked_with_wrong_tensors(zoo_server: RunningServer, inputs: dict[str, Any], words: str) -> None:
    refused(infer(zoo_server, "python-add-sub", question(**inputs)), 400, "invalid_tensor", words)


# --- bodies -------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b"\0\0\0\0", "not JSON"),
        (b'{"inputs": [', "not JSON"),
        (json.dumps(FLAT).encode() + b" trailing", "not JSON"),
        (json.dumps(FLAT).encode("utf-16"), "not JSON"),
        (json.dumps(FLAT).encode().replace(b'"x"', b'"\xff"'), "not JSON"),
        (json.dumps(FLAT).replace('"', "'").encode(), "not JSON"),
        (b"[]", "Expected 'object'"),
        (b"null", "Expected 'object'"),
        (b"5", "Expected 'object'"),
        (b"[" * 100_000, "not an inference request"),
        (b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not an inference request"),
        (b"{}", "missing required field 'inputs'"),
        (b'{"inputs": {}}', "Expected 'array'"),
        (b'{"inputs": null}', "Expected 'array'"),
        (b'{"inputs": [5]}', "Expected 'object'"),
        (json.dumps({"inputs": [{"datatype": "FP32", "shape": [1], "data": [1]}]}).encode(), "missing required field 'name'"),
        (json.dumps({"inputs": [{"name": "x", "shape": [1], "data": [1]}]}).encode(), "missing required field 'datatype'"),
        (json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "data": [1]}]}).encode(), "missing required field 'shape'"),
        (json.dumps(one(name=5)).encode(), "Expected 'str'"),
        (json.dumps(one(shape="1")).encode(), "Expected 'array'"),
        (json.dumps(one(shape=[1.5])).encode(), "Expected 'int'"),
        (json.dumps(one(parameters=[])).encode(), "Expected 'object"),
        (json.dumps({**FLAT, "id": {}}).encode(), "$.id"),
        (json.dumps({**FLAT, "outputs": {}}).encode(), "$.outputs"),
        (json.dumps({**FLAT, "outputs": [{}]}).encode(), "missing required field 'name'"),
        (json.dumps({**FLAT, "parameters": []}).encode(), "$.parameters"),
    ],
)  # fmt: skip
def test_bodies_that_are_no_request(zoo_server: RunningServer, body: bytes, words: str) -> None:
    refused(infer(zoo_server, "triple", body), 400, "bad_request", words)


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("timeout", "-1", "give microseconds"),
        ("timeout", '"5s"', "give microseconds"),
        ("timeout", "true", "give microseconds"),
        ("timeout", "[]", "give microseconds"),
        ("timeout", "NaN", "give microseconds"),
        ("keep_alive", '"soon"', "is not a duration"),
        ("keep_alive", "true", "keep_alive"),
        ("keep_alive", "{}", "keep_alive"),
    ],
)
def test_parameters_that_make_no_sense_are_refused_resident_or_not(
    zoo_server: RunningServer, resident: bool, name: str, value: str, words: str
) -> None:
    ask(zoo_server, "newest", x=np.array([1.0], np.float32))
    if not resident:
        zoo_server.client.post("/v2/repository/models/newest/unload")
    body = json.dumps(FLAT).encode()[:-1] + f', "parameters": {{"{name}": {value}}}}}'.encode()
    refused(infer(zoo_server, "newest", body), 400, "bad_request", words)


@pytest.mark.parametrize(
    "parameters", ['{"timeout": 0}', '{"timeout": 1%s}' % ("0" * 400), '{"keep_alive": 1%s}' % ("0" * 400), '{"mine": [1]}', "{}"]
)
@pytest.mark.parametrize("resident", [True, False])
def test_parameters_that_are_odd_but_no_fault(zoo_server: RunningServer, resident: bool, parameters: str) -> None:
    ask(zoo_server, "newest", x=np.array([1.0], np.float32))
    if not resident:
        zoo_server.client.post("/v2/repository/models/newest/unload")
    answer = infer(zoo_server, "newest", json.dumps(FLAT).encode()[:-1] + f', "unknown": 1, "parameters": {parameters}}}'.encode())
    assert answer.status_code == 200, answer.text


# --- binary tensors -------------------------------------------------------------------------------------------------------------------
def binary(server: RunningServer, model: str, size: Any, tail: bytes, *, header: str | None = None, **tensor: Any) -> httpx.Response:
    """A request whose one input has so many bytes after the JSON, or says so."""
    about = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": size}, **tensor}
    head = json.dumps({"inputs": [about]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)) if header is None else header}
    return infer(server, model, head + tail, headers={name: value for name, value in headers.items() if value})


@pytest.mark.parametrize(
    ("size", "tail", "header", "code", "words"),
    [
        (8, b"1234567", None, "invalid_tensor", "only 7 bytes are left"),
        (8, b"", None, "invalid_tensor", "only 0 bytes are left"),
        (8, b"123456789", None, "bad_request", "1 bytes are left over"),
        (4, b"1234", None, "invalid_tensor", "FP32 of shape [2] needs 8 bytes"),
        (-8, b"12345678", None, "bad_request", "binary_data_size"),
        ("8", b"12345678", None, "bad_request", "binary_data_size"),
        (8.5, b"12345678", None, "bad_request", "binary_data_size"),
        (2**64, b"12345678", None, "invalid_tensor", "only 8 bytes are left"),
        (8, b"12345678", "10", "bad_request", "not JSON"),
        (8, b"12345678", "100000", "bad_request", "Inference-Header-Content-Length"),
        (8, b"12345678", "-1", "bad_request", "Inference-Header-Content-Length"),
        (8, b"12345678", "ten", "bad_request", "Inference-Header-Content-Length"),
        (8, b"12345678", "9" * 30, "bad_request", "Inference-Header-Content-Length"),
        (8, b"12345678", "", "bad_request", "not JSON"),
    ],
)
def test_binary_bodies_that_do_not_add_up(
    zoo_server: RunningServer, size: Any, tail: bytes, header: str | None, code: str, words: str
) -> None:
    refused(binary(zoo_server, "triple", size, tail, header=header), 400, code, words)


def test_binary_without_its_header(zoo_server: RunningServer) -> None:
    refused(binary(zoo_server, "triple", 8, b"", header=""), 400, "bad_request", "Inference-Header-Content-Length is missing")


def test_binary_and_json_of_one_tensor(zoo_server: RunningServer) -> None:
    refused(binary(zoo_server, "triple", 8, b"12345678", data=[1.0, 2.0]), 400, "invalid_tensor", "both")


@pytest.mark.parametrize(
    ("shape", "tail", "words"),
    [
        ([2], b"\2\0\0\0ab\3\0\0\0ab", "ends in the middle"),
        ([2], b"\2\0\0\0ab\xff\xff\xff\xffab", "ends in the middle"),
        ([2], b"\2\0\0\0ab\3\0", "ends in the middle"),
        ([1], b"\2\0\0\0ab\3\0\0\0abc", "7 bytes after its 1"),
        ([2**40], b"\2\0\0\0ab", "too few"),
        ([1], b"\2\0\0\0\xff\xfe", "not UTF-8"),
    ],
)
def test_text_whose_lengths_do_not_add_up(zoo_server: RunningServer, shape: list[int], tail: bytes, words: str) -> None:
    answer = binary(zoo_server, "same-BYTES", len(tail), tail, datatype="BYTES", shape=shape)
    refused(answer, 400, "invalid_tensor", words)


def test_truth_values_other_than_0_and_1(zoo_server: RunningServer) -> None:
    answer = binary(zoo_server, "same-BOOL", 2, b"\1\2", datatype="BOOL", shape=[1, 2])
    refused(answer, 400, "invalid_tensor", "bytes other than 0 and 1")


def test_an_unknown_coding_of_the_body(zoo_server: RunningServer) -> None:
    refused(infer(zoo_server, "triple", b"...", headers={"content-encoding": "br"}), 415, "unknown_encoding", "gzip")
    refused(infer(zoo_server, "triple", b"not gzip", headers={"content-encoding": "gzip"}), 400, "bad_request", "gzip")


# --- the other calls ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("body", [b"{", b"[]", b"hello", b'{"ready": "yes"}', b'{"ready": 1}'])
def test_questions_for_the_index_that_are_none(zoo_server: RunningServer, body: bytes) -> None:
    answer = zoo_server.client.post("/v2/repository/index", content=body)
    assert answer.status_code == 400
    assert answer.json()["code"] == "bad_request"


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b'{"parameters": []}', 400), (b'{"parameters": {"colour": 1}}', 400)])
def test_parameters_of_a_load_that_are_unknown(zoo_server: RunningServer, body: bytes, status: int) -> None:
    for action in ("load", "unload"):
        answer = zoo_server.client.post(f"/v2/repository/models/triple/{action}", content=body)
        assert (answer.status_code, answer.json()["code"]) == (status, "bad_request")
    answer = zoo_server.client.post("/v2/repository/models/triple/unload", json={"parameters": {"unload_dependents": "yes"}})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v2/nothing", 404, "path_not_found"),
        ("GET", "/v2/models", 404, "path_not_found"),
        ("DELETE", "/v2/health/live", 405, "method_not_allowed"),
        ("PUT", "/v2/models/triple", 405, "method_not_allowed"),
        ("GET", "/v2/models/triple/infer", 405, "method_not_allowed"),
        ("POST", "/v2/models/triple/config", 405, "method_not_allowed"),
        ("POST", "/v2/models/triple/generate", 501, "unsupported"),
        ("GET", "/v2/repository/index", 405, "method_not_allowed"),
    ],
)
def test_paths_and_methods_that_are_not_there(zoo_server: RunningServer, method: str, path: str, status: int, code: str) -> None:
    answer = zoo_server.client.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert set(answer.json()) == {"error", "code"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/nothing", b"", 404, "path_not_found"),
        ("PUT", "/models", b"{}", 405, "method_not_allowed"),
        ("POST", "/models", b"", 400, "bad_request"),
        ("POST", "/models", b"{", 400, "bad_request"),
        ("POST", "/models", b"[]", 400, "bad_request"),
        ("POST", "/models", b'{"model_name": 5}', 400, "bad_request"),
        ("POST", "/models", b'{"model_name": ""}', 400, "bad_request"),
        ("POST", "/models", b'{"model_name": "triple", "model_device": 0}', 400, "bad_request"),
        ("POST", "/models", b'{"model_name": "triple", "model_properties": []}', 400, "bad_request"),
        ("POST", "/models", b'{"model_name": "triple", "device": "cpu"}', 400, "bad_request"),
        ("POST", "/models", b'{"model_name": "nobody"}', 404, "model_not_found"),
        ("POST", "/models", b'{"model_name": "bad-text"}', 400, "bad_request"),
        ("DELETE", "/models", b"", 400, "bad_request"),
        ("DELETE", "/models?model_name=", b"", 400, "bad_request"),
        ("DELETE", "/models?model_name=triple&forget=perhaps", b"", 400, "bad_request"),
        ("DELETE", "/models?model_name=nobody&forget=true", b"", 404, "model_not_found"),
        ("GET", "/models?detailed=perhaps", b"", 400, "bad_request"),
        ("GET", "/models/view", b"", 400, "bad_request"),
        ("POST", "/models/pin?model_name=nobody", b"", 404, "model_not_found"),
        ("POST", "/models/pin?model_name=bad-half", b"", 400, "bad_request"),
        ("GET", "/decisions?limit=0", b"", 400, "bad_request"),
        ("GET", "/decisions?limit=many", b"", 400, "bad_request"),
        ("GET", "/device/cuda", b"", 400, "hardware_compatability_error"),
        ("POST", "/indexes/mine/search", b"{}", 400, "invalid_argument"),
    ],
)
def test_the_model_api_answers_in_marqos_form(
    zoo_server: RunningServer, method: str, path: str, body: bytes, status: int, code: str
) -> None:
    answer = zoo_server.client.request(method, path, content=body)
    found = answer.json()
    if path == "/device/cuda" and answer.status_code == 200:
        return  # this machine has a card
    assert (answer.status_code, found["code"]) == (status, code), answer.text
    assert {"message", "code", "type", "link"} <= set(found)
    assert found["message"]


def test_a_crowd_of_wrong_requests_loads_nothing_and_remembers_no_names(zoo_server: RunningServer) -> None:
    before = zoo_server.client.get("/models").json()["models"]
    for number in range(300):
        assert infer(zoo_server, f"made-up-{number}", FLAT).status_code == 404
    assert "made-up" not in zoo_server.client.get("/metrics").text
    assert [one["model_name"] for one in zoo_server.client.get("/models").json()["models"]] == [one["model_name"] for one in before]
