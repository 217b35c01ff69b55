"""The ONNX runtime, whose models obey a file at their load and at their close: `MODEL.load` or `MODEL.close` in the folder that
TEST_ORDERS names, with the word `die` or `wait` (until the file is gone).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from modelpool.protocol.messages import LoadSpec
from modelpool.runtimes.base import LoadedModel
from modelpool.runtimes.onnx import OnnxModel, OnnxRuntime


def obey(model: str, step: str) -> None:
    """Do what is said there."""
    order = Path(os.environ["TEST_ORDERS"], f"{model}.{step}")
    with contextlib.suppress(FileNotFoundError):
        while True:
            if order.read_text() == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            Path(f"{order}.waiting").touch()
            time.sleep(0.002)


class ObeyingModel(OnnxModel):
    """An ONNX model that obeys before it goes."""

    def close(self) -> None:
        obey(self._model, "close")
        super().close()


class ObeyingRuntime(OnnxRuntime):
    """Loads ONNX models that obey."""

    def load(self, spec: LoadSpec) -> LoadedModel:
        obey(spec.model, "load")
        return ObeyingModel(spec)
