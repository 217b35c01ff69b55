"""A repository with a model of every sort: data types, versions, batches, Python, and entries that cannot be served."""

from __future__ import annotations

from pathlib import Path

import onnx

from modelpool.testing.models import add_sub, busy, identity, python_model, scale, write_config

ONNX_TYPES = {
    "BOOL": "BOOL",
    "UINT8": "UINT8",
    "UINT16": "UINT16",
    "UINT32": "UINT32",
    "UINT64": "UINT64",
    "INT8": "INT8",
    "INT16": "INT16",
    "INT32": "INT32",
    "INT64": "INT64",
    "FP16": "FLOAT16",
    "FP32": "FLOAT",
    "FP64": "DOUBLE",
    "BF16": "BFLOAT16",
    "BYTES": "STRING",
}
"""The protocol's data types and ONNX's names for them: model `same-FP16` gives back what it gets."""

_ADD_SUB_CONFIG = """
    max_batch_size: {batch}
    input [ {{ name: "a" data_type: TYPE_FP32 dims: [ 4 ] }}, {{ name: "b" data_type: TYPE_FP32 dims: [ 4 ] }} ]
    output [ {{ name: "sum" data_type: TYPE_FP32 dims: [ 4 ] }}, {{ name: "difference" data_type: TYPE_FP32 dims: [ 4 ] }} ]
    {more}
"""

_PYTHON_ADD_SUB = """
    import json

    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def initialize(self, args):
            config = json.loads(args["model_config"])
            types = [pb_utils.get_output_config_by_name(config, name)["data_type"] for name in ("sum", "difference")]
            self.types = [pb_utils.triton_string_to_numpy(one) for one in types]

        def execute(self, requests):
            responses = []
            for request in requests:
                a, b = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in "ab")
                total = pb_utils.Tensor("sum", (a + b).astype(self.types[0]))
                difference = pb_utils.Tensor("difference", (a - b).astype(self.types[1]))
                responses.append(pb_utils.InferenceResponse([total, difference]))
            return responses
"""

_PYTHON_RAISING = """
    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
                if x[0] < 0:
                    raise ValueError("negative numbers are not for me")
                if x[0] == 0:
                    responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("zero is not for me")))
                else:
                    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x * np.float32(2))]))
            return responses
"""

_PYTHON_TEXT = """
    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                words = pb_utils.get_input_tensor_by_name(request, "words").as_numpy()
                upper = np.array([word.decode().upper().encode() for word in words.ravel()], np.object_).reshape(words.shape)
                lengths = np.array([len(word) for word in words.ravel()], np.int32).reshape(words.shape)
                outputs = [pb_utils.Tensor("upper", upper), pb_utils.Tensor("lengths", lengths)]
                responses.append(pb_utils.InferenceResponse(outputs, parameters={"words": words.size, "text": "é", "cut": False}))
            return responses
"""

_PYTHON_SLOW = """
    import time
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def initialize(self, args):
            time.sleep({load_s})

        def execute(self, requests):
            tensors = [pb_utils.get_input_tensor_by_name(request, "x") for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", tensor.as_numpy())]) for tensor in tensors]
"""

_X_TO_Y = """
    backend: "python"
    input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
    output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def onnx_add_sub(folder: Path, *, batch: int = 64, more: str = "dynamic_batching { }") -> None:
    """`a`, `b` FP32 [4] -> `sum`, `difference`; in batches, which run together."""
    write_config(folder, _ADD_SUB_CONFIG.format(batch=batch, more=more))
    add_sub(folder / "1" / "model.onnx", batching=batch > 0)


def python_add_sub(folder: Path) -> None:
    """The same, written in Python for Triton."""
    write_config(folder, _ADD_SUB_CONFIG.format(batch=0, more='backend: "python"'))
    python_model(folder, _PYTHON_ADD_SUB)


def python_raising(folder: Path) -> None:
    """`x` FP32 [-1] -> `y` = 2 x; raises for negative numbers, answers zero with an error of its own."""
    write_config(folder, _X_TO_Y)
    python_model(folder, _PYTHON_RAISING)


def python_text(folder: Path) -> None:
    """`words` BYTES [-1] -> `upper` BYTES [-1], `lengths` (in bytes) INT32 [-1]."""
    write_config(
        folder,
        """
        backend: "python"
        input [ { name: "words" data_type: TYPE_STRING dims: [ -1 ] } ]
        output [ { name: "upper" data_type: TYPE_STRING dims: [ -1 ] }, { name: "lengths" data_type: TYPE_INT32 dims: [ -1 ] } ]
        """,
    )
    python_model(folder, _PYTHON_TEXT)


def python_slow(folder: Path, *, load_s: float) -> None:
    """`x` FP32 [-1] -> `y` = x; takes `load_s` to load."""
    write_config(folder, _X_TO_Y)
    python_model(folder, _PYTHON_SLOW.replace("{load_s}", str(load_s)))


def versions(folder: Path, policy: str = "") -> None:
    """Versions 1, 2 and 10, which multiply with their number."""
    write_config(folder, f'backend: "onnxruntime"\n{policy}')
    for number in (1, 2, 10):
        scale(folder / str(number) / "model.onnx", float(number))


def build(folder: Path) -> Path:
    """The whole zoo."""
    folder.mkdir(parents=True, exist_ok=True)
    for datatype, name in ONNX_TYPES.items():
        identity(folder / f"same-{datatype}.onnx", getattr(onnx.TensorProto, name), shape=("n", "m") if datatype != "BYTES" else ("n",))
    onnx_add_sub(folder / "batched")
    onnx_add_sub(folder / "fixed", batch=4, more="")
    python_add_sub(folder / "python-add-sub")
    python_raising(folder / "python-raising")
    python_text(folder / "python-text")
    versions(folder / "newest")
    versions(folder / "all", "version_policy { all { } }")
    versions(folder / "some", "version_policy { specific { versions: [ 1, 2 ] } }")
    scale(folder / "triple.onnx", 3.0)
    scale(folder / "plain-folder" / "model.onnx", 5.0)
    scale(folder / "Größe 模型.onnx", 7.0)
    busy(folder / "busy.onnx")
    malformed(folder)
    return folder


def malformed(folder: Path) -> None:
    """Entries that cannot be served, each for a reason of its own."""
    (folder / "bad-text.onnx").write_bytes(b"this is not a model, but a sentence")
    whole = (folder / "triple.onnx").read_bytes()
    (folder / "bad-half.onnx").write_bytes(whole[: len(whole) // 2])
    (folder / "bad-empty.onnx").write_bytes(b"")
    (folder / "bad-folder").mkdir()
    write_config(folder / "bad-syntax", 'backend: "onnxruntime')
    write_config(folder / "bad-backend", 'backend: "tensorrt"')
    scale(folder / "bad-backend" / "1" / "model.onnx", 1.0)
    write_config(folder / "bad-ensemble", 'platform: "ensemble"')
    write_config(folder / "bad-tensor", 'backend: "onnxruntime"\ninput [ { name: "nobody" data_type: TYPE_FP32 dims: [ -1 ] } ]')
    scale(folder / "bad-tensor" / "1" / "model.onnx", 1.0)
    write_config(folder / "bad-version", 'backend: "onnxruntime"\nversion_policy { specific { versions: [ 7 ] } }')
    scale(folder / "bad-version" / "1" / "model.onnx", 1.0)
    scale(folder / "bad-residency.onnx", 1.0)
    (folder / "bad-residency.modelpool.yaml").write_text("pined: true\n")
