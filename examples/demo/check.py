"""The judge: a process of its own that asks onnxruntime directly and compares, so that its memory is not the server's."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from examples.demo.inputs import Arrays, Input
from examples.demo.repository import DemoModel

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

RTOL, ATOL = 1e-3, 1e-5
_WAITING = 64  # answers that may wait for their check; then clients wait, which keeps memory bounded


@dataclass(slots=True)
class Verdict:
    """What the judge found. meant: of answers whose meaning was known, by model: [as expected, all]."""

    checked: int = 0
    wrong: int = 0
    faults: list[str] = field(default_factory=list)
    meant: dict[str, list[int]] = field(default_factory=dict)


class Judge:
    """The demo's side of the judge; `submit` may be called from any thread."""

    def __init__(self, models: Sequence[DemoModel], magika_config: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._answers: Queue[tuple[str, Input, Arrays] | None] = context.Queue(_WAITING)
        self._result: Queue[Verdict] = context.Queue()
        files = {model.name: model.file for model in models}
        self._process = context.Process(target=_judge, args=(files, magika_config, self._answers, self._result), daemon=True)
        self._process.start()

    def submit(self, model: str, given: Input, outputs: Arrays) -> None:
        """Have an answer checked."""
        self._answers.put((model, given, outputs))

    def verdict(self, timeout_s: float = 120.0) -> Verdict:
        """What was found, once all that was submitted is checked; ends the process."""
        self._answers.put(None)
        found = self._result.get(timeout=timeout_s)
        self._process.join(timeout=10)
        return found


def _judge(
    files: Mapping[str, Path], magika_config: Path, answers: Queue[tuple[str, Input, Arrays] | None], result: Queue[Verdict]
) -> None:
    found = Verdict()
    sessions: dict[str, InferenceSession] = {}
    labels = json.loads(magika_config.read_text())["target_labels_space"]
    while (item := answers.get()) is not None:
        model, given, outputs = item
        if model not in sessions:
            sessions[model] = _session(files[model])
        session = sessions[model]
        names = [output.name for output in session.get_outputs()]
        expected = dict(zip(names, session.run(names, given.tensors), strict=True))
        found.checked += 1
        if fault := _difference(expected, outputs):
            found.wrong += 1
            found.faults.append(f"{model}: {fault}")
        elif given.expected is not None:
            counts = found.meant.setdefault(model, [0, 0])
            counts[0] += _same(_meaning(model, outputs, session, labels), given.expected)
            counts[1] += 1
    result.put(found)


def _session(file: Path) -> InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def _difference(expected: Arrays, got: Arrays) -> str:
    """What is wrong with an answer; empty where nothing is."""
    if set(expected) != set(got):
        return f"outputs {sorted(got)} instead of {sorted(expected)}"
    for name, right in expected.items():
        answer = got[name]
        if answer.shape != right.shape or answer.dtype != right.dtype:
            return f"{name} is {answer.dtype}{answer.shape} instead of {right.dtype}{right.shape}"
        if not np.allclose(answer, right, rtol=RTOL, atol=ATOL):
            return f"{name} differs by up to {np.abs(answer - right).max():.2g}"
    return ""


# --- what an answer means ------------------------------------------------------------------------------------------------------------
def _meaning(model: str, outputs: Arrays, session: InferenceSession, labels: Sequence[str]) -> str:
    first = next(iter(outputs.values()))
    readers: dict[str, Callable[[], str]] = {
        "magika": lambda: labels[int(first[0].argmax())],
        "ocr_det": lambda: "text" if (first > 0.5).mean() > 0.01 else "none",
        "ocr_rec": lambda: read_text(first[0], session.get_modelmeta().custom_metadata_map["character"].splitlines()),
        "ocr_cls": lambda: ("0", "180")[int(first[0].argmax())],
    }
    return readers[model]()


def _same(got: str, expected: str) -> bool:
    return "".join(got.split()) == "".join(expected.split())  # a recogniser is free to see or miss a space


def read_text(scores: NDArray[Any], characters: Sequence[str]) -> str:
    """The text in a recogniser's scores [steps, 1 + characters + 1]: best class of each step, repeats and blanks (class 0) left out."""
    best = scores.argmax(axis=1)
    kept = [int(index) for index, before in zip(best, [-1, *best[:-1]], strict=True) if index not in (0, before)]
    return "".join(characters[index - 1] if index <= len(characters) else " " for index in kept)
