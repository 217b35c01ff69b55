from __future__ import annotations

import msgspec
import pytest

from modelpool.errors import InvalidRequest
from modelpool.protocol.inference import decode_request, peek_timeout_s
from modelpool.protocol.jsonfaults import json_fault


def told(text: bytes) -> str:
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(text)
    return json_fault(caught.value, text)


@pytest.mark.parametrize(
    ("text", "escape"),
    [
        (rb'["\ud800"]', r"\ud800"),
        (rb'["\uD83D\ude00", "\uDBFFx"]', r"\uDBFF"),
        (rb'["\udc00"]', r"\udc00"),
        (rb'["\ud800\ud801\udc00"]', r"\ud800"),
        (rb'["\ud83d\ude00\ude00"]', r"\ude00"),
        (rb'["\ud800\u0041"]', r"\ud800"),
        (rb'["\\\ud800"]', r"\ud800"),
    ],
)
def test_half_of_a_surrogate_pair_is_named(text: bytes, escape: str) -> None:
    assert told(text).startswith(f"{escape} is half of a surrogate pair, which is no text")


@pytest.mark.parametrize("text", [rb'["\\ud800', rb'["\ud83d\ude00', b"[1, 2"])
def test_what_is_cut_off_stays_so(text: bytes) -> None:
    assert told(text) == "Input data was truncated"


@pytest.mark.parametrize(
    "body",
    [
        rb'{"id": "\ud800", "inputs": []}',
        rb'{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["\ud800"]}]}',
        rb'{"inputs": [{"name": "\ud800", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}',
    ],
)
def test_requests_are_told_so(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
        decode_request(body, -1, 1)


def test_so_are_those_that_are_only_looked_at() -> None:
    with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
        peek_timeout_s(rb'{"id": "\ud800", "parameters": {"timeout": 5}}', -1)
