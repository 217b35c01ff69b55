"""Models of backends that only Triton servers have: their folders, as far as they are looked at here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modelpool.errors import MalformedModel
from modelpool.repository import ensembles, triton_config

_BACKENDS = {"tensorrt_plan": "tensorrt", "pytorch_libtorch": "pytorch", "tensorflow_graphdef": "tensorflow"}
_BACKENDS["tensorflow_savedmodel"] = "tensorflow"


def backend_of(config: dict[str, Any]) -> str | None:
    """The backend where it is one that the workers of this package do not have; None where they have it, or the files decide."""
    if ensembles.is_ensemble(config):
        return ensembles.RUNTIME
    backend = str(config.get("backend") or _BACKENDS.get(config.get("platform", ""), config.get("platform", "")))
    if not backend or backend in ("onnxruntime", "onnxruntime_onnx", "python"):
        return None
    return backend


def versions_of(folder: Path, config: dict[str, Any], numbers: list[int]) -> dict[int, Path]:
    """The version folders that the policy selects; what must be in them only their backend knows. Raises MalformedModel."""
    if not numbers:
        raise MalformedModel(f"there is no version folder; put the model at {folder.name}/1")
    return {number: folder / str(number) for number in triton_config.select_versions(config, numbers)}
