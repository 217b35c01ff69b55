"""Payloads of the control frames between server and worker (JSON by msgspec)."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

_encoder = msgspec.json.Encoder()

T = TypeVar("T")


class TensorMeta(msgspec.Struct, frozen=True):
    """One input or output of a model.

    datatype: as the Open Inference Protocol spells it (FP32, INT64, BYTES, ..); shape: -1 where any size will do, the batch
    dimension included where the model batches.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


class VersionSpec(msgspec.Struct, frozen=True):
    """One version of a model: its number and its file or folder."""

    version: int
    path: str


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to load a copy.

    config: the model's configuration as JSON-like data with the field names of Triton's model_config.proto ({} where the model has
    none). versions are loaded together; default_version answers requests that name none.
    overrides: what a user sent with a load for a Triton server to take (`config` as JSON text, `file:<version>/<name>` as bytes).
    """

    copy: int
    model: str
    revision: str
    runtime: str
    device: str
    model_dir: str
    versions: tuple[VersionSpec, ...]
    default_version: int
    config: dict[str, Any] = {}
    overrides: dict[str, Any] = {}


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The server's first frame on a connection."""

    wire_version: int
    server: str


class HeldCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy that a worker holds, so that a new server can adopt it."""

    spec: LoadSpec
    inputs: tuple[TensorMeta, ...]
    outputs: tuple[TensorMeta, ...]
    private_bytes: int
    load_peak_bytes: int
    run_peak_bytes: int
    load_s: float


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's answer to Hello.

    generation: the worker's own random identity for its life; baseline_bytes: private bytes before it held any model.
    """

    wire_version: int
    worker: str
    generation: int
    pid: int
    baseline_bytes: int
    copies: tuple[HeldCopy, ...] = ()


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A copy is ready.

    private_bytes: what the load added to the worker's anonymous memory after trimming (for a process with one model: the whole process);
    load_peak_bytes: the most that it added while loading; total_bytes: the worker's anonymous memory now.
    """

    copy: int
    load_s: float
    private_bytes: int
    load_peak_bytes: int
    total_bytes: int
    inputs: tuple[TensorMeta, ...]
    outputs: tuple[TensorMeta, ...]


class Unloaded(msgspec.Struct, frozen=True, kw_only=True):
    """A copy is gone; total_bytes: the worker's anonymous memory after trimming."""

    copy: int
    total_bytes: int


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A call failed; code is one of `errors.BY_CODE`."""

    code: str
    message: str
    retry_after_s: float | None = None


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker measured of itself.

    run_peaks: by copy, the most anonymous bytes that a run of it was seen to add.
    """

    total_bytes: int
    baseline_bytes: int
    run_peaks: dict[int, int] = {}


def encode(message: msgspec.Struct) -> bytes:
    """JSON bytes of a message."""
    return _encoder.encode(message)


def decode(payload: bytes | bytearray | memoryview, kind: type[T]) -> T:
    """A message from JSON bytes; raises msgspec.ValidationError or DecodeError."""
    return msgspec.json.decode(payload, type=kind)
