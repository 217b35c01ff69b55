"""modelpool over real Triton servers: small Python models that tell each other apart, and the servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelpool.testing.models import python_model, write_config
from modelpool.testing.triton import unavailable

needs_triton = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

CONFIG = """
    backend: "python"
    input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
    output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""

_SCALE = """
    import os
    import time

    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
                if x[0] == -1:
                    os._exit(3)
                if x[0] == -2:
                    raise ValueError("it was asked to")
                if x[0] == -3:
                    time.sleep(30)
                y = (x * {factor}).astype(np.float32)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
            return responses
"""


def scale_model(models: Path, name: str, factor: float, size: str | None = "48MiB") -> None:
    """A Python model: y = x * factor; -1 ends its process, -2 raises, -3 takes long. size: what the user says it takes (None: nothing)."""
    python_model(models / name, _SCALE.format(factor=float(factor)))
    write_config(models / name, CONFIG)
    if size is not None:
        (models / name / "modelpool.yaml").write_text(f"size: {size}\n")


def clinging_model(models: Path, name: str, factor: float, finalize_s: float) -> None:
    """A model as `scale_model` makes it, whose unload takes so long."""
    scale_model(models, name, factor)
    source = _SCALE.format(factor=float(factor)) + f"\n        def finalize(self):\n            time.sleep({finalize_s})\n"
    python_model(models / name, source)


def broken_model(models: Path, name: str) -> None:
    """A Python model whose load fails."""
    python_model(models / name, 'raise RuntimeError("no good")\n')
    write_config(models / name, CONFIG)
