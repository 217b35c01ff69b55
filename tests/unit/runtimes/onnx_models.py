"""ONNX models for tests, loaded through the runtime."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from modelpool.errors import ModelpoolError
from modelpool.protocol.messages import LoadSpec, VersionSpec
from modelpool.protocol.tensors import InferenceRequest, Tensor
from modelpool.runtimes.base import Outcome
from modelpool.runtimes.onnx import OnnxModel, OnnxRuntime

Value = tuple[str, int, Sequence[int | str] | None]

FLOAT = onnx.TensorProto.FLOAT
INT64 = onnx.TensorProto.INT64


def write(
    path: Path, nodes: Sequence[onnx.NodeProto], inputs: Sequence[Value], outputs: Sequence[Value], weights: Sequence[onnx.TensorProto] = ()
) -> Path:
    """Any graph as a file."""
    values = [[helper.make_tensor_value_info(*value) for value in side] for side in (inputs, outputs)]
    graph = helper.make_graph(nodes, "g", *values, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opsets), path)
    return path


def gather(path: Path) -> Path:
    """`table`[n, 4], `at` INT64[n] -> `row`[n, 4] = table[at]: a request may name a row that is not there."""
    nodes = [helper.make_node("Gather", ["table", "at"], ["row"])]
    return write(path, nodes, [("table", FLOAT, ["n", 4]), ("at", INT64, ["m"])], [("row", FLOAT, ["m", 4])])


def total(path: Path) -> Path:
    """`x`[n, 4] -> `sum`[]: no batch dimension comes out."""
    nodes = [helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0)]
    return write(path, nodes, [("x", FLOAT, ["n", 4])], [("sum", FLOAT, [])])


def port(name: str, data_type: str, *dims: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": list(dims), **more}


def spec(paths: dict[int, Path], config: dict[str, Any], device: str = "cpu") -> LoadSpec:
    return LoadSpec(
        copy=1,
        model="m",
        revision="r",
        runtime="onnx",
        device=device,
        model_dir=str(next(iter(paths.values())).parent),
        versions=tuple(VersionSpec(version, str(path)) for version, path in paths.items()),
        default_version=max(paths),
        config=config,
    )


@contextmanager
def loaded(paths: dict[int, Path] | Path, **config: Any) -> Iterator[OnnxModel]:
    """The model with that configuration; closed at the end."""
    model = OnnxRuntime().load(spec(paths if isinstance(paths, dict) else {1: paths}, config))
    assert isinstance(model, OnnxModel)
    try:
        yield model
    finally:
        model.close()


def request(*wanted: str, **inputs: Any) -> InferenceRequest:
    """Arrays tell their data type themselves."""
    names = {"float32": "FP32", "int64": "INT64", "float64": "FP64"}
    tensors = {name: value if isinstance(value, Tensor) else Tensor(names[value.dtype.name], value) for name, value in inputs.items()}
    return InferenceRequest(1, tensors, wanted)


def rows(*values: float, width: int = 4) -> np.ndarray:
    """FP32, one row for each value."""
    return np.repeat(np.array(values, np.float32)[:, None], width, axis=1)


def arrays(outcome: Outcome) -> dict[str, Any]:
    """The outputs of an outcome that must not be an error, as lists."""
    assert not isinstance(outcome, ModelpoolError), outcome
    return {name: tensor.array.tolist() for name, tensor in outcome.items()}


def fault(outcome: Outcome) -> ModelpoolError:
    """The error of an outcome that must be one."""
    assert isinstance(outcome, ModelpoolError), outcome
    return outcome
