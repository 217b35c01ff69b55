"""What must not reach a Triton server: requests whose shapes would end it."""

from __future__ import annotations

import math

import msgspec

from modelpool.errors import InvalidRequest, InvalidTensor
from modelpool.protocol.inference import decode_request

LARGEST_DIMENSION = (1 << 31) - 1


class _Shape(msgspec.Struct):
    name: str
    shape: list[int]


class _Shapes(msgspec.Struct):
    inputs: list[_Shape]


_decode = msgspec.json.Decoder(_Shapes).decode


def check_request(body: bytes | bytearray, json_bytes: int) -> None:
    """Raises InvalidRequest for a body that no server should get: not JSON, or with a shape that its data cannot have.

    Each element takes at least one byte of the body, as text or as binary data.
    """
    size = len(body)
    if json_bytes > size:
        raise InvalidRequest(f"Inference-Header-Content-Length is {json_bytes}, but the body has {size} bytes in all; correct it")
    try:
        found = _decode(body if json_bytes < 0 else memoryview(body)[:json_bytes])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        decode_request(body, json_bytes, 0)  # it says what is wrong, or reads the NaN that JSON does not have
        return
    for one in found.inputs:
        shape = one.shape
        if math.prod(shape) > size or any(not 0 <= dim <= LARGEST_DIMENSION for dim in shape):
            raise InvalidTensor(f"input {one.name!r:.80} has shape {shape!s:.200}, for which the body has too few bytes; correct the shape")
