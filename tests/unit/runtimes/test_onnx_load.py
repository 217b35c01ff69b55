from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from modelpool.errors import LoadFailed, Unsupported
from modelpool.protocol.messages import TensorMeta
from modelpool.protocol.tensors import Tensor
from modelpool.runtimes import onnx_session
from modelpool.runtimes.onnx import OnnxRuntime
from modelpool.testing import models
from tests.unit.runtimes.onnx_models import FLOAT, arrays, gather, loaded, port, request, rows, spec, write


@pytest.fixture
def add_sub(tmp_path: Path) -> Path:
    return models.add_sub(tmp_path / "model.onnx")


def refused(path: Path, device: str = "cpu", **config: Any) -> str:
    with pytest.raises(LoadFailed) as caught:
        OnnxRuntime().load(spec({1: path}, config, device))
    return caught.value.message


def declared(**changes: Any) -> dict[str, Any]:
    """A right configuration of `add_sub`, changed."""
    whole = {
        "max_batch_size": 8,
        "input": [port("a", "TYPE_FP32", 4), port("b", "TYPE_FP32", 4)],
        "output": [port("sum", "TYPE_FP32", 4), port("difference", "TYPE_FP32", -1)],
    }
    return {**whole, **changes}


# --- files -----------------------------------------------------------------------------------------------------------------------
def test_a_version_folder_holds_model_onnx(add_sub: Path) -> None:
    with loaded(add_sub.parent) as model:
        assert [meta.name for meta in model.inputs] == ["a", "b"]


def test_the_configuration_may_name_the_file(tmp_path: Path) -> None:
    models.add_sub(tmp_path / "other.onnx")
    with loaded(tmp_path, default_model_filename="other.onnx") as model:
        assert model.execute(1, [request(a=rows(1), b=rows(1))])


def test_no_file(tmp_path: Path) -> None:
    assert "has no file model.onnx" in refused(tmp_path)
    assert "has no file x.onnx" in refused(tmp_path / "x.onnx")


@pytest.mark.parametrize("content", [b"", b"hello world", b"<html>", b"PK\3\4" + b"\0" * 100, b"\0" * 100])
def test_a_file_that_is_not_onnx(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    told = refused(tmp_path)
    assert f"model.onnx is not an ONNX file ({len(content)} bytes" in told
    assert "export the model to ONNX" in told


@pytest.mark.parametrize("part", [0.3, 0.5, 0.99])
def test_a_file_that_is_cut_off(tmp_path: Path, part: float) -> None:
    path = models.dense(tmp_path / "model.onnx", weight_bytes=100_000)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    assert "model.onnx was cut off or is damaged" in refused(path)


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_weights_beside_the_file_that_are_not_there(tmp_path: Path, damage: str) -> None:
    path = models.dense(tmp_path / "model.onnx", weight_bytes=100_000)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    weights = tmp_path / "model.onnx.data"
    with loaded(path) as model:
        assert model.inputs
    if damage == "missing":
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:1000])
    assert "holds its weights is missing or incomplete" in refused(path)


def test_a_model_that_onnxruntime_cannot_run(tmp_path: Path) -> None:
    nodes = [helper.make_node("NoSuchOperator", ["x"], ["y"])]
    path = write(tmp_path / "model.onnx", nodes, [("x", FLOAT, ["n"])], [("y", FLOAT, ["n"])])
    assert "NoSuchOperator" in refused(path)


def test_types_that_the_protocol_lacks(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    complex64 = onnx.TensorProto.COMPLEX64
    path = write(tmp_path / "model.onnx", nodes, [("x", complex64, ["n"])], [("y", complex64, ["n"])])
    assert "complex64" in refused(path)


def test_outputs_that_are_no_tensors_are_left_out(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("SequenceConstruct", ["x"], ["s"])]
    path = write(tmp_path / "model.onnx", nodes, [("x", FLOAT, ["n"])], [("y", FLOAT, ["n"])])
    model = onnx.load(path)
    model.graph.output.append(helper.make_tensor_sequence_value_info("s", FLOAT, None))
    onnx.save(model, path)
    with loaded(path) as loaded_model:
        assert [meta.name for meta in loaded_model.outputs] == ["y"]
        assert arrays(loaded_model.execute(1, [request(x=rows(1)[0])])[0]) == {"y": [1, 1, 1, 1]}
    del model.graph.output[0]
    onnx.save(model, path)
    assert "has no output that is a tensor" in refused(path)


def test_other_devices_come_later(add_sub: Path) -> None:
    with pytest.raises(Unsupported, match="cuda:0"):
        OnnxRuntime().load(spec({1: add_sub}, {}, device="cuda:0"))


# --- configuration ---------------------------------------------------------------------------------------------------------------
def test_without_a_configuration_the_file_tells(add_sub: Path) -> None:
    with loaded(add_sub) as model:
        assert model.inputs == (TensorMeta("a", "FP32", (-1, 4)), TensorMeta("b", "FP32", (-1, 4)))
        assert (model.max_batch, model.batches) == (0, False)


def test_a_configuration_that_fits(add_sub: Path) -> None:
    delay = {"preferred_batch_size": [4], "max_queue_delay_microseconds": 2500}
    with loaded(add_sub, **declared(dynamic_batching=delay, instance_group=[{"count": 3, "kind": "KIND_CPU"}])) as model:
        assert model.inputs == (TensorMeta("a", "FP32", (-1, 4)), TensorMeta("b", "FP32", (-1, 4)))
        assert model.outputs == (TensorMeta("sum", "FP32", (-1, 4)), TensorMeta("difference", "FP32", (-1, 4)))
        assert (model.max_batch, model.batches, model.max_delay_s, model.slots) == (8, True, 0.0025, 3)


def test_a_configuration_may_leave_outputs_out_and_narrow_sizes(tmp_path: Path) -> None:
    path = models.identity(tmp_path / "model.onnx", shape=["n", "m"])
    with loaded(path, input=[port("x", "TYPE_FP32", -1, 3)], output=[port("y", "TYPE_FP32", -1, 3)]) as model:
        assert model.inputs == (TensorMeta("x", "FP32", (-1, 3)),)
    path = models.add_sub(tmp_path / "model.onnx")
    with loaded(path, **declared(output=[port("difference", "TYPE_FP32", 4)])) as model:
        assert list(arrays(model.execute(1, [request(a=rows(3), b=rows(1))])[0])) == ["difference"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"input": [port("a", "TYPE_FP32", 4), port("c", "TYPE_FP32", 4)]}, "the input 'c', but its file has 'a', 'b'"),
        ({"output": [port("y", "TYPE_FP32", 4)]}, "the output 'y', but its file has 'sum', 'difference'"),
        ({"input": [port("a", "TYPE_FP32", 4)]}, "the inputs 'a', but its file also needs 'b'"),
        ({"input": [port("a", "TYPE_FP64", 4), port("b", "TYPE_FP32", 4)]}, "TYPE_FP64 in its configuration, but FP32 in its file"),
        ({"output": [port("sum", "TYPE_FP32", 5)]}, "dims [5] in its configuration after the batch dimension, but shape [-1, 4]"),
        ({"output": [port("sum", "TYPE_FP32", 1, 4)]}, "dims [1, 4]"),
        ({"max_batch_size": 0}, "dims [4] in its configuration, but shape [-1, 4] in its file"),
        ({"output": [port("sum", "TYPE_FP32", 2, 2, reshape={"shape": [5]})]}, "reshape [5]"),
        ({"output": [port("sum", "TYPE_FP32", 2, 2, reshape={"shape": [-1, -1]})]}, "reshape with more than one size"),
        ({"output": [port("sum", "TYPE_FP32", 4)] * 2}, "'sum' twice"),
        ({"output": [port("sum", "TYPE_FP12", 4)]}, "TYPE_FP12"),
        ({"parameters": {"intra_op_thread_count": {"string_value": "many"}}}, "intra_op_thread_count is 'many'"),
    ],
)
def test_a_configuration_that_does_not_fit_the_file(add_sub: Path, changes: dict[str, Any], told: str) -> None:
    message = refused(add_sub, **declared(**changes))
    assert told in message
    assert "'m'" in message or "intra_op" in message


@pytest.mark.parametrize("config", [{}, {"input": [port("a", "TYPE_FP32"), port("b", "TYPE_FP32")]}])
def test_a_model_without_a_free_first_size_does_not_batch(tmp_path: Path, config: dict[str, Any]) -> None:
    path = models.add_sub(tmp_path / "model.onnx", batching=False)
    assert "max_batch_size 8 in its configuration, but input 'a' has in its file the shape [4]" in refused(path, max_batch_size=8, **config)


def test_all_versions_must_fit(tmp_path: Path) -> None:
    paths = {1: models.scale(tmp_path / "1.onnx", 1.0), 2: models.add_sub(tmp_path / "2.onnx")}
    config = {"input": [port("x", "TYPE_FP32", -1)], "output": [port("y", "TYPE_FP32", -1)]}
    with pytest.raises(LoadFailed, match="its file has 'a', 'b'"):
        OnnxRuntime().load(spec(paths, config))


# --- warm-up ---------------------------------------------------------------------------------------------------------------------
def test_a_warm_up_file_that_is_a_fifo_does_not_wait(tmp_path: Path) -> None:
    path = gather(tmp_path / "model.onnx")
    (tmp_path / "warmup").mkdir()
    os.mkfifo(tmp_path / "warmup" / "raw")
    sample = warmup(0, table={"data_type": "TYPE_FP32", "dims": [1, 1], "input_data_file": "raw"})
    assert "raw is a FIFO, not a regular file" in refused(path, model_warmup=[sample])


def warmup(batch_size: int, **inputs: dict[str, Any]) -> dict[str, Any]:
    return {"name": "w", "batch_size": batch_size, "inputs": inputs}


def test_warm_up_runs(add_sub: Path) -> None:
    zero, chance = {"data_type": "TYPE_FP32", "dims": [4], "zero_data": True}, {"data_type": "TYPE_FP32", "dims": [4], "random_data": True}
    with loaded(add_sub, **declared(model_warmup=[warmup(2, a=zero, b=chance)])) as model:
        assert model.inputs


def test_a_warm_up_that_fails_fails_the_load(tmp_path: Path) -> None:
    table = {"data_type": "TYPE_FP32", "dims": [0, 4], "zero_data": True}
    sample = warmup(0, table=table, at={"data_type": "TYPE_INT64", "dims": [1], "zero_data": True})
    assert "warm-up sample 'w' of model 'm' failed" in refused(gather(tmp_path / "model.onnx"), model_warmup=[sample])


# --- threads and memory ----------------------------------------------------------------------------------------------------------
def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_small_models_have_no_threads_of_their_own(add_sub: Path) -> None:
    with loaded(add_sub):
        before = threads()
        with loaded(add_sub), loaded(add_sub):
            assert threads() == before


def test_the_threads_of_larger_models_are_bounded(add_sub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_session, "_extra_threads", onnx_session._Allowance(3))
    four = {"parameters": {"intra_op_thread_count": {"string_value": "4"}}}
    with loaded(add_sub, **four) as first, loaded(add_sub, **four) as second:
        asked = request(a=rows(1), b=rows(1))
        assert arrays(first.execute(1, [asked])[0]) == arrays(second.execute(1, [asked])[0])
        assert onnx_session._extra_threads.take(1) == 0
    assert onnx_session._extra_threads.take(9) == 3


def test_a_failed_load_gives_its_threads_back(add_sub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_session, "_extra_threads", onnx_session._Allowance(3))
    four = {"parameters": {"intra_op_thread_count": {"string_value": "4"}}}
    refused(add_sub, **declared(output=[port("sum", "TYPE_FP32", 5)]), **four)
    (add_sub.parent / "text.onnx").write_text("text")
    refused(add_sub.parent / "text.onnx", **four)
    assert onnx_session._extra_threads.take(9) == 3


def test_closing_twice_is_no_fault(add_sub: Path) -> None:
    with loaded(add_sub) as model:
        model.close()


def test_answers_outlive_the_model(tmp_path: Path) -> None:
    path = models.identity(tmp_path / "model.onnx", onnx.TensorProto.BFLOAT16)
    with loaded(path) as model:
        (outcome,) = model.execute(1, [request(x=Tensor("BF16", np.arange(1000, dtype=np.uint16)))])
    assert arrays(outcome)["y"] == list(range(1000))
