"""Configurations and files that come with a load."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from modelpool.errors import InvalidRequest
from modelpool.gateway.overrides import read_overrides

DATA = base64.b64encode(b"model").decode()


def test_a_configuration_and_files_are_read() -> None:
    given = {"config": '{"max_batch_size": 8}', "file:1/model.onnx": DATA, "file:2/sub/weights.bin": b"raw", "unload_dependents": True}
    found = read_overrides(given)
    assert found == {"config": '{"max_batch_size": 8}', "file:1/model.onnx": b"model", "file:2/sub/weights.bin": b"raw"}
    assert read_overrides({"unload_dependents": True}) is None


@pytest.mark.parametrize(
    "given",
    [
        {"file:1/model.onnx": DATA},
        {"config": "{"},
        {"config": "[]"},
        {"config": {"max_batch_size": 8}},
        *(
            {"config": "{}", name: DATA}
            for name in ("file:", "file:1", "file:1/", "file:x/m", "file:1/../m", "file:1//m", "file:1/" + 256 * "m")
        ),
        {"config": "{}", "file:1/m": "no base64!"},
        {"config": "{}", "file:1/m": 7},
    ],
)
def test_what_would_end_triton_or_is_none_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        read_overrides(given)
