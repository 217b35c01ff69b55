"""A runtime for tests: doubles its input X into Y, and fails in the ways that its configuration or its input says."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from modelpool.errors import InvalidTensor, LoadFailed
from modelpool.protocol.messages import LoadSpec, TensorMeta
from modelpool.runtimes.base import InferenceRequest, Outcome, Tensor

DIE, RAISE, NO_MEMORY, EXIT, WRONG, GRIP = -1.0, -2.0, -3.0, -4.0, -5.0, -6.0
"""Values of X's first element that make the whole run fail; WRONG is refused for the one request only; GRIP is answered, and a little later
nothing in the process gets the interpreter any more."""


class FaultyModel:
    """config: max_batch_size, batches, max_delay_s, slots, run_s (length of a run), keep_bytes (allocated for its life), runs_to (a file
    that gets one line for each run: its number of requests), run_bytes (allocated by each run), gate (a file that a run waits for)."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.inputs = (TensorMeta("X", "FP32", (-1, -1)),)
        self.outputs = (TensorMeta("Y", "FP32", (-1, -1)),)
        self.max_batch = config.get("max_batch_size", 0)
        self.batches = config.get("batches", False)
        self.max_delay_s = config.get("max_delay_s", 0.0)
        self.slots = config.get("slots", 1)
        self.quick = True
        self.forms = None
        self.whole_process = False
        self._config = config
        self._kept = np.ones(config.get("keep_bytes", 0), np.uint8)
        self._lock = threading.Lock()

    def execute(self, version: int, requests: Sequence[InferenceRequest]) -> list[Outcome]:
        config = self._config
        if "runs_to" in config:
            with self._lock, Path(config["runs_to"]).open("a") as file:
                file.write(f"{len(requests)}\n")
        if "gate" in config:
            while not Path(config["gate"]).exists():
                time.sleep(0.002)
        if "run_s" in config:
            time.sleep(config["run_s"])
        if "run_bytes" in config:
            np.ones(config["run_bytes"], np.uint8)
        return [self._one(request) for request in requests]

    def _one(self, request: InferenceRequest) -> Outcome:
        x = request.inputs["X"].array
        first = float(x.ravel()[0]) if x.size else 0.0
        if first == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if first == RAISE:
            complaint = bytes(self._config.get("complaint_bytes", b"the model does not like this"))
            raise ValueError(complaint.decode(errors="surrogateescape"))
        if first == NO_MEMORY:
            raise MemoryError
        if first == EXIT:
            raise SystemExit(3)
        if first == GRIP:
            threading.Timer(0.1, ctypes.PyDLL(None).sleep, [3600]).start()
        if first == WRONG:
            return InvalidTensor("X is wrong")
        return {"Y": Tensor("FP32", x * 2)}

    def close(self) -> None:
        self._kept = np.ones(0, np.uint8)


class FaultyRuntime:
    """config: load_gate (a file that the load waits for, after it made one of that name with `.waiting` added), load ('fail', 'raise',
    'die'), and what FaultyModel knows."""

    def load(self, spec: LoadSpec) -> FaultyModel:
        config = spec.config
        if "load_gate" in config:
            Path(f"{config['load_gate']}.waiting").touch()
            while not Path(config["load_gate"]).exists():
                time.sleep(0.002)
        match config.get("load"):
            case "fail":
                raise LoadFailed("this model cannot be loaded")
            case "raise":
                raise RuntimeError("something broke")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
        return FaultyModel(config)
