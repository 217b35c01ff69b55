"""Memory comes back: 50 models are loaded, run once and ejected in turn, 500 cycles in all; the worker's memory must not creep.

    .venv/bin/python benchmarks/churn.py

growth_mb: the worker's resident memory at the end less that after the first round over all models. growth_over_allowed_mb: by how much
that is more than 10 % or 50 MB, whichever is larger; 0 is the goal.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import psutil

from modelpool.client import Client
from modelpool.testing.benchmarking import print_machine, print_result, server
from modelpool.testing.models import dense, dense_width

MODELS, ROUNDS = 50, 10
SMALLEST_MB, LARGEST_MB = 1.0, 24.0
ALLOWED_SHARE, ALLOWED_MB = 0.10, 50.0
EMPTY_LIMIT_S = 20.0
MB = 1e6

SIZES = [int(size * MB) for size in np.geomspace(SMALLEST_MB, LARGEST_MB, MODELS)]


def build(folder: Path) -> None:
    """The models, one file each."""
    for index, size in enumerate(SIZES):
        dense(folder / f"m{index:02d}.onnx", weight_bytes=size, seed=index)


def one_round(client: Client) -> None:
    """Load, run and eject every model in turn."""
    for index, size in enumerate(SIZES):
        name = f"m{index:02d}"
        client.load_model(name)
        client.infer(name, {"x": np.ones((1, dense_width(size)), np.float32)})
        client.eject_model(name)
    limit = time.monotonic() + EMPTY_LIMIT_S
    while client.devices()[0]["models"]:
        if time.monotonic() > limit:
            raise RuntimeError(f"still resident: {client.devices()[0]['models']}")
        time.sleep(0.05)


def main() -> None:
    """Print the curve and the result."""
    print_machine()
    with server(build, ["--device", "cpu=1GB"]) as (url, _), Client(url) as client:
        pid = int(client.devices()[0]["pid"])
        worker = psutil.Process(pid)
        print(f"worker at start: {worker.memory_info().rss / MB:.1f} MB")
        curve: list[float] = []
        for number in range(1, ROUNDS + 1):
            started = time.monotonic()
            one_round(client)
            if int(client.devices()[0]["pid"]) != pid:
                raise RuntimeError("the worker was replaced: its memory says nothing about loads and unloads")
            curve.append(worker.memory_info().rss / MB)
            print(f"{number * MODELS:4} cycles: {curve[-1]:7.1f} MB  ({time.monotonic() - started:.1f} s)", flush=True)
    growth_mb = curve[-1] - curve[0]
    allowed_mb = max(ALLOWED_SHARE * curve[0], ALLOWED_MB)
    print_result(growth_mb=growth_mb, growth_over_allowed_mb=max(0.0, growth_mb - allowed_mb))


if __name__ == "__main__":
    main()
