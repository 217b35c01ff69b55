"""A server over a folder of models, and how tests ask it. The process itself is `tests.integration.running`'s.

with serving(tmp_path, "--device", "cpu=60MiB") as server:
    server.client.get("/v2")                  # httpx
    ask(server, "m", x=np.ones(4, np.float32))
    restart(server)                           # told to stop, started again over the same state
    restart(server, hard=True)                # kill -9: its workers live on and are adopted
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype

from tests.integration.running import RunningServer, alive, running, until

__all__ = ["RunningServer", "alive", "ask", "infer", "question", "restart", "running", "serving", "until"]


@contextlib.contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[RunningServer]:
    """`modelpool serve` of `folder/models` with its state in `folder/state`; it and all its workers are ended, whatever happens."""
    (folder / "models").mkdir(exist_ok=True)
    with running(folder / "models", folder / "state", *arguments) as server:
        yield server


def restart(server: RunningServer, *, hard: bool = False) -> None:
    """The same server once more over the same state. hard: ended by SIGKILL, so that its workers outlive it."""
    if hard:
        server.kill()
    else:
        assert server.stop() == 0
    server.start()


def question(**inputs: NDArray[Any]) -> dict[str, Any]:
    """The JSON of an inference request with these inputs."""
    return {
        "inputs": [
            {"name": name, "datatype": np_to_triton_dtype(array.dtype), "shape": list(array.shape), "data": array.ravel().tolist()}
            for name, array in inputs.items()
        ]
    }


def infer(server: RunningServer, model: str, body: Any, **options: Any) -> httpx.Response:
    """Post a request: bytes as they are, all else as JSON."""
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    return server.client.post(f"/v2/models/{model}/infer", **content, **options)


def ask(server: RunningServer, model: str, **inputs: NDArray[Any]) -> dict[str, list[Any]]:
    """The outputs of a model by name, as the lists of the JSON answer."""
    answer = infer(server, model, question(**inputs))
    assert answer.status_code == 200, answer.text
    return {output["name"]: output["data"] for output in answer.json()["outputs"]}
