"""What tests of the worker use in place of onnxruntime and a socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from modelpool.protocol import messages
from modelpool.protocol.frames import ANSWER_PREFIX, INFER_PREFIX, Kind
from modelpool.protocol.inference import decode_response, encode_request
from modelpool.protocol.messages import LoadSpec, TensorMeta, VersionSpec
from modelpool.protocol.tensors import InferenceRequest, Tensor
from modelpool.runtimes.base import Outcome
from modelpool.worker.hosted import Hosted
from tests.unit.protocol.test_stream import Kept, Written, feed


async def until(condition: Callable[[], Any]) -> Any:
    """Let the event loop turn until a condition is true; its value. The test's time limit is the bound."""
    while not (found := condition()):  # noqa: ASYNC110 - threads of the worker set no events here
        await asyncio.sleep(0)
    return found


def spec(copy: int = 1, versions: Sequence[int] = (1,)) -> LoadSpec:
    return LoadSpec(
        copy=copy,
        model=f"m{copy}",
        revision="r",
        runtime="faulty",
        device="cpu",
        model_dir="/m",
        versions=tuple(VersionSpec(version, f"/m/{version}") for version in versions),
        default_version=max(versions),
    )


class Doubling:
    """A model: Y = 2 X. `runs` has the first elements of each run's requests; `fail` is called before each run."""

    def __init__(self, *, max_batch: int = 0, batches: bool = False, max_delay_s: float = 0.0, slots: int = 1) -> None:
        self.inputs = (TensorMeta("X", "FP32", (-1, -1)),)
        self.outputs = (TensorMeta("Y", "FP32", (-1, -1)),)
        self.max_batch = max_batch
        self.batches = batches
        self.max_delay_s = max_delay_s
        self.slots = slots
        self.quick = True
        self.forms = None
        self.whole_process = False
        self.runs: list[list[float]] = []
        self.versions: list[int] = []
        self.gate: threading.Event | None = None
        self.fail: Callable[[Sequence[InferenceRequest]], None] | None = None
        self.closed = False

    def execute(self, version: int, requests: Sequence[InferenceRequest]) -> list[Outcome]:
        self.runs.append([float(request.inputs["X"].array.ravel()[0]) for request in requests])
        self.versions.append(version)
        if self.gate is not None:
            self.gate.wait()
        if self.fail is not None:
            self.fail(requests)
        return [{"Y": Tensor("FP32", request.inputs["X"].array * 2)} for request in requests]

    def close(self) -> None:
        self.closed = True


def hosted(model: Doubling | None = None, copy: int = 1, versions: Sequence[int] = (1,)) -> Hosted:
    return Hosted(spec(copy, versions), model or Doubling(), 0, 0, 0.0)


def question(value: float, rows: int = 1, parameters: dict[str, Any] | None = None, version: int = 0) -> bytes:
    """The payload of an INFER frame."""
    body = encode_request({"X": np.full((rows, 2), value, np.float32)}, parameters=parameters)
    return INFER_PREFIX.pack(body.json_bytes, version) + body.joined()


class Server:
    """The other end of a worker's link: what the worker writes, as frames."""

    def __init__(self) -> None:
        self.link = Kept(asyncio.get_running_loop())
        self.transport = Written()
        self.link.connection_made(self.transport)

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        self.link.flush()
        end = Kept(asyncio.get_running_loop())
        feed(end, b"".join(self.transport.writes), [100_000])
        return end.frames

    def outcomes(self) -> dict[int, Any]:
        """By call: the first element of the answer, or the code of the error."""
        found: dict[int, Any] = {}
        for kind, _, call, payload in self.frames():
            if kind == Kind.ANSWER:
                json_bytes = ANSWER_PREFIX.unpack_from(payload)[0]
                answer = decode_response(payload[ANSWER_PREFIX.size :], json_bytes)
                found[call] = float(answer.outputs["Y"].array.ravel()[0])
            elif kind == Kind.ERROR:
                found[call] = messages.decode(payload, messages.Failure).code
        return found

    async def wait(self, count: int) -> dict[int, Any]:
        """The outcomes, once there are so many."""
        await until(lambda: len(self.outcomes()) >= count)
        return self.outcomes()
