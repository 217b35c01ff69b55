"""How much a resident model's answers suffer while other models are loaded and unloaded beside it.

    .venv/bin/python benchmarks/interference.py

One model is asked all the time, on a few connections; another client loads and ejects eight more in turn, or rests. Both kinds of time
alternate, and the ratio of the 99th percentiles is taken within a round. embedded: ONNX models of 20 MB each in our worker; triton: Python
models on a real Triton behind modelpool (`make triton`; left out where there is none).
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import msgspec
import numpy as np
import uvloop

from modelpool.client import Client
from modelpool.testing import triton
from modelpool.testing.asking import Question, ask, post
from modelpool.testing.benchmarking import print_machine, print_result, server
from modelpool.testing.models import dense, python_model, scale, write_config

OTHERS = tuple(f"other{number}" for number in range(8))
OTHER_BYTES = 20_000_000
CONNECTIONS = 4
PATH = "/v2/models/hot/infer"

_CONFIG = """
    backend: "python"
    input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
    output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
_DOUBLE = """
    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def initialize(self, args):
            self.weights = np.ones(1 << 20, np.float32)

        def execute(self, requests):
            inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x * np.float32(2))]) for x in inputs]
"""


def build_onnx(folder: Path) -> None:
    """The model that is asked, and those that come and go."""
    scale(folder / "hot.onnx", 2.0)
    for seed, name in enumerate(OTHERS):
        dense(folder / f"{name}.onnx", weight_bytes=OTHER_BYTES, seed=seed)


def build_python(folder: Path) -> None:
    """The same for Triton, all of them in Python."""
    for name in ("hot", *OTHERS):
        python_model(folder / name, _DOUBLE)
        write_config(folder / name, _CONFIG)


def questions(url: str) -> list[Question]:
    """Questions to the model, with the answers that it gave once and that were found right."""
    found = []
    for variant in range(32):
        x = np.arange(variant, variant + 4, dtype=np.float32)
        body = msgspec.json.encode({"inputs": [{"name": "x", "shape": [4], "datatype": "FP32", "data": x.tolist()}]})
        reply = httpx.post(f"{url}{PATH}", content=body, timeout=60, trust_env=False).raise_for_status()
        if (got := reply.json()["outputs"][0]["data"]) != (2 * x).tolist():
            raise RuntimeError(f"a wrong answer: {got} instead of {(2 * x).tolist()}")
        found.append(Question(post(PATH, body), reply.content))
    return found


class Churn:
    """Loads and ejects the others in turn while it is on."""

    def __init__(self, url: str) -> None:
        self.loads = 0
        self._url = url
        self._on = threading.Event()
        self._end = threading.Event()
        self._resting = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with Client(self._url) as client:
            while not self._end.is_set():
                if not self._on.wait(0.05):
                    self._resting.set()
                    continue
                name = OTHERS[self.loads % len(OTHERS)]
                client.load_model(name)
                client.eject_model(name)
                self.loads += 1

    def begin(self) -> None:
        """Load from now on."""
        self._resting.clear()
        self._on.set()

    def rest(self) -> None:
        """Finish what is under way; returns when it is."""
        self._on.clear()
        self._resting.wait()

    def end(self) -> None:
        """For good."""
        self.rest()
        self._end.set()
        self._thread.join()


def p99_ms(port: int, asked: Sequence[Question], seconds: float) -> float:
    """The 99th percentile of the answers' times."""
    found = uvloop.run(ask(port, asked, CONNECTIONS, seconds, latencies=True)).latencies_s
    return float(np.percentile(found, 99)) * 1e3


def compare(label: str, build: Callable[[Path], None], arguments: Sequence[str], rounds: int, seconds: float) -> float:
    """The median over the rounds of p99 while others load by p99 without."""
    with server(build, arguments) as (url, _):
        asked = questions(url)
        port = int(url.rpartition(":")[2])
        churn = Churn(url)
        ratios = []
        for number in range(rounds):
            quiet_ms = p99_ms(port, asked, seconds)
            before = churn.loads
            churn.begin()
            loading_ms = p99_ms(port, asked, seconds)
            churn.rest()
            ratios.append(loading_ms / quiet_ms)
            loads = churn.loads - before
            print(
                f"{label} round {number + 1}: p99 {quiet_ms:.2f} ms, with {loads} loads {loading_ms:.2f} ms, {ratios[-1]:.2f}", flush=True
            )
            if not loads:
                raise RuntimeError("nothing was loaded meanwhile")
        churn.end()
    return statistics.median(ratios)


def main() -> None:
    """Print the rounds and the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    options = parser.parse_args()
    print_machine()
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    figures = {"p99_ratio_embedded": compare("embedded", build_onnx, ["--device", "cpu=300MiB"], options.rounds, options.seconds)}
    if (reason := triton.unavailable()) is None:
        arguments = ["--triton-command", triton.command(), "--device", "cpu=4GiB"]
        figures["p99_ratio_triton"] = compare("triton", build_python, arguments, options.rounds, options.seconds)
    else:
        print(f"triton left out: {reason}")
    print_result(**figures)


if __name__ == "__main__":
    main()
