"""The ONNX runtime, whose models obey orders at their `load` and at their `close`."""

from __future__ import annotations

from orders import obey  # type: ignore[import-not-found]

from modelpool.protocol.messages import LoadSpec
from modelpool.runtimes.base import LoadedModel
from modelpool.runtimes.onnx import OnnxModel, OnnxRuntime


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
