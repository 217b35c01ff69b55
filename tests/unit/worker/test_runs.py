"""What a run's answers may be."""

from __future__ import annotations

import numpy as np
import pytest

from modelpool.protocol import messages
from modelpool.protocol.frames import HEADER, Kind
from modelpool.protocol.tensors import InferenceRequest, Tensor
from modelpool.worker import runs


def test_an_answer_that_no_frame_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MAX_PAYLOAD_BYTES", 1000)
    spec = messages.LoadSpec(copy=1, model="m", revision="1", runtime="onnx", device="cpu", model_dir="", versions=(), default_version=1)
    sizes = (10, 1000, 20)
    items = [runs.Item(call, InferenceRequest(1, {}), runs.Wanted(True), 1, 1, 10, 0.0, None, None) for call in range(len(sizes))]
    outcomes = [{"y": Tensor("FP32", np.zeros(size, np.float32))} for size in sizes]
    frames = runs._frames(1, spec, items, outcomes, 1.0, 2.0)
    kinds = [HEADER.unpack_from(b"".join(map(bytes, parts)))[1] for parts in frames]
    assert kinds == [Kind.ANSWER, Kind.ERROR, Kind.ANSWER]
    assert b"the answer is too large" in b"".join(map(bytes, frames[1]))
