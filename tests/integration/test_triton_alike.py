"""One repository of Python models, served by Triton and by workers of our own: the same answers, also side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as tritonhttp

from modelpool.testing.models import python_model, scale, write_config
from modelpool.testing.triton import command, running_triton
from tests.integration.running import RunningServer, running
from tests.integration.tritonpool import needs_triton, scale_model

pytestmark = needs_triton

_TYPES = ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "UINT64", "FP16", "FP32", "FP64", "BYTES")

_SAME = """
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
            return responses
"""


def values(kind: str) -> np.ndarray[Any, Any]:
    if kind == "BYTES":
        return np.array([[b"a", "\u00e9\u4e2d".encode()], [b"", b"\x00\xff"]], dtype=np.object_)
    if kind == "BOOL":
        return np.array([[True, False], [False, True]])
    number = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}.get(kind) or getattr(np, kind.lower())
    return np.array([[0, 1], [2, 100]], dtype=number)


def build(models: Path) -> None:
    for kind in _TYPES:
        proto = "STRING" if kind == "BYTES" else kind
        python_model(models / f"same-{kind}", _SAME)
        tensor = f"data_type: TYPE_{proto} dims: [ -1, -1 ]"
        write_config(models / f"same-{kind}", f'backend: "python"\ninput [ {{ name: "x" {tensor} }} ]\noutput [ {{ name: "y" {tensor} }} ]')
        (models / f"same-{kind}" / "modelpool.yaml").write_text("size: 40MiB\n")
    scale_model(models, "m2", 2.0)


def answers(server: RunningServer) -> dict[str, Any]:
    """What each model answers, in binary and in JSON, and what it says of what it cannot do."""
    found: dict[str, Any] = {}
    client = tritonhttp.InferenceServerClient(server.about["url"].removeprefix("http://"), network_timeout=50)
    for kind in _TYPES:
        value = values(kind)
        for binary in (True, False):
            if (kind, binary) in (("FP16", False), ("BYTES", False)):
                continue  # JSON has no half-precision numbers for Triton, and no bytes
            x = tritonhttp.InferInput("x", list(value.shape), kind)
            x.set_data_from_numpy(value, binary_data=binary)
            output = tritonhttp.InferRequestedOutput("y", binary_data=binary)
            answer = client.infer(f"same-{kind}", [x], outputs=[output], request_id="7")
            assert np.array_equal(answer.as_numpy("y"), value)
            found[f"{kind} {binary}"] = answer.get_response(), answer.as_numpy("y").dtype
    client.close()
    found["m2"] = server.infer("m2", 4.0).json()
    found["raised"] = server.infer("m2", -2.0).status_code
    return found


def test_triton_and_our_workers_give_the_same_answers(tmp_path: Path) -> None:
    build(tmp_path / "models")
    with (
        running_triton(tmp_path / "models", tmp_path / "triton") as triton,
        running(tmp_path / "models", tmp_path / "a", "--triton", triton.address, "--device", "cpu=2GiB") as over_triton,
        running(tmp_path / "models", tmp_path / "b", "--device", "cpu=2GiB") as over_workers,
    ):
        assert answers(over_triton) == answers(over_workers)


def test_models_go_to_the_instance_that_can_run_them(tmp_path: Path) -> None:
    scale_model(tmp_path / "models", "python", 2.0)
    scale(tmp_path / "models" / "onnx.onnx", 3.0)
    budgets = ("--device", "local/cpu=100MiB", "--device", "triton0/cpu=100MiB")
    with running(tmp_path / "models", tmp_path / "state", "--triton-command", command(), *budgets) as pool:
        assert pool.value("onnx", 2.0) == 6.0
        assert pool.value("python", 2.0) == 4.0
        where = {entry["model_name"]: entry["instance"] for entry in pool.client.get("/models").json()["models"]}
        assert where["onnx"] == "local"
        moved = {"local": "triton0", "triton0": "local"}[where["python"]]
        assert pool.client.delete("/models", params={"model_name": "python"}).status_code == 200
        asked = pool.client.post("/models", json={"model_name": "python", "model_device": f"{moved}/cpu"})
        where = {entry["model_name"]: entry["instance"] for entry in pool.client.get("/models").json()["models"]}
        assert where["python"] == moved, asked.text
        assert pool.value("python", 2.0) == 4.0
