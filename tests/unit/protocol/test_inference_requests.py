from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.http._utils import _get_inference_request

from modelpool.errors import InvalidRequest, InvalidTensor, ModelpoolError, Unsupported
from modelpool.protocol.datatypes import DATATYPES
from modelpool.protocol.inference import Wanted, decode_request, encode_request
from modelpool.protocol.tensors import Tensor
from tests.unit.protocol.strategies import as_numbers, same, tensors

NUMBERS = {"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2.5, -3]}


def body(*inputs: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


def one(datatype: str, shape: list[int], data: Any) -> Tensor:
    """The only input of a JSON request."""
    request, _ = decode_request(body({"name": "x", "datatype": datatype, "shape": shape, "data": data}), -1, 1)
    return request.inputs["x"]


def with_binary(datatype: str, shape: list[int], raw: bytes, size: int | None = None) -> tuple[bytes, int]:
    parameters = {"binary_data_size": len(raw) if size is None else size}
    head = body({"name": "x", "datatype": datatype, "shape": shape, "parameters": parameters})
    return head + raw, len(head)


def refused(raw: bytes, json_bytes: int = -1) -> ModelpoolError:
    with pytest.raises(ModelpoolError) as caught:
        decode_request(raw, json_bytes, 1)
    return caught.value


# --- what is well ----------------------------------------------------------------------------------------------------------------
def test_a_json_request() -> None:
    more = {"id": "42", "parameters": {"priority": 3}, "outputs": [{"name": "y"}, {"name": "z"}]}
    request, form = decode_request(body(NUMBERS, **more), -1, 7)
    same(request.inputs["x"], Tensor("FP32", np.array([1, 2.5, -3], np.float32)))
    assert (request.version, request.ident, request.parameters, request.wanted) == (7, "42", {"priority": 3}, ("y", "z"))
    assert form == Wanted(False, {})


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]], [[[1], [2]], [[3], [4]]], [[1, 2, 3, 4]]])
def test_nested_lists_are_read_in_row_major_order(data: Any) -> None:
    same(one("INT64", [2, 2], data), Tensor("INT64", np.array([[1, 2], [3, 4]])))


def test_nested_text() -> None:
    assert one("BYTES", [2, 1], [["a"], ["é"]]).array.tolist() == [[b"a"], ["é".encode()]]


def test_white_space_between_lists() -> None:
    raw = b'{"inputs":[{"name":"x","datatype":"INT8","shape":[1,2],"data": [ \n [ 1 , 2 ] ] }]}'
    assert decode_request(raw, -1, 1)[0].inputs["x"].array.tolist() == [[1, 2]]


def test_a_scalar_has_one_element() -> None:
    assert one("FP64", [], [4.5]).array.shape == ()


@pytest.mark.parametrize(("datatype", "data"), [("FP32", []), ("BYTES", []), ("INT8", [[], []])])
def test_no_elements(datatype: str, data: list[Any]) -> None:
    assert one(datatype, [2, 0, 3], data).array.shape == (2, 0, 3)


def test_half_precision_is_rounded_to_even() -> None:
    assert one("FP16", [2], [1.5, 65504]).array.tolist() == [1.5, 65504]
    # 1 + 2**-8 lies halfway between two BF16, of which 1.0 is even; 1 + 3 * 2**-8 goes up.
    assert one("BF16", [4], [1, 1 + 2**-8, 1 + 3 * 2**-8, -2]).array.tolist() == [0x3F80, 0x3F80, 0x3F82, 0xC000]


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
def test_numbers_that_are_not_finite(datatype: str) -> None:
    raw = body({"name": "x", "datatype": datatype, "shape": [3], "data": [float("nan"), float("inf"), -float("inf")]})
    assert b"NaN" in raw
    bare = decode_request(raw, -1, 1)[0].inputs["x"]
    same(bare, one(datatype, [3], ["NaN", "Infinity", "-Infinity"]))
    np.testing.assert_array_equal(as_numbers(bare), [np.nan, np.inf, -np.inf])


@pytest.mark.parametrize("body_type", [bytes, bytearray, memoryview])
def test_binary_data_is_not_copied_where_it_is_aligned(body_type: Any) -> None:
    array = np.arange(4, dtype=np.float32)
    for pad in range(4):
        head = body({"name": "x", "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": 16}}) + b" " * pad
        raw = body_type(head + array.tobytes())
        found = decode_request(raw, len(head), 1)[0].inputs["x"].array
        np.testing.assert_array_equal(found, array)
        assert found.flags.aligned
        start = np.frombuffer(raw, np.uint8).ctypes.data + len(head)
        assert np.shares_memory(found, np.frombuffer(raw, np.uint8)) == (start % 4 == 0)


def test_binary_and_json_inputs_together() -> None:
    binary = {"name": "b", "datatype": "UINT16", "shape": [2], "parameters": {"binary_data_size": 4}}
    text = {"name": "t", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 11}}
    head = body(binary, NUMBERS, text)
    raw = head + b"\1\0\2\0" + b"\3\0\0\0a\0c" + b"\0\0\0\0"
    inputs = decode_request(raw, len(head), 1)[0].inputs
    assert [tensor.array.tolist() for tensor in inputs.values()] == [[1, 2], [1, 2.5, -3], [b"a\0c", b""]]


def test_how_outputs_are_wanted() -> None:
    outputs = [{"name": "a", "parameters": {"binary_data": False}}, {"name": "b"}, {"name": "c", "parameters": {"binary_data": True}}]
    assert decode_request(body(NUMBERS, outputs=outputs), -1, 1)[1] == Wanted(False, {"a": False, "c": True})
    parameters = {"binary_data_output": True}
    assert decode_request(body(NUMBERS, outputs=outputs, parameters=parameters), -1, 1)[1] == Wanted(True, {"a": False, "c": True})


def test_a_number_as_id_is_text() -> None:
    assert decode_request(body(NUMBERS, id=7), -1, 1)[0].ident == "7"


def test_what_is_not_known_is_passed_over() -> None:
    request, _ = decode_request(body({**NUMBERS, "parameters": {"mood": 1}}, more=1), -1, 1)
    assert list(request.inputs) == ["x"]


# --- Triton's own client ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("datatype", "binary"),
    [(name, binary) for name in DATATYPES for binary in (True, False) if name != "BF16" and (binary or name != "FP16")],
)
def test_bodies_of_tritons_client(datatype: str, binary: bool) -> None:
    dtype = DATATYPES[datatype].dtype
    array = np.array([[b"a", "é".encode()]], object) if datatype == "BYTES" else np.array([[0, 1]]).astype(dtype)
    tensor = triton.InferInput("x", [1, 2], datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    outputs = [triton.InferRequestedOutput("y", binary_data=binary)]
    raw, json_bytes = _get_inference_request([tensor], "id", outputs, 0, False, False, 0, 5_000_000, None)
    request, form = decode_request(raw, -1 if json_bytes is None else json_bytes, 1)
    same(request.inputs["x"], Tensor(datatype, array))
    assert (request.ident, request.wanted, request.parameters["timeout"], form.named) == ("id", ("y",), 5_000_000, {"y": binary})


def test_nan_of_tritons_client() -> None:
    tensor = triton.InferInput("x", [2], "FP32")
    tensor.set_data_from_numpy(np.array([np.nan, -np.inf], np.float32), binary_data=False)
    raw, _ = _get_inference_request([tensor], "", None, 0, False, False, 0, None, None)
    np.testing.assert_array_equal(decode_request(raw, -1, 1)[0].inputs["x"].array, np.array([np.nan, -np.inf], np.float32))


# --- round trips -----------------------------------------------------------------------------------------------------------------
@given(
    st.dictionaries(st.text(max_size=5), tensors(), max_size=4),
    st.lists(st.text(max_size=3), unique=True, max_size=3),
    st.text(max_size=5),
)
@settings(deadline=None)
def test_what_is_encoded_is_decoded_the_same(inputs: dict[str, Tensor], outputs: list[str], ident: str) -> None:
    encoded = encode_request(inputs, outputs, {"keep_alive": "5m"}, ident)
    assert encoded.size_bytes == len(encoded.joined())
    request, form = decode_request(encoded.joined(), encoded.json_bytes, 3)
    assert list(request.inputs) == list(inputs)
    for name, tensor in inputs.items():
        same(request.inputs[name], tensor)
    assert (request.wanted, request.ident, form.binary) == (tuple(outputs), ident, True)
    assert request.parameters == {"keep_alive": "5m", "binary_data_output": True}


def test_the_client_may_give_any_arrays() -> None:
    arrays = {"list": [1, 2], "text": ["a", "é"], "big_endian": np.array([1, 2], ">f4"), "strided": np.arange(6).reshape(2, 3).T}
    request, _ = decode_request(encode_request(arrays).joined(), encode_request(arrays).json_bytes, 1)
    assert [tensor.datatype for tensor in request.inputs.values()] == ["INT64", "BYTES", "FP32", "INT64"]
    assert request.inputs["text"].array.tolist() == [b"a", "é".encode()]
    assert request.inputs["big_endian"].array.tolist() == [1, 2]
    assert request.inputs["strided"].array.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_the_client_refuses_what_cannot_be_sent() -> None:
    with pytest.raises(InvalidTensor, match="complex"):
        encode_request({"x": np.zeros(2, np.complex64)})
    with pytest.raises(InvalidTensor, match="'x' has an element of type dict"):
        encode_request({"x": np.array([{}], object)})


# --- what is wrong ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b'{"inputs":[', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"inputs":[{"name":"\xff"}]}', "not JSON|UTF-8"),
        (b"[]", "not an inference request"),
        (b"{}", "missing required field 'inputs'"),
        (b'{"inputs":{}}', "inputs"),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1.5],"data":[1]}]}', "shape"),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[' + b"9" * 5000 + b'],"data":[1]}]}', "shape"),
        (b'{"inputs":[],"parameters":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}", "deep"),
        (b'{"inputs":[],"parameters":{"a":NaN},', "not JSON"),
        (b'{"inputs":[]} and more', "not JSON"),
    ],
)
def test_json_that_is_no_request(raw: bytes, told: str) -> None:
    error = refused(raw)
    assert type(error) is InvalidRequest
    assert any(word in error.message for word in told.split("|")), error.message


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "told"),
    [
        ("FP32", [2], [1], "has 1 elements in its data, but its shape [2] needs 2"),
        ("FP32", [1], [1, 2], "needs 1"),
        ("FP32", [-1], [1], "0 or more"),
        ("FP32", [-1, -1], [1], "0 or more"),
        ("FP32", [2**40], [1], f"needs {2**40}"),
        ("FP32", [2**33, 2**33], [1], "needs"),
        ("FP32", [0, 2**62, 2**62], [], "too large"),
        ("FP32", [0, 2**70], [], "too large"),
        ("FP32", [1] * 33, [1], "33 dimensions"),
        ("FP8", [1], [1], "unknown datatype 'FP8'; known are BOOL"),
        ("fp32", [1], [1], "unknown datatype"),
        ("INT8", [1], [300], "-128 to 127"),
        ("INT8", [2], [1, -129], "data[1]"),
        ("UINT8", [1], [-1], "0 to 255"),
        ("INT64", [1], [2**63], "not INT64"),
        ("UINT64", [1], [2**64], "does not fit UINT64"),
        ("UINT64", [1], [-1], "does not fit UINT64"),
        ("INT32", [1], [1.5], "not INT32"),
        ("INT32", [1], [True], "not INT32"),
        ("INT32", [1], ["1"], "not INT32"),
        ("BOOL", [1], [2], "not BOOL"),
        ("BOOL", [1], ["true"], "not BOOL"),
        ("FP16", [1], [70000], "not FP16"),
        ("BF16", [1], [3.4e38], "not BF16"),
        ("FP32", [1], [1e39], "not FP32"),
        ("FP32", [1], ["one"], "not FP32"),
        ("FP32", [1], [None], "not FP32"),
        ("BYTES", [1], [1], "not BYTES"),
        ("FP32", [1], 1, "not a list"),
        ("FP32", [1], None, "not a list"),
        ("FP32", [1], {"a": 1}, "not a list"),
        ("FP32", [4], [[1, 2, 3], [4]], "uneven"),
        ("FP32", [2], [1, [2]], "not FP32"),
        ("BYTES", [2], [["a"], "b"], "not BYTES"),
    ],
)
def test_tensors_that_are_wrong(datatype: str, shape: list[int], data: Any, told: str) -> None:
    error = refused(body({"name": "x", "datatype": datatype, "shape": shape, "data": data}))
    assert type(error) is InvalidTensor
    assert "'x'" in error.message
    assert told in error.message


def test_data_that_is_nested_too_deep() -> None:
    raw = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":' + b"[" * 40 + b"1" + b"]" * 40 + b"}]}"
    assert "nested deeper" in refused(raw).message


def test_numbers_that_are_out_of_all_range() -> None:
    assert "not FP64" in refused(b'{"inputs":[{"name":"x","datatype":"FP64","shape":[1],"data":[1e999]}]}').message


@pytest.mark.parametrize(
    ("datatype", "shape", "raw", "told"),
    [
        ("FP32", [2], b"\0" * 7, "7 bytes of data, but FP32 of shape [2] needs 8 bytes"),
        ("FP32", [2**40], b"\0" * 8, f"needs {2**42} bytes"),
        ("FP32", [-2], b"\0" * 8, "0 or more"),
        ("BOOL", [2], b"\0\2", "other than 0 and 1"),
        ("BYTES", [1], b"\5\0\0\0abc", "in the middle of BYTES element 0"),
        ("BYTES", [2], b"\4\0\0\0abcd", "in the middle of BYTES element 1"),
        ("BYTES", [2], b"\5\0\0\0abcde\0\0", "in the middle of BYTES element 1"),
        ("BYTES", [1], b"\1\0\0\0abc", "2 bytes after"),
        ("BYTES", [2**40], b"\0" * 8, "too few"),
        ("BYTES", [1], b"\xff\xff\xff\xff", "in the middle"),
        ("BYTES", [0], b"\0\0\0\0", "4 bytes after"),
        ("FP9", [1], b"\0", "unknown datatype"),
    ],
)
def test_binary_data_that_is_wrong(datatype: str, shape: list[int], raw: bytes, told: str) -> None:
    error = refused(*with_binary(datatype, shape, raw))
    assert type(error) is InvalidTensor
    assert told in error.message


def test_a_body_that_is_cut_off() -> None:
    raw, json_bytes = with_binary("FP32", [4], b"\0" * 16)
    assert "only 10 bytes are left" in refused(raw[:-6], json_bytes).message


def test_bytes_that_are_left_over() -> None:
    raw, json_bytes = with_binary("FP32", [4], b"\0" * 16)
    assert "3 bytes are left over" in refused(raw + b"abc", json_bytes).message
    assert "left over" in refused(body(NUMBERS) + b"abc", len(body(NUMBERS))).message


def test_a_header_that_is_wrong() -> None:
    raw = body(NUMBERS)
    assert f"{len(raw)} bytes in all" in refused(raw, len(raw) + 1).message
    assert isinstance(refused(raw, 0), Unsupported)
    assert "Inference-Header-Content-Length is missing" in refused(with_binary("FP32", [1], b"")[0]).message
    assert "not JSON" in refused(raw, 10).message


def test_a_size_below_zero() -> None:
    assert "binary_data_size" in refused(*with_binary("FP32", [1], b"\0" * 4, size=-4)).message


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (body(NUMBERS, NUMBERS), "input 'x' is there twice"),
        (body(NUMBERS, outputs=[{"name": "y"}, {"name": "y"}]), "output 'y' is there twice"),
        (body({"name": "x", "datatype": "FP32", "shape": [1]}), "no data"),
        (body({**NUMBERS, "parameters": {"binary_data_size": 12}}), "both data and binary_data_size"),
    ],
)
def test_what_contradicts_itself(raw: bytes, told: str) -> None:
    error = refused(raw)
    assert type(error) is InvalidTensor
    assert told in error.message


@pytest.mark.parametrize(
    "raw",
    [
        body({"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 4}}),
        body(NUMBERS, outputs=[{"name": "y", "parameters": {"shared_memory_region": "r"}}]),
        body(NUMBERS, outputs=[{"name": "y", "parameters": {"classification": 3}}]),
    ],
)
def test_what_this_version_does_not_do(raw: bytes) -> None:
    assert isinstance(refused(raw), Unsupported)


VALID, VALID_JSON_BYTES = with_binary("BYTES", [2], b"\1\0\0\0a\0\0\0\0")


@given(st.integers(0, len(VALID)), st.binary(max_size=6), st.integers(-1, len(VALID) + 8))
@settings(deadline=None, max_examples=300)
def test_a_damaged_body_is_an_error_of_the_request_or_nothing(at: int, change: bytes, json_bytes: int) -> None:
    raw = VALID[:at] + change + VALID[at + len(change) :]
    for size in (json_bytes, VALID_JSON_BYTES):
        try:
            request, _ = decode_request(raw, size, 1)
        except (InvalidRequest, Unsupported):
            continue
        assert all(isinstance(tensor, Tensor) for tensor in request.inputs.values())
