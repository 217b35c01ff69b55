"""The repository that the gateway's integration tests serve."""

from __future__ import annotations

from pathlib import Path

import onnx

from modelpool.testing.models import add_sub, identity, scale, write_config


def build(folder: Path) -> Path:
    """Small models of all sorts, and two that cannot be served."""
    folder.mkdir()
    write_config(
        folder / "tiny",
        """
        platform: "onnxruntime_onnx"
        max_batch_size: 64
        input [ { name: "a" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "b" data_type: TYPE_FP32 dims: [ 4 ] } ]
        output [ { name: "sum" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "difference" data_type: TYPE_FP32 dims: [ 4 ] } ]
        dynamic_batching { }
        """,
    )
    add_sub(folder / "tiny" / "1" / "model.onnx")
    scale(folder / "triple.onnx", 3.0)
    scale(folder / "two words+plus.onnx", 2.0)
    for name in ("FLOAT", "FLOAT16", "DOUBLE", "INT8", "INT64", "UINT8", "BOOL", "STRING"):
        identity(folder / f"same-{name}.onnx", getattr(onnx.TensorProto, name))
    (folder / "cut.onnx").write_bytes((folder / "triple.onnx").read_bytes()[:40])
    write_config(folder / "malformed", 'platform: "nonsense')
    return folder
