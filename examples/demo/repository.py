"""The demo's model repository: seven real models and 35 made ones, in all the layouts that the server reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.demo import wheels
from modelpool.testing.models import dense, dense_width, write_config

MADE = 35
SMALLEST_MB, LARGEST_MB = 18.0, 40.0
LAYERS = 3
BATCH = 16
_EDITION = 2  # raise it when what is built changes, so that a repository of before is built anew


@dataclass(frozen=True, slots=True)
class DemoModel:
    """A model of the demo. file: its .onnx file, for the direct check; width: of a made model's input, 0 for a real one."""

    name: str
    file: Path
    width: int = 0

    @property
    def file_bytes(self) -> int:
        """Size of its file."""
        return self.file.stat().st_size


def build(folder: Path, real: Mapping[str, Path]) -> list[DemoModel]:
    """Build the repository in `folder` (kept if it is there and complete) and return its models."""
    stamp = folder.parent / f"{folder.name}.json"
    edition = [_EDITION, MADE, SMALLEST_MB, LARGEST_MB, LAYERS, sorted(real)]
    complete = stamp.exists() and json.loads(stamp.read_text()) == edition
    if not complete:
        print(f"building {MADE} models of {SMALLEST_MB:.0f} to {LARGEST_MB:.0f} MB")
        stamp.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    models = [_real(folder, name, real[name]) for name in wheels.MODELS]
    sizes = np.random.default_rng(1).permutation(np.geomspace(SMALLEST_MB, LARGEST_MB, MADE))
    models += [_made(folder, index, int(size * 1e6)) for index, size in enumerate(sizes)]
    stamp.write_text(json.dumps(edition))
    return models


# name -> (where its file lies, its config.pbtxt): Triton's layout with and without a config, a folder, a single file.
_LAYOUTS: dict[str, tuple[str, str]] = {
    "magika": (
        "magika/1/model.onnx",
        """
        platform: "onnxruntime_onnx"
        max_batch_size: 16
        input [ { name: "bytes" data_type: TYPE_INT32 dims: [ 2048 ] } ]
        output [ { name: "target_label" data_type: TYPE_FP32 dims: [ 214 ] } ]
        """,
    ),
    "silero_vad": ("silero_vad/model.onnx", ""),
    "ocr_det": ("ocr_det.onnx", ""),
    "ocr_rec": ("ocr_rec/1/model.onnx", ""),
    "ocr_cls": ("ocr_cls/model.onnx", ""),
    "nudenet": ("nudenet.onnx", ""),
    "minimol": (
        "minimol/3/model.onnx",
        """
        backend: "onnxruntime"
        version_policy: { latest: { num_versions: 1 } }
        """,
    ),
}


def _real(folder: Path, name: str, source: Path) -> DemoModel:
    place, config = _LAYOUTS[name]
    path = folder / place
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
        if config:
            write_config(folder / name, config)
    return DemoModel(name, path)


def _made(folder: Path, index: int, weight_bytes: int) -> DemoModel:
    name = f"dense_{index:02d}"
    width = dense_width(weight_bytes, LAYERS)
    path = folder / (f"{name}/1/model.onnx", f"{name}/model.onnx", f"{name}.onnx")[index % 3]
    if not path.exists():
        if index % 3 == 0:
            write_config(folder / name, _batching_config(width))
        dense(path, weight_bytes=weight_bytes, layers=LAYERS, seed=index)
    return DemoModel(name, path, width)


def _batching_config(width: int) -> str:
    return f"""
        platform: "onnxruntime_onnx"
        max_batch_size: {BATCH}
        input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {width} ] }} ]
        output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {width} ] }} ]
        dynamic_batching {{ }}
        """
