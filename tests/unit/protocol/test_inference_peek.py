from __future__ import annotations

import json
import math
from typing import Any

import pytest

from modelpool.errors import InvalidRequest
from modelpool.protocol.inference import peek_keep_alive, peek_timeout_s


def body(**parameters: Any) -> bytes:
    return json.dumps({"inputs": [{"name": "x", "data": [1, 2]}], "parameters": parameters}).encode()


@pytest.mark.parametrize(("timeout", "expected"), [(5_000_000, 5.0), (1, 1e-6), (0, None), (None, None)])
def test_timeout_is_in_microseconds(timeout: int | None, expected: float | None) -> None:
    assert peek_timeout_s(body(timeout=timeout), -1) == expected


@pytest.mark.parametrize("timeout", [-1, "5s", True, [1]])
def test_a_timeout_that_is_none(timeout: object) -> None:
    with pytest.raises(InvalidRequest, match="timeout"):
        peek_timeout_s(body(timeout=timeout), -1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("5m", 300.0), (90, 90.0), (0, 0.0), (1.5, 1.5), (-1, math.inf), ("-1", math.inf), ("inf", math.inf), (None, None)],
)
def test_keep_alive(value: object, expected: float | None) -> None:
    assert peek_keep_alive(body(keep_alive=value), -1) == expected


@pytest.mark.parametrize("value", ["soon", "-5m", True, {}])
def test_a_keep_alive_that_is_none(value: object) -> None:
    with pytest.raises(InvalidRequest):
        peek_keep_alive(body(keep_alive=value), -1)


def test_requests_without_them() -> None:
    for raw in (body(), b'{"inputs":[]}', b'{"inputs":[{"name":"timeout"}]}', b'{"keep_alive":1}', b"", b"no JSON"):
        assert peek_timeout_s(raw, -1) is None
        assert peek_keep_alive(bytearray(raw), -1) is None


def test_only_the_json_is_looked_at() -> None:
    raw = body(priority=1)
    assert peek_timeout_s(raw + b'"timeout"', len(raw)) is None
    raw = body(timeout=1_000_000)
    assert peek_timeout_s(raw + b"\0\1\2\xff", len(raw)) == 1.0


def test_json_with_nan_is_read() -> None:
    raw = body(timeout=1_000_000).replace(b"[1, 2]", b"[NaN, -Infinity]")
    assert peek_timeout_s(raw, -1) == 1.0


@pytest.mark.parametrize("raw", [b'{"parameters":{"timeout":', b'{"timeout"', b'["timeout"]'])
def test_what_is_no_request(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        peek_timeout_s(raw, -1)
