"""Inputs for the models, a new one for each request: real files, sound, drawn images, graphs of molecules, random rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from examples.demo.repository import DemoModel

Arrays = dict[str, NDArray[Any]]
Random = np.random.Generator


@dataclass(frozen=True, slots=True)
class Input:
    """Tensors for one request; expected: what a right answer should mean, where that is known (a label, a text)."""

    tensors: Arrays
    expected: str | None = None


class Inputs:
    """Makes inputs for one client, which sends one request after the other."""

    def __init__(self, models: Sequence[DemoModel], magika_config: Path, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._widths = {model.name: model.width for model in models}
        self._voice = Voice()
        self._files = Files(magika_config)
        self._real: Mapping[str, Callable[[Random], Input]] = {
            "magika": self._files.next,
            "silero_vad": self._voice.next,
            "ocr_det": text_page,
            "ocr_rec": text_line,
            "ocr_cls": turned_line,
            "nudenet": picture,
            "minimol": molecule,
        }

    def next(self, model: str) -> Input:
        """An input that was not used before."""
        make = self._real.get(model)
        if make is not None:
            return make(self._rng)
        rows = int(self._rng.integers(1, 4))
        return Input({"x": self._rng.standard_normal((rows, self._widths[model]), dtype=np.float32)})

    def answered(self, model: str, outputs: Arrays) -> None:
        """The answer came; what carries state takes it from there."""
        if model == "silero_vad":
            self._voice.state = outputs["stateN"]


# --- files ---------------------------------------------------------------------------------------------------------------------------
_LABELS = {".py": "python", ".pyi": "python", ".pyc": "pythonbytecode", ".so": "elf", ".json": "json", ".png": "png", ".toml": "toml"}
_LEAST_BYTES = 1024


@cache
def _some_files() -> tuple[Path, ...]:
    """Files of this environment and this project whose type their name tells, the same number of each type at most."""
    by_label: dict[str, list[Path]] = {}
    for root in (Path.cwd() / "src", Path(sys.prefix)):
        for path in sorted(root.rglob("*")):
            label = _LABELS.get(path.suffix)
            if label is not None and path.is_file() and path.stat().st_size >= _LEAST_BYTES:
                by_label.setdefault(label, []).append(path)
    return tuple(path for paths in by_label.values() for path in paths[:400])


def prepare() -> None:
    """Do what takes long before the first request: look for files."""
    _some_files()


class Files:
    """Real files as the file-type model sees them: their first and last bytes without white space around them."""

    def __init__(self, config: Path) -> None:
        sizes = json.loads(config.read_text())
        self._first, self._last = int(sizes["beg_size"]), int(sizes["end_size"])
        self._block, self._padding = int(sizes["block_size"]), int(sizes["padding_token"])

    def next(self, rng: Random) -> Input:
        """A file, and the label that its suffix promises."""
        files = _some_files()
        path = files[int(rng.integers(len(files)))]
        with path.open("rb") as file:
            first = file.read(self._block).lstrip()[: self._first]
            file.seek(max(0, path.stat().st_size - self._block))
            last = file.read(self._block).rstrip()[-self._last :]
        row = np.full(self._first + self._last, self._padding, np.int32)
        row[: len(first)] = np.frombuffer(first, np.uint8)
        row[len(row) - len(last) :] = np.frombuffer(last, np.uint8)
        return Input({"bytes": row[None]}, _LABELS[path.suffix])


# --- sound ---------------------------------------------------------------------------------------------------------------------------
RATE, CHUNK, CONTEXT = 16_000, 512, 64
_FORMANTS = ((700.0, 1200.0, 2500.0), (300.0, 2300.0, 3000.0), (450.0, 800.0, 2600.0), (600.0, 1700.0, 2400.0))  # of a few vowels


class Voice:
    """A sound that goes on from request to request: a second of synthetic syllables, a second of near silence, and so on.

    state: the detector's own, from its last answer.
    """

    def __init__(self) -> None:
        self.state = np.zeros((2, 1, 128), np.float32)
        self._samples = np.zeros(CONTEXT, np.float32)
        self._at = 0

    def next(self, rng: Random) -> Input:
        """The next 32 ms, with the end of what was before."""
        if len(self._samples) < CONTEXT + CHUNK:
            spoken = syllables(rng) if self._at % 2 == 0 else rng.standard_normal(RATE) * 1e-3
            self._samples = np.concatenate([self._samples, spoken.astype(np.float32)])
            self._at += 1
        window, self._samples = self._samples[: CONTEXT + CHUNK], self._samples[CHUNK:]
        return Input({"input": window[None], "state": self.state, "sr": np.array(RATE, np.int64)})


def syllables(rng: Random) -> NDArray[np.float64]:
    """A second of four syllables: a buzz with harmonics, shaped by the formants of a vowel."""
    t = np.arange(RATE) / RATE
    pitch_hz = rng.uniform(100, 180) * (1 + 0.05 * np.sin(2 * np.pi * 3 * t))
    phase = 2 * np.pi * np.cumsum(pitch_hz) / RATE
    sound = np.zeros(RATE)
    for part in range(4):
        span = slice(part * RATE // 4, (part + 1) * RATE // 4)
        formants = np.array(_FORMANTS[int(rng.integers(len(_FORMANTS)))])
        for harmonic in range(1, 30):
            strength = np.exp(-(((harmonic * pitch_hz[span][0] - formants) / 150) ** 2)).sum() + 0.02
            sound[span] += strength / harmonic**0.5 * np.sin(harmonic * phase[span])
        sound[span] *= np.hanning(RATE // 4) ** 0.5
    return np.asarray(0.3 * sound / np.abs(sound).max() + rng.standard_normal(RATE) * 1e-3)


# --- images --------------------------------------------------------------------------------------------------------------------------
_WORDS = ("memory", "model", "loaded", "budget", "worker", "request", "answer", "evict", "tensor", "server", "queue", "lease")


def _words(rng: Random, count: int) -> str:
    return " ".join(rng.choice(_WORDS, count))


def _as_tensor(image: Image.Image, *, centred: bool) -> NDArray[np.float32]:
    """[1, 3, height, width], values 0 to 1, or -1 to 1 where centred."""
    values = np.asarray(image, np.float32).transpose(2, 0, 1)[None] / 255
    return np.ascontiguousarray(values * 2 - 1 if centred else values)


def _line(rng: Random, width: int) -> tuple[Image.Image, str]:
    """A word or two and a number, dark on light, 48 pixels high."""
    text = f"{_words(rng, 1)} {int(rng.integers(10, 1000))}"
    image = Image.new("RGB", (width, 48), tuple(int(v) for v in rng.integers(200, 256, 3)))
    draw = ImageDraw.Draw(image)
    ink = tuple(int(v) for v in rng.integers(0, 80, 3))
    draw.text((int(rng.integers(4, 10)), 4), text, fill=ink, font=ImageFont.load_default(size=30))
    return image, text


def text_page(rng: Random) -> Input:
    """An image with lines of text, for the text detector."""
    image = Image.new("RGB", (192, 128), tuple(int(v) for v in rng.integers(180, 256, 3)))
    draw = ImageDraw.Draw(image)
    for row in range(3):
        place = (int(rng.integers(4, 40)), 6 + 40 * row)
        draw.text(place, _words(rng, 2), fill=tuple(int(v) for v in rng.integers(0, 90, 3)), font=ImageFont.load_default(size=20))
    return Input({"x": _as_tensor(image, centred=True)}, "text")


def text_line(rng: Random) -> Input:
    """A line of text, for the text recogniser, and what it says."""
    image, text = _line(rng, 256)
    return Input({"x": _as_tensor(image, centred=True)}, text)


def turned_line(rng: Random) -> Input:
    """A line of text, upright or upside down."""
    image, _ = _line(rng, 192)
    turned = bool(rng.integers(2))
    return Input({"x": _as_tensor(image.rotate(180) if turned else image, centred=True)}, "180" if turned else "0")


def picture(rng: Random) -> Input:
    """Shapes in colours, with something like a face, for the object detector."""
    image = Image.new("RGB", (192, 192), tuple(int(v) for v in rng.integers(0, 256, 3)))
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        x, y, w, h = (int(v) for v in rng.integers(10, 120, 4))
        draw.ellipse((x, y, x + w, y + h), fill=tuple(int(v) for v in rng.integers(0, 256, 3)))
    x, y = (int(v) for v in rng.integers(10, 80, 2))
    draw.ellipse((x, y, x + 90, y + 120), fill=(225, 180, 150))
    for dx in (25, 58):
        draw.ellipse((x + dx, y + 40, x + dx + 12, y + 48), fill=(40, 30, 30))
    draw.arc((x + 28, y + 70, x + 64, y + 100), 10, 170, fill=(150, 60, 60), width=4)
    return Input({"images": _as_tensor(image, centred=False)})


# --- molecules -----------------------------------------------------------------------------------------------------------------------
def molecule(rng: Random) -> Input:
    """The graph of a made-up molecule, a ring with side chains: positions are computed from the graph, atom and bond features drawn."""
    ring = int(rng.integers(5, 8))
    atoms = ring + int(rng.integers(3, 14))
    bonds = [(i, (i + 1) % ring) for i in range(ring)] + [(i, int(rng.integers(i))) for i in range(ring, atoms)]
    adjacency = np.zeros((atoms, atoms))
    for a, b in bonds:
        adjacency[a, b] = adjacency[b, a] = 1
    degree = adjacency.sum(axis=1)
    values, vectors = np.linalg.eigh(np.diag(degree) - adjacency)
    walk = adjacency / degree[:, None]
    returns, power = [], np.eye(atoms)
    for _ in range(16):
        power = power @ walk
        returns.append(np.diag(power))
    bond_features = np.repeat(np.eye(13)[rng.integers(0, 13, len(bonds))], 2, axis=0)
    tensors: Arrays = {
        "feat": (rng.random((atoms, 85)) < 0.1).astype(np.float32),
        "edge_feat": bond_features.astype(np.float32),
        "edge_index": np.array([end for a, b in bonds for end in ((a, b), (b, a))], np.int64).T.copy(),
        "laplacian_eigvec": vectors[:, :8].astype(np.float32),
        "laplacian_eigval": np.tile(values[:8], (atoms, 1)).astype(np.float32),
        "rw_return_probs": np.stack(returns, axis=1).astype(np.float32),
        "batch": np.zeros(atoms, np.int64),
        "graph_slots": np.zeros(1, np.float32),
    }
    return Input(tensors)
