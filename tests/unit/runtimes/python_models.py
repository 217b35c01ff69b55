"""Python models for tests: written into a folder and loaded from there."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from modelpool.errors import ModelpoolError
from modelpool.protocol.messages import LoadSpec, VersionSpec
from modelpool.runtimes.base import InferenceRequest, Outcome, Tensor
from modelpool.runtimes.python import PythonModel, PythonRuntime

Load = Callable[..., PythonModel]

HEAD = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils
"""

# Each answers the request's own rows, so that a mix-up between requests shows.
ADD_SUB = """
class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        sums = pb_utils.get_output_config_by_name(config, "SUM")
        self.dtype = pb_utils.triton_string_to_numpy(sums["data_type"])

    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "B").as_numpy()
            responses.append(pb_utils.InferenceResponse(output_tensors=[
                pb_utils.Tensor("SUM", (a + b).astype(self.dtype)),
                pb_utils.Tensor("DIFFERENCE", (a - b).astype(self.dtype)),
            ]))
        return responses

    def finalize(self):
        self.dtype = None
"""


def port(name: str, data_type: str = "TYPE_FP32", *dims: int | str, **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": list(dims or ("4",)), **more}


def add_sub_config(**more: Any) -> dict[str, Any]:
    return {"input": [port("A"), port("B")], "output": [port("SUM"), port("DIFFERENCE")], **more}


def in_out_config(data_type: str = "TYPE_FP32", *dims: int, **more: Any) -> dict[str, Any]:
    return {"input": [port("IN", data_type, *(dims or (-1,)))], "output": [port("OUT", data_type, *(dims or (-1,)))], **more}


def write(folder: Path, version: int, code: str, filename: str = "model.py") -> None:
    (folder / str(version)).mkdir(parents=True, exist_ok=True)
    (folder / str(version) / filename).write_text(HEAD + textwrap.dedent(code))


def spec(folder: Path, config: dict[str, Any], versions: tuple[int, ...] = (1,), device: str = "cpu") -> LoadSpec:
    return LoadSpec(
        copy=1,
        model="m",
        revision="r",
        runtime="python",
        device=device,
        model_dir=str(folder),
        versions=tuple(VersionSpec(version, str(folder / str(version))) for version in versions),
        default_version=max(versions, default=0),
        config=config,
    )


@contextmanager
def loaded(folder: Path, code: str | None, config: dict[str, Any], **more: Any) -> Iterator[PythonModel]:
    """The model with that code as version 1 (None: its files are there already); closed at the end."""
    if code is not None:
        write(folder, 1, code)
    model = PythonRuntime().load(spec(folder, config, **more))
    assert isinstance(model, PythonModel)
    try:
        yield model
    finally:
        model.close()


def request(wanted: tuple[str, ...] = (), parameters: dict[str, Any] | None = None, ident: str = "", **inputs: Any) -> InferenceRequest:
    """A request of version 1; arrays tell their data type themselves."""
    tensors = {name: value if isinstance(value, Tensor) else Tensor(_datatype(value), np.asarray(value)) for name, value in inputs.items()}
    return InferenceRequest(1, tensors, wanted, parameters or {}, ident)


_DATATYPES = {"object": "BYTES", "float32": "FP32", "float16": "FP16", "int64": "INT64", "int32": "INT32", "bool": "BOOL"}


def _datatype(array: Any) -> str:
    return _DATATYPES[np.asarray(array).dtype.name]


def answer(outcome: Outcome) -> dict[str, Any]:
    """The arrays of an outcome that must not be an error."""
    assert not isinstance(outcome, ModelpoolError), outcome
    return {name: tensor.array for name, tensor in outcome.items()}


def run(model: PythonModel, **inputs: Any) -> Outcome:
    """One request alone."""
    return model.execute(1, [request(**inputs)])[0]
