"""What is kept from Triton servers, what their refusals mean, and what their own commands are completed with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modelpool.errors import InvalidRequest, SetupError
from modelpool.instances.triton.answers import Loss, judge
from modelpool.instances.triton.guard import check_request
from modelpool.instances.triton.memory import read_gpu_bytes
from modelpool.instances.triton.server import completed


def body(shape: list[int], data: list[Any]) -> bytes:
    return json.dumps({"inputs": [{"name": "x", "shape": shape, "datatype": "FP32", "data": data}]}).encode()


@pytest.mark.parametrize(("shape", "data"), [([2], [1, 2]), ([0], []), ([], [1]), ([1, 2], [float("nan"), float("inf")]), ([3, 0], [])])
def test_what_is_right_passes(shape: list[int], data: list[Any]) -> None:
    check_request(body(shape, data), -1)


@pytest.mark.parametrize("shape", [[2**31], [2**33], [2**64], [-1], [2**16] * 4, [2**33, 0], [1000]])
def test_shapes_that_the_body_cannot_have_do_not(shape: list[int]) -> None:
    with pytest.raises(InvalidRequest, match="shape"):
        check_request(body(shape, [1.0]), -1)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"inputs": 1}', b"\xff", b"[" * 100_000])
def test_what_is_no_request_does_not(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        check_request(text, -1)


def test_binary_data_counts_as_part_of_the_body() -> None:
    head = json.dumps({"inputs": [{"name": "x", "shape": [1000], "datatype": "FP32", "parameters": {"binary_data_size": 4000}}]}).encode()
    check_request(head + bytes(4000), len(head))
    with pytest.raises(InvalidRequest, match="Inference-Header"):
        check_request(head, len(head) + 1)


@pytest.mark.parametrize(
    ("status", "error", "loss", "code"),
    [
        (404, "Request for unknown model: 'm' is not found", Loss.GONE, "model_not_in_cache"),
        (404, "Request for unknown model: 'm' has no available versions", Loss.GONE, "model_not_in_cache"),
        (404, "Request for unknown model: 'm' version 7 is not found", Loss.NONE, "version_not_found"),
        (503, "m version 1 is not at ready state", Loss.GONE, "model_not_in_cache"),
        (503, "Exceeds maximum queue size", Loss.NONE, "queue_full"),
        (500, "Stub process 'm_0' is not healthy.", Loss.BROKEN, "instance_lost"),
        (500, "it was asked to", Loss.NONE, "model_error"),
        (400, "unexpected shape", Loss.NONE, "bad_request"),
    ],
)
def test_refusals_say_whether_the_model_is_there(status: int, error: str, loss: Loss, code: str) -> None:
    found = judge(status, json.dumps({"error": error}).encode())
    assert (found.loss, found.code) == (loss, code)
    assert error in found.message


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"<html>", b"[1]"])
def test_refusals_without_sense_are_errors_too(text: bytes) -> None:
    assert judge(500, text).message


def test_a_command_gets_what_it_does_not_name() -> None:
    words = completed("tritonserver --strict-readiness=true --model-repository /other", (1, 2, 3), [Path("/models")])
    assert words[:2] == ["tritonserver", "--strict-readiness=true"]
    assert {"--http-port=1", "--grpc-port=2", "--metrics-port=3", "--model-control-mode=explicit", "--http-address=127.0.0.1"} <= set(words)
    assert not any("/models" in word or word == "--strict-readiness=false" for word in words)
    with pytest.raises(SetupError, match="--http-port"):
        completed("tritonserver --http-port 8000", (1, 2, 3), [])


def test_gpu_memory_is_read_from_metrics() -> None:
    text = b"""# HELP x
nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"} 1000.000000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 250.000000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-b"} 1.000000
"""
    assert read_gpu_bytes(text) == {"GPU-a": (250, 1000)}
