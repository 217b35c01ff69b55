from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from modelpool.errors import MalformedModel
from modelpool.protocol.messages import TensorMeta
from modelpool.repository.onnx_header import read_header
from tests.unit.repository.models import matmul, write_external, write_onnx


def save(path: Path, model: onnx.ModelProto) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def problem(path: Path) -> str:
    with pytest.raises(MalformedModel) as caught:
        read_header(path)
    return caught.value.message


def test_inputs_outputs_and_sizes(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", 100)
    header = read_header(path)
    assert header.inputs == (TensorMeta("x", "FP32", (-1, 100)),)
    assert header.outputs == (TensorMeta("y", "FP32", (-1, 100)),)
    assert (header.ir_version, header.opset) == (9, 17)
    assert 40_000 <= header.initialiser_bytes < 40_100
    assert header.initialiser_bytes + header.graph_bytes == path.stat().st_size
    assert 44_000 <= header.estimate_bytes < 45_000


def test_an_input_with_an_initialiser_is_a_weight(tmp_path: Path) -> None:
    header = read_header(save(tmp_path / "m.onnx", matmul(weight_as_input=True)))
    assert [tensor.name for tensor in header.inputs] == ["x"]


def test_every_type_that_the_protocol_has(tmp_path: Path) -> None:
    kinds = {
        "FP32": TensorProto.FLOAT, "FP16": TensorProto.FLOAT16, "BF16": TensorProto.BFLOAT16, "FP64": TensorProto.DOUBLE,
        "BOOL": TensorProto.BOOL, "BYTES": TensorProto.STRING, "INT8": TensorProto.INT8, "INT16": TensorProto.INT16,
        "INT32": TensorProto.INT32, "INT64": TensorProto.INT64, "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16,
        "UINT32": TensorProto.UINT32, "UINT64": TensorProto.UINT64,
    }  # fmt: skip
    inputs = [helper.make_tensor_value_info(f"i{name}", kind, [1, None, "n"]) for name, kind in kinds.items()]
    outputs = [helper.make_tensor_value_info(f"o{name}", kind, []) for name, kind in kinds.items()]
    nodes = [helper.make_node("Identity", [one.name], [two.name]) for one, two in zip(inputs, outputs, strict=True)]
    header = read_header(save(tmp_path / "m.onnx", helper.make_model(helper.make_graph(nodes, "g", inputs, outputs))))
    assert header.inputs == tuple(TensorMeta(f"i{name}", name, (1, -1, -1)) for name in kinds)
    assert header.outputs == tuple(TensorMeta(f"o{name}", name, ()) for name in kinds)


def test_outputs_that_are_no_tensors_are_left_out_and_such_inputs_refused(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    tensor = helper.make_tensor_value_info("t", TensorProto.FLOAT, [1])
    node = helper.make_node("SequenceConstruct", ["t"], ["s"])
    good = helper.make_model(
        helper.make_graph([node], "g", [tensor], [sequence, helper.make_tensor_value_info("u", TensorProto.FLOAT, [1])])
    )
    assert [out.name for out in read_header(save(tmp_path / "good.onnx", good)).outputs] == ["u"]
    bad = helper.make_model(helper.make_graph([node], "g", [sequence], [tensor]))
    assert "input 's'" in problem(save(tmp_path / "bad.onnx", bad))


def test_external_data_is_named_and_counted(tmp_path: Path) -> None:
    header = read_header(write_external(tmp_path / "m.onnx", 300))
    assert header.external == (("weights.bin", 360_000),)
    assert 360_000 <= header.initialiser_bytes < 361_000


@pytest.mark.parametrize("location", ["/etc/passwd", "../secret.bin", "a/../../b", "..\\b", ""])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    model = matmul()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    assert "beside the model" in problem(save(tmp_path / "m.onnx", model))


@pytest.mark.parametrize(("key", "value"), [("offset", "x"), ("length", "-5"), ("offset", "9" * 5000)])
def test_external_data_with_senseless_numbers(tmp_path: Path, key: str, value: str) -> None:
    model = matmul()
    weight = model.graph.initializer[0]
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    weight.external_data.add(key=key, value=value)
    assert "damaged" in problem(save(tmp_path / "m.onnx", model))


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"", "empty"),
        (b"hello world, I am text", "not an ONNX file"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        (b"PK\x03\x04\x14\x00\x00\x00", "zip"),
        (b"\x80\x02}q\x00", "pickle"),
        (b"\0" * 100, "not an ONNX file"),
        (b"\xff" * 100, "not an ONNX file"),
        (b"\x08", "not an ONNX file"),
        (b"\x08\x09\x08", "ends in the middle"),
        (b"\x08\x09\x38\x01", "damaged"),
        (b"\x08\x09\x3a\x02\x5a\x7f\x42\x02\x10\x11", "damaged"),
    ],
)
def test_what_is_not_onnx(tmp_path: Path, content: bytes, hint: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert hint in problem(path)


def test_missing_folder_and_pipe(tmp_path: Path) -> None:
    assert "No such file" in problem(tmp_path / "none.onnx")
    assert "not a regular file" in problem(tmp_path)
    os.mkfifo(tmp_path / "pipe.onnx")
    assert "not a regular file" in problem(tmp_path / "pipe.onnx")


def test_names_with_nul_and_broken_text(tmp_path: Path) -> None:
    raw = matmul().SerializeToString()
    assert "damaged" in problem_of(tmp_path, raw.replace(b"\x01x\x12", b"\x01\x00\x12"))
    assert "damaged" in problem_of(tmp_path, raw.replace(b"\x01x\x12", b"\x01\xff\x12"))


def problem_of(folder: Path, content: bytes) -> str:
    path = folder / "m.onnx"
    path.write_bytes(content)
    return problem(path)


def test_a_graph_of_endless_parts_is_refused(tmp_path: Path) -> None:
    parts = b"\x10\x00" * 350_000
    size = len(parts)
    varint = bytes([(size & 0x7F) | 0x80, (size >> 7 & 0x7F) | 0x80, size >> 14])
    assert "more than" in problem_of(tmp_path, b"\x08\x09\x3a" + varint + parts + b"\x42\x02\x10\x11")


def test_cut_at_every_byte(tmp_path: Path) -> None:
    whole = matmul().SerializeToString()
    path = tmp_path / "m.onnx"
    good = read_header(write_onnx(path))
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        message = problem(path)
        assert "m.onnx" in message
        if length > 2:
            assert "ends in the middle" in message, length
    path.write_bytes(whole)
    assert read_header(path) == good


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_never_break_the_reader(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(matmul(2).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    try:
        read_header(path)
    except MalformedModel as error:
        error.message.encode()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300))
def test_any_bytes_give_a_header_or_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    for head in (b"", b"\x08\x09", b"\x08\x09\x3a" + bytes([len(content) % 128])):
        path.write_bytes(head + content)
        try:
            read_header(path)
        except MalformedModel as error:
            error.message.encode()
