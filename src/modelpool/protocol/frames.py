"""Frames between the server and a worker: one Unix socket, both ways, many requests at once.

A frame is a fixed header and a payload:

    payload_bytes u32 | kind u8 | flags u8 | reserved u16 | copy u32 | call u64      (20 bytes, little endian)

`call` identifies a request and its answer; `copy` the loaded model that is meant. Payloads of control frames are JSON of the
structs in `messages`; those of INFER and ANSWER are a small fixed prefix and the bytes of the HTTP body as they came or go.
"""

from __future__ import annotations

import struct
from enum import IntEnum

HEADER = struct.Struct("<IBBHIQ")
HEADER_BYTES = HEADER.size

INFER_PREFIX = struct.Struct("<iI")
"""json_bytes (i32; -1: the whole body is JSON), version (u32; 0: the default version)."""

ANSWER_PREFIX = struct.Struct("<iIIHH")
"""json_bytes (i32; -1: the whole body is JSON), queue_us, compute_us (u32), batch (u16: requests run together),
executions (u16: 1 for the first request of a run, 0 for those that shared it)."""

ANSWER_HEAD = struct.Struct("<IBBHIQiIIHH")
"""HEADER and ANSWER_PREFIX in one."""

CALL_PREFIX = struct.Struct("<QiIH")
"""parent (u64: the call that is being run), json_bytes (i32), version (u32), bytes of the model's name (u16)."""

JSON_BYTES = struct.Struct("<i")

WIRE_VERSION = 2


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1  # server -> worker: Hello
    WELCOME = 2  # worker -> server: Welcome
    LOAD = 3  # server -> worker: LoadSpec
    LOADED = 4  # worker -> server: Loaded
    UNLOAD = 5  # server -> worker: empty payload; header's copy says which
    UNLOADED = 6  # worker -> server: Unloaded
    INFER = 7  # server -> worker: INFER_PREFIX + body
    ANSWER = 8  # worker -> server: ANSWER_PREFIX + body
    ERROR = 9  # worker -> server: Failure; answers LOAD, UNLOAD or INFER
    PROBE = 10  # server -> worker: empty; asks for OBSERVED
    OBSERVED = 11  # worker -> server: Observed; answers PROBE (call != 0) or comes by itself (call == 0)
    STOP = 12  # server -> worker: empty; end after what was accepted
    INFER_ALONE = 14  # as INFER, but run by itself: it was running when a process died
    CANCEL = 13  # server -> worker: empty; call says which INFER need not be answered any more
    CALL = 15  # worker -> server: CALL_PREFIX, the model's name, a body: a model calls another (BLS)
    CALLED = 16  # server -> worker: json_bytes (i32) and the body; answers CALL
    CALL_FAILED = 17  # server -> worker: Failure; answers CALL


def frame(kind: int, copy: int, call: int, payload: bytes = b"") -> bytes:
    """One whole frame as bytes."""
    return HEADER.pack(len(payload), kind, 0, 0, copy, call) + payload
