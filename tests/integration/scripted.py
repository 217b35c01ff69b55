"""Models that do at their load, their run and their end what a test tells them to: Python models with lines of their own, ONNX models that
obey a file.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modelpool.testing.models import python_model, write_config
from tests.integration.embedded import FAULTY
from tests.integration.running import until

PYTHON = """
import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

def wait_for(gate):
    open(gate + ".waiting", "w").close()
    while not os.path.exists(gate):
        time.sleep(0.002)

class TritonPythonModel:
    def initialize(self, args):
        {load}

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            {run}
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", (x * 2).astype(np.float32))]))
        return responses

    def finalize(self):
        {unload}
"""
CONFIG = """
backend: "python"
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def add_python(repository: Path, name: str, run: str = "pass", *, load: str = "pass", unload: str = "pass") -> None:
    """A Python model that doubles its input, with a line of its own for each step; `wait_for(path)` is a `Gate`'s other side."""
    write_config(repository / name, CONFIG)
    source = PYTHON
    for step, line in (("{load}", load), ("{run}", run), ("{unload}", unload)):
        source = source.replace(step, line)
    python_model(repository / name, source)


class Gate:
    """Where a model waits until the test lets it go on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def line(self) -> str:
        """What the model does to wait here."""
        return f"wait_for({str(self._path)!r})"

    def reached(self) -> None:
        """Wait until the model waits."""
        until(Path(f"{self._path}.waiting").exists, f"a model at the gate {self._path.name}")

    def open(self) -> None:
        """Let it go on, and all that come later."""
        self._path.touch()


class Orders:
    """What ONNX models in the workers of servers that are started from now on do besides: see `faulty/orders.py`.

    The model `worker` is every worker, its step `start` is before it listens.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        folder.mkdir()
        monkeypatch.setenv("TEST_ORDERS", str(folder))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (FAULTY, os.environ.get("PYTHONPATH")))))

    def die(self, model: str, step: str) -> None:
        """Its process ends at this step: `load` or `close`."""
        (self._folder / f"{model}.{step}").write_text("die")

    def wait(self, model: str, step: str) -> None:
        """It waits at this step until `relent`."""
        (self._folder / f"{model}.{step}").write_text("wait")

    def relent(self, model: str, step: str) -> None:
        """Nothing of the kind any more."""
        (self._folder / f"{model}.{step}").unlink()

    def waiting(self, model: str, step: str) -> set[int]:
        """Processes in which it came there and waited."""
        return {int(path.suffix[1:]) for path in self._folder.glob(f"{model}.{step}.waiting.*")}

    def reached(self, model: str, step: str) -> None:
        """Wait until it waits there."""
        until(lambda: self.waiting(model, step), f"the {step} of {model}")
