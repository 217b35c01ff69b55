"""Compressed bodies, decoded within the limit on bodies."""

from __future__ import annotations

import zlib

from modelpool.errors import BodyTooLarge, InvalidRequest
from modelpool.gateway.errors import UnknownEncoding

_WINDOWS = {b"gzip": (31,), b"x-gzip": (31,), b"deflate": (15, -15)}
"""zlib's window sizes by coding. `deflate` means zlib's format, yet some clients send the naked stream."""


def encoding_problem(encoding: bytes) -> UnknownEncoding | None:
    """Why a body in this coding cannot be read; None where it can."""
    if encoding in _WINDOWS:
        return None
    return UnknownEncoding(f"Content-Encoding '{encoding[:40].decode('latin-1')}' is not known; send gzip, deflate or identity")


def decode_body(body: bytes | bytearray, encoding: bytes, limit_bytes: int) -> bytes:
    """The body behind its coding. Raises InvalidRequest where it is damaged, BodyTooLarge as soon as it exceeds the limit."""
    name = encoding.decode("latin-1")
    for window in _WINDOWS[encoding]:
        decoder = zlib.decompressobj(window)
        try:
            decoded = decoder.decompress(body, limit_bytes + 1)
        except zlib.error:
            continue
        if len(decoded) > limit_bytes:
            raise too_large(limit_bytes)
        if not decoder.eof or decoder.unused_data:
            what = "goes on after its end" if decoder.eof else "ends early"
            raise InvalidRequest(f"the {name} body {what}; send one complete {name} stream")
        return decoded
    raise InvalidRequest(f"the body is not {name}, which its Content-Encoding says; send it as it is said, or leave the header out")


def too_large(limit_bytes: int) -> BodyTooLarge:
    """The refusal of a body beyond the limit."""
    return BodyTooLarge(f"the body exceeds the limit of {limit_bytes} bytes; send less at once, or raise the setting body_limit")
