"""The record of a server's life that the simulator replays: JSON lines, no payloads.

Times `t` are seconds since the record began.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from modelpool.errors import InvalidRequest

TRACE_VERSION = 1


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """First line. at: wall-clock seconds; settings: of the core; devices: budgets in bytes by instance and device."""

    trace_version: int
    at: float
    settings: dict[str, Any]
    devices: dict[str, dict[str, int]]


class Model(msgspec.Struct, frozen=True, tag="model"):
    """A model was added or changed. need: learned or estimated figures in bytes and seconds, as far as known."""

    t: float
    model: str
    runtime: str
    isolation: str
    estimate_bytes: int
    residency: dict[str, Any]
    learned: dict[str, dict[str, float]]


class Removed(msgspec.Struct, frozen=True, tag="removed"):
    """A model left the catalogue."""

    t: float
    model: str


class Request(msgspec.Struct, frozen=True, tag="r"):
    """A request ended; t: its arrival; hit: it was answered and had not waited for a copy; wait_s: until it was sent; run_s: from then to
    its answer; outcome: `ok` or an error's code.
    """

    t: float
    model: str
    hit: bool
    wait_s: float
    run_s: float
    outcome: str


class Load(msgspec.Struct, frozen=True, tag="load"):
    """A load ended; ok: well."""

    t: float
    model: str
    device: str
    load_s: float
    private_bytes: int
    load_peak_bytes: int
    ok: bool = True


class Unload(msgspec.Struct, frozen=True, tag="unload"):
    """An unload began, and why."""

    t: float
    model: str
    reason: str


class Pin(msgspec.Struct, frozen=True, tag="pin"):
    """A user pinned or unpinned a model."""

    t: float
    model: str
    pinned: bool


Line: TypeAlias = Begin | Model | Removed | Request | Load | Unload | Pin

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def encode_line(line: Line) -> bytes:
    """One line with its line end."""
    return _encoder.encode(line) + b"\n"


def read_trace(path: Path) -> Iterator[Line]:
    """All lines of a record; a last line that was cut short is left out. Raises InvalidRequest with the number of a bad line."""
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.endswith(b"\n"):
                return
            try:
                line = _decoder.decode(text)
            except msgspec.MsgspecError as error:
                raise InvalidRequest(f"{path}, line {number}: not a line of a modelpool record ({error})") from error
            if number == 1 and not (isinstance(line, Begin) and line.trace_version == TRACE_VERSION):
                raise InvalidRequest(
                    f"{path} is not a record of trace version {TRACE_VERSION}; write one with modelpool serve --record FILE"
                )
            yield line
