from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from modelpool.errors import InvalidTensor, ModelError, UnknownVersion
from modelpool.protocol.datatypes import DATATYPES
from modelpool.protocol.messages import TensorMeta
from modelpool.protocol.tensors import InferenceRequest, Tensor, object_array
from modelpool.runtimes.base import open_runtime
from modelpool.testing import models
from tests.unit.runtimes.onnx_models import FLOAT, INT64, arrays, fault, gather, loaded, port, request, rows, spec, total, write

BATCHING: dict[str, Any] = {"max_batch_size": 8, "dynamic_batching": {}}
ONNX_TYPES = {name: helper.np_dtype_to_tensor_dtype(one.dtype) for name, one in DATATYPES.items() if name not in ("BYTES", "BF16")} | {
    "BYTES": onnx.TensorProto.STRING,
    "BF16": onnx.TensorProto.BFLOAT16,
}


@pytest.fixture
def add_sub(tmp_path: Path) -> Path:
    return models.add_sub(tmp_path / "model.onnx")


# --- one request -----------------------------------------------------------------------------------------------------------------
def test_a_model_answers(add_sub: Path) -> None:
    with loaded(add_sub) as model:
        (outcome,) = model.execute(1, [request(a=rows(3), b=rows(1))])
    assert arrays(outcome) == {"sum": [[4, 4, 4, 4]], "difference": [[2, 2, 2, 2]]}


@pytest.mark.parametrize("datatype", sorted(DATATYPES))
def test_all_data_types_go_in_and_out(tmp_path: Path, datatype: str) -> None:
    path = models.identity(tmp_path / "model.onnx", ONNX_TYPES[datatype], shape=["n", 2])
    items = object_array([b"a", "é".encode(), b"", b"x\0y"]) if datatype == "BYTES" else np.array([0, 1, 1, 0], DATATYPES[datatype].dtype)
    with loaded(path) as model:
        assert model.inputs == (TensorMeta("x", datatype, (-1, 2)),)
        for array in (items.reshape(2, 2), items[:0].reshape(0, 2)):
            (outcome,) = model.execute(1, [request(x=Tensor(datatype, array))])
            assert arrays(outcome) == {"y": array.tolist()}
            assert isinstance(outcome, dict)
            assert outcome["y"].datatype == datatype
            assert outcome["y"].array.dtype == DATATYPES[datatype].dtype


def test_bf16_beside_other_types(tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=FLOAT), helper.make_node("Cast", ["z"], ["w"], to=onnx.TensorProto.BFLOAT16)]
    bf16 = onnx.TensorProto.BFLOAT16
    path = write(tmp_path / "model.onnx", nodes, [("x", bf16, ["n"]), ("z", FLOAT, ["n"])], [("y", FLOAT, ["n"]), ("w", bf16, ["n"])])
    with loaded(path) as model:
        asked = request(x=Tensor("BF16", np.array([0x3F80, 0xC000], np.uint16)), z=np.array([1, -2], np.float32))
        assert arrays(model.execute(1, [asked])[0]) == {"y": [1, -2], "w": [0x3F80, 0xC000]}


def test_only_what_is_wanted_is_answered_in_the_models_order(add_sub: Path) -> None:
    with loaded(add_sub) as model:
        first, second = model.execute(1, [request("difference", a=rows(3), b=rows(1)), request("difference", "sum", a=rows(3), b=rows(1))])
    assert list(arrays(first)) == ["difference"]
    assert list(arrays(second)) == ["sum", "difference"]


def test_inputs_may_be_read_only_and_of_any_layout(add_sub: Path) -> None:
    array = np.asfortranarray(np.arange(8, dtype=np.float32).reshape(2, 4))
    array.setflags(write=False)
    with loaded(add_sub) as model:
        assert arrays(model.execute(1, [request(a=array, b=array[::-1])])[0])["sum"] == (array + array[::-1]).tolist()


def test_versions_answer_for_themselves(tmp_path: Path) -> None:
    paths = {version: models.scale(tmp_path / f"{version}.onnx", float(version)) for version in (1, 2)}
    with loaded(paths) as model:
        x = request(x=np.ones(1, np.float32))
        assert [arrays(model.execute(version, [x])[0])["y"] for version in (1, 2)] == [[1], [2]]
        with pytest.raises(UnknownVersion, match=r"version 3 of model 'm' is not loaded; loaded are \[1, 2\]"):
            model.execute(3, [x])


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (request(a=rows(1)), "expected 2 inputs but got 1 inputs for model 'm'; missing are 'b'"),
        (request(), "got 0 inputs"),
        (request(a=rows(1), b=rows(1), c=rows(1)), "unexpected inference input 'c' for model 'm'; it has 'a', 'b'"),
        (request(a=rows(1), A=rows(1)), "unexpected inference input 'A'"),
        (request(a=rows(1), b=rows(1).astype(np.float64)), "inference input 'b' data-type is FP64, but model 'm' expects FP32"),
        (request(a=rows(1), b=rows(1, width=5)), "unexpected shape for input 'b' for model 'm'. Expected [-1,4], got [1,5]"),
        (request(a=rows(1)[0], b=rows(1)), "unexpected shape for input 'a' for model 'm'. Expected [-1,4], got [4]"),
        (request("y", a=rows(1), b=rows(1)), "unexpected inference output 'y' for model 'm'; it has 'sum', 'difference'"),
    ],
)
def test_requests_that_do_not_fit(add_sub: Path, asked: InferenceRequest, told: str) -> None:
    with loaded(add_sub) as model:
        error = fault(model.execute(1, [asked])[0])
    assert type(error) is InvalidTensor
    assert told in error.message


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (request(a=rows(*range(9)), b=rows(*range(9))), "batch-size must be 1 to 8 for 'm', got 9"),
        (request(a=rows(), b=rows()), "batch-size must be 1 to 8 for 'm', got 0"),
        (request(a=rows(1), b=rows(1, 2)), "input 'b' batch size does not match other inputs for 'm': it is 2, that of others 1"),
        (request(a=rows(1)[0], b=rows(1)), "the first dimension is the batch"),
    ],
)
def test_batches_that_do_not_fit(add_sub: Path, asked: InferenceRequest, told: str) -> None:
    with loaded(add_sub, **BATCHING) as model:
        error = fault(model.execute(1, [asked])[0])
    assert type(error) is InvalidTensor
    assert told in error.message


def test_text_must_be_utf_8(tmp_path: Path) -> None:
    path = models.identity(tmp_path / "model.onnx", onnx.TensorProto.STRING)
    with loaded(path) as model:
        error = fault(model.execute(1, [request(x=Tensor("BYTES", object_array([b"\xff"])))])[0])
    assert "input 'x' holds bytes that are not UTF-8" in error.message


def test_what_the_run_finds_wrong_with_inputs_is_the_requests_fault(tmp_path: Path) -> None:
    with loaded(gather(tmp_path / "model.onnx")) as model:
        error = fault(model.execute(1, [request(table=rows(1), at=np.array([5]))])[0])
    assert type(error) is InvalidTensor
    assert "model 'm' cannot run on these inputs" in error.message
    assert "\n" not in error.message


def test_a_run_that_fails_is_the_models_error(add_sub: Path) -> None:
    with loaded(add_sub) as model:
        error = fault(model.execute(1, [request(a=rows(1, 2), b=rows(1, 2, 3))])[0])
        assert arrays(model.execute(1, [request(a=rows(1), b=rows(1))])[0])["sum"] == [[2, 2, 2, 2]]
    assert type(error) is ModelError
    assert "model 'm' failed while it ran" in error.message
    assert "onnxruntime_src" not in error.message


def test_a_file_that_tells_no_shape_takes_any(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    path = write(tmp_path / "model.onnx", nodes, [("x", FLOAT, None)], [("y", FLOAT, None)])
    with loaded(path) as model:
        for shape in ((), (2,), (1, 2, 3)):
            assert np.array(arrays(model.execute(1, [request(x=np.ones(shape, np.float32))])[0])["y"]).shape == shape


def test_reshape_of_the_configuration(tmp_path: Path) -> None:
    path = models.identity(tmp_path / "model.onnx", shape=["n"])
    ports = {"input": [port("x", "TYPE_FP32", 1, reshape={"shape": []})], "output": [port("y", "TYPE_FP32", 1, reshape={"shape": []})]}
    with loaded(path, max_batch_size=4, **ports) as model:
        assert model.inputs == (TensorMeta("x", "FP32", (-1, 1)),)
        assert arrays(model.execute(1, [request(x=rows(1, 2, width=1))])[0]) == {"y": [[1], [2]]}


# --- requests together -----------------------------------------------------------------------------------------------------------
class Counted:
    """A session that notes the rows of each run."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.rows: list[int] = []

    def run(self, names: Any, inputs: dict[str, Any]) -> Any:
        self.rows.append(len(next(iter(inputs.values()))))
        return self._session.run(names, inputs)

    def close(self) -> None:
        self._session.close()


def counted(model: Any) -> list[int]:
    version = model._versions[1]
    version.session = Counted(version.session)
    return version.session.rows  # type: ignore[no-any-return]


def test_requests_run_together_and_each_gets_its_own_answer(add_sub: Path) -> None:
    with loaded(add_sub, **BATCHING) as model:
        runs = counted(model)
        asked = [request(a=rows(*range(n, n + n % 2 + 1)), b=rows(*[0] * (n % 2 + 1))) for n in range(5)]
        outcomes = model.execute(1, asked)
    assert runs == [7]
    for n, outcome in enumerate(outcomes):
        assert arrays(outcome)["sum"] == rows(*range(n, n + n % 2 + 1)).tolist()


@pytest.mark.parametrize("config", [{}, {"max_batch_size": 8}, {"dynamic_batching": {}}])
def test_requests_run_one_by_one_unless_the_model_batches(add_sub: Path, config: dict[str, Any]) -> None:
    with loaded(add_sub, **config) as model:
        assert not model.batches
        runs = counted(model)
        outcomes = model.execute(1, [request(a=rows(n), b=rows(0)) for n in range(3)])
    assert runs == [1, 1, 1]
    assert [arrays(outcome)["sum"][0][0] for outcome in outcomes] == [0, 1, 2]


def test_different_shapes_run_apart_and_no_run_is_too_large(tmp_path: Path) -> None:
    path = models.identity(tmp_path / "model.onnx", shape=["n", "m"])
    with loaded(path, **BATCHING) as model:
        runs = counted(model)
        shapes = [(5, 2), (1, 3), (3, 2), (1, 2), (2, 3)]
        outcomes = model.execute(1, [request(x=np.full(shape, n, np.float32)) for n, shape in enumerate(shapes)])
    assert sorted(runs) == [1, 3, 8]
    for n, (shape, outcome) in enumerate(zip(shapes, outcomes, strict=True)):
        assert arrays(outcome)["y"] == np.full(shape, n).tolist()


def test_a_request_that_is_refused_leaves_the_others_alone(add_sub: Path) -> None:
    with loaded(add_sub, **BATCHING) as model:
        bad = [request(a=rows(1)), request("nothing", a=rows(1), b=rows(1)), request(a=rows(1), b=rows(1, width=3))]
        good = request(a=rows(2), b=rows(1))
        outcomes = model.execute(1, [bad[0], good, bad[1], good, bad[2]])
    assert [type(outcome) for outcome in outcomes] == [InvalidTensor, dict, InvalidTensor, dict, InvalidTensor]
    assert arrays(outcomes[3])["sum"] == [[3, 3, 3, 3]]


def test_a_request_that_breaks_the_run_fails_alone(tmp_path: Path) -> None:
    with loaded(gather(tmp_path / "model.onnx"), **BATCHING) as model:
        runs = counted(model)
        asked = [request(table=rows(n), at=np.array([at])) for n, at in ((1, 0), (2, 9), (3, 0))]
        outcomes = model.execute(1, asked)
    assert runs == [3, 1, 1, 1]
    assert [arrays(outcomes[n])["row"][0][0] for n in (0, 2)] == [1, 3]
    assert type(outcomes[1]) is InvalidTensor


def test_outputs_without_a_batch_dimension_are_not_shared_out(tmp_path: Path) -> None:
    config = {"input": [port("x", "TYPE_FP32", 4)], "output": [port("sum", "TYPE_FP32")]}
    path = total(tmp_path / "model.onnx")
    with loaded(path, **BATCHING, **config) as model:
        outcomes = model.execute(1, [request(x=rows(1)), request(x=rows(2))])
    assert [arrays(outcome)["sum"] for outcome in outcomes] == [4, 8]


def test_requests_that_want_different_outputs_run_together(add_sub: Path) -> None:
    with loaded(add_sub, **BATCHING) as model:
        runs = counted(model)
        outcomes = model.execute(1, [request("sum", a=rows(1), b=rows(2)), request("difference", a=rows(3), b=rows(1))])
    assert runs == [2]
    assert [arrays(outcome) for outcome in outcomes] == [{"sum": [[3] * 4]}, {"difference": [[2] * 4]}]


@pytest.mark.parametrize("datatype", ["BYTES", "BF16", "FP16", "BOOL"])
def test_types_that_onnxruntime_treats_apart_run_together(tmp_path: Path, datatype: str) -> None:
    path = models.identity(tmp_path / "model.onnx", ONNX_TYPES[datatype], shape=["n", 1])
    values = [[b"a"], [b"b"]] if datatype == "BYTES" else [[0], [1]]
    with loaded(path, **BATCHING) as model:
        outcomes = model.execute(1, [request(x=Tensor(datatype, np.array([value], DATATYPES[datatype].dtype))) for value in values])
    assert [arrays(outcome)["y"] for outcome in outcomes] == [[value] for value in values]


def test_a_model_runs_in_several_threads_at_once(add_sub: Path) -> None:
    wrong: list[float] = []

    def ask(n: int) -> None:
        for _ in range(50):
            found = arrays(model.execute(1, [request(a=rows(n), b=rows(n))])[0])["sum"][0][0]
            if found != 2 * n:
                wrong.append(found)

    with loaded(add_sub, instance_group=[{"count": 2}, {"count": 2}]) as model:
        assert model.slots == 4
        threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_the_runtime_is_found_by_its_name(add_sub: Path) -> None:
    model = open_runtime("onnx").load(spec({1: add_sub}, {}))
    assert (model.max_batch, model.batches, model.slots, model.max_delay_s, model.whole_process) == (0, False, 1, 0.0, False)
    model.close()


def test_integers_as_indices(tmp_path: Path) -> None:
    path = models.identity(tmp_path / "model.onnx", INT64, shape=[])
    with loaded(path) as model:
        assert arrays(model.execute(1, [request(x=np.array(3))])[0]) == {"y": 3}
