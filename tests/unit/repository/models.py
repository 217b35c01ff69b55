"""Small ONNX models and repositories for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def matmul(size: int = 4, *, weight_as_input: bool = False) -> onnx.ModelProto:
    """y = x w with w an identity of that size."""
    weight = numpy_helper.from_array(np.eye(size, dtype=np.float32), "w")
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", size])]
    if weight_as_input:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [size, size]))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", size])]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", inputs, outputs, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def write_onnx(path: Path, size: int = 4) -> Path:
    """A model file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(matmul(size).SerializeToString())
    return path


def write_external(path: Path, size: int = 300, location: str = "weights.bin") -> Path:
    """A model whose weights lie in a file beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(matmul(size), str(path), save_as_external_data=True, location=location, size_threshold=0)
    return path


def write_text(path: Path, text: str) -> Path:
    """A text file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
