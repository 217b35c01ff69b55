"""What `serve --record` writes of requests, and what the simulator makes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from modelpool.protocol import trace
from modelpool.simulator.replay import run
from modelpool.testing.models import scale
from tests.integration.serving import infer, question, serving


def test_a_hit_is_an_answer_that_waited_for_nothing(tmp_path: Path) -> None:
    scale(tmp_path / "models" / "twice.onnx", 2.0)
    scale(tmp_path / "models" / "triple.onnx", 3.0)
    one = question(x=np.ones(1, np.float32))
    options = ("--device", "cpu=100MiB", "--record", str(tmp_path / "record"), "--set", "queue_bytes=1KiB")
    with serving(tmp_path, *options) as server:
        outcomes = [
            infer(server, "twice", one).status_code,  # waits for its load
            infer(server, "twice", one).status_code,
            infer(server, "nobody", one).status_code,
            infer(server, "triple", question(x=np.ones(1000, np.float32))).status_code,  # more than may wait
            infer(server, "twice", question(wrong=np.ones(1, np.float32))).status_code,
        ]
        assert outcomes == [200, 200, 404, 503, 400]
        assert server.stop() == 0
    requests = [line for line in trace.read_trace(tmp_path / "record") if isinstance(line, trace.Request)]
    assert [(line.model, line.outcome, line.hit) for line in requests] == [
        ("twice", "ok", False),
        ("twice", "ok", True),
        ("nobody", "model_not_found", False),
        ("triple", "queue_full", False),
        ("twice", "invalid_tensor", False),
    ]
    assert run(tmp_path / "record", {}).recorded_hits == 1
