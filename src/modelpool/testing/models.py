"""ONNX and Python models made on the spot: small, deterministic, each with weights of its own.

They need the `onnx` package (extra `demo`). All functions that take `path` write a file there, create its folder, and return the path.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8
"""An older file format, so that the oldest supported onnxruntime reads it too."""

_FLOAT = TensorProto.FLOAT


def dense(path: Path, *, weight_bytes: int, layers: int = 2, seed: int = 0) -> Path:
    """A chain of dense layers that weighs about `weight_bytes`: `x` FP32 [-1, width] -> `y` FP32 [-1, width], values within -1 to 1.

    width follows from the size: see `dense_width`. Different seeds give different weights.
    """
    width = dense_width(weight_bytes, layers)
    rng = np.random.default_rng(seed)
    nodes, weights, value = [], [], "x"
    for layer in range(layers):
        matrix = rng.standard_normal((width, width), dtype=np.float32) * np.float32(1.5 / width**0.5)
        weights.append(numpy_helper.from_array(matrix, f"w{layer}"))
        result = "y" if layer == layers - 1 else f"h{layer}"
        nodes.append(helper.make_node("MatMul", [value, f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Tanh", [f"m{layer}"], [result]))
        value = result
    return _write(path, nodes, [("x", _FLOAT, ["batch", width])], [("y", _FLOAT, ["batch", width])], weights)


def dense_width(weight_bytes: int, layers: int = 2) -> int:
    """Width of the model that `dense` makes of this size."""
    width: float = (weight_bytes / 4 / layers) ** 0.5
    return max(4, round(width))


def add_sub(path: Path, *, batching: bool = True, width: int = 4) -> Path:
    """`a`, `b` -> `sum`, `difference`: FP32 [-1, width] (without batching [width])."""
    shape: list[int | str] = ["batch", width] if batching else [width]
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["difference"])]
    inputs = [(name, _FLOAT, shape) for name in ("a", "b")]
    return _write(path, nodes, inputs, [(name, _FLOAT, shape) for name in ("sum", "difference")])


def scale(path: Path, factor: float) -> Path:
    """`x` -> `y` = x * factor, FP32 [-1]: tells versions and models apart."""
    nodes = [helper.make_node("Mul", ["x", "factor"], ["y"])]
    weights = [numpy_helper.from_array(np.array(factor, np.float32), "factor")]
    return _write(path, nodes, [("x", _FLOAT, ["n"])], [("y", _FLOAT, ["n"])], weights)


def identity(path: Path, tensor_type: int = _FLOAT, *, shape: Sequence[int | str] = ("n",)) -> Path:
    """`x` -> `y` = x of any ONNX type (`onnx.TensorProto.INT64`, ..)."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return _write(path, nodes, [("x", tensor_type, list(shape))], [("y", tensor_type, list(shape))])


def busy(path: Path, *, width: int = 256, seed: int = 0) -> Path:
    """A model that takes as long as it is told: `x` FP32 [width], `rounds` INT64 [] -> `y` FP32 [width].

    Each round multiplies with a width x width matrix (some 10 us at 256).
    """
    matrix = np.random.default_rng(seed).standard_normal((width, width), dtype=np.float32) / np.float32(width**0.5)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["goes_on"]),
            helper.make_node("MatMul", ["carried", "w"], ["product"]),
            helper.make_node("Tanh", ["product"], ["next"]),
        ],
        "round",
        [_info("round", TensorProto.INT64, []), _info("going", TensorProto.BOOL, []), _info("carried", _FLOAT, [width])],
        [_info("goes_on", TensorProto.BOOL, []), _info("next", _FLOAT, [width])],
    )
    nodes = [helper.make_node("Loop", ["rounds", "", "x"], ["y"], body=body)]
    inputs = [("x", _FLOAT, [width]), ("rounds", TensorProto.INT64, [])]
    return _write(path, nodes, inputs, [("y", _FLOAT, [width])], [numpy_helper.from_array(matrix, "w")])


def python_model(model_dir: Path, source: str, *, version: int = 1) -> Path:
    """Write `source` (dedented) as a Triton Python model's `model.py`; returns its path."""
    path = model_dir / str(version) / "model.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path


def write_config(model_dir: Path, text: str) -> Path:
    """Write `text` (dedented) as the model's `config.pbtxt`; returns its path."""
    path = model_dir / "config.pbtxt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).strip() + "\n", encoding="utf-8")
    return path


_Tensor = tuple[str, int, Sequence[int | str]]


def _info(name: str, tensor_type: int, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, tensor_type, shape)


def _write(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[_Tensor],
    outputs: Sequence[_Tensor],
    weights: Sequence[onnx.TensorProto] = (),
) -> Path:
    graph = helper.make_graph(nodes, path.stem, [_info(*one) for one in inputs], [_info(*one) for one in outputs], weights)
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], producer_name="modelpool", ir_version=IR_VERSION)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path
