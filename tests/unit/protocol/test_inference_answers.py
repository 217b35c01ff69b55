from __future__ import annotations

import json

import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given, settings
from hypothesis import strategies as st

from modelpool.errors import InvalidRequest, InvalidTensor
from modelpool.protocol.datatypes import DATATYPES
from modelpool.protocol.inference import Wanted, decode_response, encode_response
from modelpool.protocol.tensors import Tensor, object_array
from tests.unit.protocol.strategies import as_numbers, same, tensors

Y = Tensor("FP32", np.array([[1, 0.5]], np.float32))


def test_json_as_triton_writes_it() -> None:
    encoded = encode_response("m", 3, "", {"y": Y})
    assert encoded.json_bytes == -1
    assert json.loads(encoded.joined()) == {
        "model_name": "m",
        "model_version": "3",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 0.5]}],
    }


def test_the_requests_id_comes_back() -> None:
    assert json.loads(encode_response("m", 1, "7", {"y": Y}).joined())["id"] == "7"


@pytest.mark.parametrize("wanted", [Wanted(), Wanted(True)])
def test_a_models_own_parameters_stand_beside_its_outputs(wanted: Wanted) -> None:
    parameters = {"finish": "stop", "tokens": 7, "cut": False, "null": "null"}
    encoded = encode_response("m", 1, "", {"y": Y}, wanted, parameters)
    found = json.loads(encoded.joined()[: encoded.json_bytes if encoded.json_bytes >= 0 else None])
    assert found["parameters"] == parameters
    assert "parameters" not in json.loads(encode_response("m", 1, "", {"y": Y}, parameters={}).joined())


def test_binary_and_json_together() -> None:
    outputs = {"a": Y, "b": Tensor("INT8", np.array([1, -1], np.int8)), "c": Tensor("BYTES", object_array([b"x", b""]))}
    encoded = encode_response("m", 1, "", outputs, Wanted(True, {"b": False}))
    body = encoded.joined()
    assert encoded.size_bytes == len(body)
    assert body[encoded.json_bytes :] == Y.array.tobytes() + b"\1\0\0\0x\0\0\0\0"
    heads = json.loads(body[: encoded.json_bytes])["outputs"]
    assert heads[0] == {"name": "a", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    assert heads[1] == {"name": "b", "datatype": "INT8", "shape": [2], "data": [1, -1]}
    assert heads[2]["parameters"] == {"binary_data_size": 9}


def test_a_binary_output_without_elements() -> None:
    encoded = encode_response("m", 1, "", {"y": Tensor("FP32", np.zeros((0, 4), np.float32))}, Wanted(True))
    assert encoded.json_bytes == encoded.size_bytes
    assert decode_response(encoded.joined(), encoded.json_bytes).outputs["y"].array.shape == (0, 4)


def test_large_binary_outputs_are_not_copied() -> None:
    array = np.zeros(100_000, np.float32)
    encoded = encode_response("m", 1, "", {"y": Tensor("FP32", array)}, Wanted(True))
    assert np.shares_memory(np.frombuffer(encoded.parts[1], np.float32), array)


@pytest.mark.parametrize("datatype", ["BOOL", "FP16", "INT64"])
def test_large_binary_outputs_of_any_layout(datatype: str) -> None:
    array = (np.arange(200_000).reshape(400, 500).T % 2).astype(DATATYPES[datatype].dtype, order="K")
    assert not array.flags.c_contiguous
    encoded = encode_response("m", 1, "", {"y": Tensor(datatype, array)}, Wanted(True))
    same(decode_response(encoded.joined(), encoded.json_bytes).outputs["y"], Tensor(datatype, array))


def test_numbers_that_are_not_finite_are_written_as_tritons_client_reads_them() -> None:
    array = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    text = Tensor("BYTES", object_array([b"null"]))
    encoded = encode_response("m", 1, "", {"n": Tensor("FP32", array), "t": text})
    assert b"[NaN,Infinity,-Infinity,1.0]" in encoded.joined()
    result = triton.InferResult.from_response_body(encoded.joined())
    np.testing.assert_array_equal(result.as_numpy("n"), array)
    assert json.loads(encoded.joined())["outputs"][1]["data"] == ["null"]


def test_bytes_that_are_no_text_need_the_binary_form() -> None:
    outputs = {"y": Tensor("BYTES", object_array([b"\xff"]))}
    with pytest.raises(InvalidRequest, match=r"output 'y' holds bytes that are not UTF-8 text.* binary_data: true"):
        encode_response("m", 1, "", outputs)
    encoded = encode_response("m", 1, "", outputs, Wanted(False, {"y": True}))
    same(decode_response(encoded.joined(), encoded.json_bytes).outputs["y"], outputs["y"])


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("datatype", sorted(set(DATATYPES) - {"BF16"}))
def test_tritons_client_reads_all_types(datatype: str, binary: bool) -> None:
    array = np.array([[b"a", "é".encode()]], object) if datatype == "BYTES" else np.array([[0, 1]]).astype(DATATYPES[datatype].dtype)
    encoded = encode_response("m", 1, "i", {"y": Tensor(datatype, array)}, Wanted(binary))
    header = None if encoded.json_bytes < 0 else encoded.json_bytes
    result = triton.InferResult.from_response_body(encoded.joined(), header_length=header)
    found = result.as_numpy("y")
    if datatype == "BYTES":
        found = np.array([item if isinstance(item, bytes) else item.encode() for item in found.ravel()], object).reshape(found.shape)
    np.testing.assert_array_equal(found, array)


@given(st.dictionaries(st.text(max_size=5), tensors(), max_size=4), st.text(max_size=5))
@settings(deadline=None)
def test_binary_answers_come_back_the_same(outputs: dict[str, Tensor], ident: str) -> None:
    encoded = encode_response("m", 12, ident, outputs, Wanted(True))
    answer = decode_response(encoded.joined(), encoded.json_bytes)
    assert (answer.model, answer.version, answer.ident, list(answer.outputs)) == ("m", "12", ident, list(outputs))
    for name, tensor in outputs.items():
        same(answer.outputs[name], tensor)
        np.testing.assert_array_equal(as_bits(answer.outputs[name]), as_bits(tensor))


@given(st.dictionaries(st.text(max_size=5), tensors(text=True), max_size=4))
@settings(deadline=None)
def test_json_answers_come_back_the_same(outputs: dict[str, Tensor]) -> None:
    encoded = encode_response("m", 1, "", outputs)
    assert encoded.json_bytes == -1
    answer = decode_response(encoded.joined(), -1)
    for name, tensor in outputs.items():
        same(answer.outputs[name], tensor)


@given(st.dictionaries(st.text(max_size=5), tensors(text=True, finite=True), max_size=4))
@settings(deadline=None)
def test_finite_answers_are_strict_json(outputs: dict[str, Tensor]) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(encode_response("m", 1, "", outputs).joined(), parse_constant=refuse)
    for entry, tensor in zip(found["outputs"], outputs.values(), strict=True):
        if tensor.datatype not in ("BYTES", "BF16"):
            np.testing.assert_array_equal(np.array(entry["data"], tensor.array.dtype).reshape(entry["shape"]), as_numbers(tensor))


def as_bits(tensor: Tensor) -> np.ndarray:
    return tensor.array if tensor.datatype == "BYTES" else np.frombuffer(tensor.array.tobytes(), np.uint8)


@pytest.mark.parametrize(
    ("body", "json_bytes", "error"),
    [
        (b"<html>", -1, InvalidRequest),
        (b"{}", -1, InvalidRequest),
        (b'{"error":"no"}', -1, InvalidRequest),
        (b"{}", 9, InvalidRequest),
        (b'{"outputs":[{"name":"y","datatype":"FP32","shape":[2],"data":[1]}]}', -1, InvalidTensor),
    ],
)
def test_what_is_no_answer(body: bytes, json_bytes: int, error: type[InvalidRequest]) -> None:
    with pytest.raises(error):
        decode_response(body, json_bytes)
