"""One run: requests of one copy and version put together, executed, and turned into frames. It works in any thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from modelpool.errors import ModelError, ModelpoolError
from modelpool.protocol import messages
from modelpool.protocol.frames import ANSWER_PREFIX, HEADER, Kind, frame
from modelpool.protocol.inference import Wanted, encode_response
from modelpool.protocol.running import RunningTable
from modelpool.protocol.stream import LARGE_BYTES, Bytes
from modelpool.runtimes.base import InferenceRequest, LoadedModel, Outcome
from modelpool.worker.memory import RunProbe

_MOST_US = 2**32 - 1
_ANSWER_PREFIX_BYTES = ANSWER_PREFIX.size


class Item:
    """A request that waits in a copy's queue.

    link: the connection that it came by; wanted: the form of its outputs; alone: it shares no run; times are monotonic seconds.
    """

    __slots__ = ("alone", "arrived", "call", "deadline", "link", "request", "rows", "size_bytes", "version", "wanted")

    def __init__(
        self, call: int, request: InferenceRequest, wanted: Wanted, version: int, rows: int, size_bytes: int, arrived: float, link: object
    ) -> None:
        self.alone = False
        self.wanted = wanted
        self.call = call
        self.request = request
        self.version = version
        self.rows = rows
        self.size_bytes = size_bytes
        self.arrived = arrived
        self.link = link
        timeout_us = request.parameters.get("timeout")
        self.deadline = arrived + timeout_us / 1e6 if isinstance(timeout_us, int | float) and timeout_us > 0 else None


class Ran(NamedTuple):
    """What came of a run: the frames of each item, its slots in the running table, its length, and what it added to memory.

    added_bytes: -1 where that was not measured.
    """

    frames: list[list[Bytes]]
    slots: list[int]
    run_s: float
    added_bytes: int


def run(copy: int, spec: messages.LoadSpec, model: LoadedModel, items: Sequence[Item], table: RunningTable, probe: RunProbe | None) -> Ran:
    """Run the items together; each gets its own answer or error. A run that fails as a whole is tried again one by one."""
    slots = table.mark([item.call for item in items])
    before = probe.start() if probe else (0, 0)
    started = time.monotonic()
    outcomes = _execute(model, items)
    ended = time.monotonic()
    if len(items) > 1 and all(isinstance(outcome, _RunFailed) for outcome in outcomes):
        # One request must not fail the others that happened to share its run.
        frames = [parts for item in items for parts in run(copy, spec, model, [item], table, None).frames]
    else:
        frames = _frames(copy, spec, items, outcomes, started, ended)
    return Ran(frames, slots, ended - started, probe.added_bytes(before) if probe else -1)


class _RunFailed(ModelError):
    """The whole run failed, not one request of it."""


def _execute(model: LoadedModel, items: Sequence[Item]) -> list[Outcome]:
    try:
        outcomes = model.execute(items[0].version, [item.request for item in items])
        if len(outcomes) != len(items):
            raise ModelError(f"the model gave {len(outcomes)} answers to {len(items)} requests; it must give one for each")
        return outcomes
    except BaseException as error:  # a model may raise SystemExit, and its process shall live on
        failed = _RunFailed(describe(error))
        return [failed] * len(items)


def _frames(
    copy: int, spec: messages.LoadSpec, items: Sequence[Item], outcomes: list[Outcome], started: float, ended: float
) -> list[list[Bytes]]:
    compute_us = min(_MOST_US, int((ended - started) * 1e6))
    batch = len(items)
    executions = 1
    frames: list[list[Bytes]] = []
    for item, outcome in zip(items, outcomes, strict=True):
        if isinstance(outcome, ModelpoolError):
            frames.append([error_frame(copy, item.call, outcome)])
            continue
        try:
            json_bytes, parts, size = encode_response(spec.model, item.version, item.request.ident, outcome, item.wanted)
        except Exception as error:
            frames.append([error_frame(copy, item.call, ModelError(f"the model's answer cannot be sent: {describe(error)}"))])
            continue
        queue_us = min(_MOST_US, max(0, int((started - item.arrived) * 1e6)))
        head = HEADER.pack(size + _ANSWER_PREFIX_BYTES, Kind.ANSWER, 0, 0, copy, item.call)
        prefix = ANSWER_PREFIX.pack(json_bytes, queue_us, compute_us, batch, executions)
        frames.append([b"".join((head, prefix, *parts))] if size < LARGE_BYTES else [head, prefix, *parts])
        executions = 0
    return frames


def describe(error: BaseException) -> str:
    """A sentence on an error that a model raised."""
    if isinstance(error, ModelpoolError):
        return error.message
    if isinstance(error, MemoryError):
        return f"out of memory: {error}" if str(error) else "out of memory"
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def error_frame(copy: int, call: int, error: ModelpoolError) -> bytes:
    """An ERROR frame."""
    failure = messages.Failure(code=error.code, message=error.message, retry_after_s=error.retry_after_s)
    return frame(Kind.ERROR, copy, call, messages.encode(failure))
