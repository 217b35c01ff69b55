"""One run: requests of one copy and version put together, executed, and turned into frames. It works in any thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from modelpool.errors import ModelError, ModelpoolError, text_of
from modelpool.protocol import messages
from modelpool.protocol.alike import encode_alike
from modelpool.protocol.frames import ANSWER_HEAD, ANSWER_PREFIX, Kind, frame
from modelpool.protocol.inference import ALL_JSON, Wanted, encode_response
from modelpool.protocol.running import RunningTable
from modelpool.protocol.stream import LARGE_BYTES, MAX_PAYLOAD_BYTES, Bytes
from modelpool.runtimes import calls
from modelpool.runtimes.base import Alike, Answer, AnyRequest, LoadedModel, Outcome
from modelpool.units import format_bytes
from modelpool.worker.memory import RunProbe

_MOST_US = 2**32 - 1
_ANSWER_PREFIX_BYTES = ANSWER_PREFIX.size
_ANSWER = int(Kind.ANSWER)
_pack_head = ANSWER_HEAD.pack


class Item(msgspec.Struct, gc=False):
    """A request that waits in a copy's queue.

    version: one that the copy holds; wanted: the form of its outputs; deadline: None where it has none; link: the connection that it came
    by; alone: it shares no run. Times are monotonic seconds.
    """

    call: int
    request: AnyRequest
    wanted: Wanted
    version: int
    rows: int
    size_bytes: int
    arrived: float
    deadline: float | None
    link: object
    alone: bool = False


class Ran(NamedTuple):
    """What came of a run: the frames of each item, its slots in the running table, its length, and what it added to memory.

    added_bytes: -1 where that was not measured.
    """

    frames: Sequence[Sequence[Bytes]]
    slots: list[int]
    run_s: float
    added_bytes: int


def run(copy: int, spec: messages.LoadSpec, model: LoadedModel, items: Sequence[Item], table: RunningTable, probe: RunProbe | None) -> Ran:
    """Run the items together; each gets its own answer or error. A run that fails as a whole is tried again one by one."""
    slots = table.mark([item.call for item in items])
    before = probe.start() if probe else (0, 0)
    calls.begin_run(items[0].call)
    started = time.monotonic()
    outcomes = _execute(model, items)
    ended = time.monotonic()
    frames: Sequence[Sequence[Bytes]] | None = None
    if isinstance(outcomes, Alike):
        frames = _frames_alike(copy, spec, items, outcomes, started, ended)
    elif len(items) > 1 and all(isinstance(outcome, _RunFailed) for outcome in outcomes):
        # One request must not fail the others that happened to share its run.
        frames = [parts for item in items for parts in run(copy, spec, model, [item], table, None).frames]
    if frames is None:
        frames = _frames(copy, spec, items, outcomes, started, ended)
    return Ran(frames, slots, ended - started, probe.added_bytes(before) if probe else -1)


class _RunFailed(ModelError):
    """The whole run failed, not one request of it."""


def _execute(model: LoadedModel, items: Sequence[Item]) -> Sequence[Outcome]:
    try:
        outcomes = model.execute(items[0].version, [item.request for item in items])
        if len(outcomes) != len(items):
            raise ModelError(f"the model gave {len(outcomes)} answers to {len(items)} requests; it must give one for each")
        return outcomes
    except BaseException as error:  # a model may raise SystemExit, and its process shall live on
        failed = _RunFailed(describe(error))
        return [failed] * len(items)


def _frames(
    copy: int, spec: messages.LoadSpec, items: Sequence[Item], outcomes: Sequence[Outcome], started: float, ended: float
) -> list[list[Bytes]]:
    compute_us = _us(ended - started)
    batch = len(items)
    executions = 1
    frames: list[list[Bytes]] = []
    for item, outcome in zip(items, outcomes, strict=True):
        if isinstance(outcome, ModelpoolError):
            frames.append([error_frame(copy, item.call, outcome)])
            continue
        try:
            told = outcome.parameters if isinstance(outcome, Answer) else None
            json_bytes, parts, size = encode_response(spec.model, item.version, item.request.ident, outcome, item.wanted, told)
        except Exception as error:
            frames.append([error_frame(copy, item.call, ModelError(f"the model's answer cannot be sent: {describe(error)}"))])
            continue
        payload_bytes = size + _ANSWER_PREFIX_BYTES
        if payload_bytes > MAX_PAYLOAD_BYTES:
            frames.append([error_frame(copy, item.call, _too_large(payload_bytes))])
            continue
        queue_us = _us(started - item.arrived)
        head = _pack_head(payload_bytes, _ANSWER, 0, 0, copy, item.call, json_bytes, queue_us, compute_us, batch, executions)
        frames.append([b"".join((head, *parts))] if size < LARGE_BYTES else [head, *parts])
        executions = 0
    return frames


def _too_large(size_bytes: int) -> ModelError:
    return ModelError(
        f"the answer is too large: {format_bytes(size_bytes)}, at most {format_bytes(MAX_PAYLOAD_BYTES)}; ask for fewer outputs, or send "
        f"smaller requests"
    )


def _frames_alike(
    copy: int, spec: messages.LoadSpec, items: Sequence[Item], outcomes: Alike, started: float, ended: float
) -> list[tuple[bytes]] | None:
    """The same where all answers are of one form; None where they are not, or cannot be written together."""
    if [1 for item in items if item.wanted is not ALL_JSON]:
        return None
    bodies = encode_alike(spec.model, items[0].version, [item.request.ident for item in items], outcomes.outputs)
    if bodies is None:
        return None
    compute_us = _us(ended - started)
    batch = len(items)
    executions = 1
    frames = []
    for item, body in zip(items, bodies, strict=True):
        queue_us = int((started - item.arrived) * 1e6)
        if not 0 <= queue_us <= _MOST_US:
            queue_us = _us(started - item.arrived)
        head = _pack_head(len(body) + _ANSWER_PREFIX_BYTES, _ANSWER, 0, 0, copy, item.call, -1, queue_us, compute_us, batch, executions)
        frames.append((head + body,))
        executions = 0
    return frames


def _us(seconds: float) -> int:
    us = int(seconds * 1e6)
    return us if 0 <= us <= _MOST_US else max(0, min(_MOST_US, us))


def describe(error: BaseException) -> str:
    """A sentence on an error that a model raised."""
    if isinstance(error, ModelpoolError):
        return error.message
    if isinstance(error, MemoryError):
        return f"out of memory: {text_of(error)}" if text_of(error) else "out of memory"
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def error_frame(copy: int, call: int, error: ModelpoolError) -> bytes:
    """An ERROR frame."""
    failure = messages.Failure(code=error.code, message=error.message, retry_after_s=error.retry_after_s)
    return frame(Kind.ERROR, copy, call, messages.encode(failure))
