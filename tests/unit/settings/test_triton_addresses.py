"""How Triton servers are named on the command line, in variables and in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelpool.errors import InvalidRequest, SetupError
from modelpool.settings import load_settings
from modelpool.settings.triton import TritonAddress, parse_command, parse_triton


def test_an_address_has_ports_and_backends() -> None:
    address = parse_triton("gpu-1.example:8001, HTTP=8000,metrics=8002,BACKENDS=python+onnxruntime")
    assert address == TritonAddress("gpu-1.example", 8001, 8000, 8002, ("python", "onnxruntime"))
    assert parse_triton(str(address)) == address
    assert parse_triton("[::1]:8001").grpc == "[::1]:8001"


@pytest.mark.parametrize(
    "text", ["", "host", "host:", "host:0", "host:99999", "ho st:8001", "h:1,HTTP", "h:1,HTTP=x", "h:1,HTTP=1,HTTP=2", "h:1,X=1"]
)
def test_what_is_no_address_says_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidRequest, match="write for example"):
        parse_triton(text)


@pytest.mark.parametrize("text", ["", "tritonserver 'x"])
def test_what_is_no_command_says_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidRequest, match="write for example"):
        parse_command(text)


def test_they_come_from_options_variables_and_files(tmp_path: Path) -> None:
    two = (TritonAddress("a", 1, 2), TritonAddress("b", 3, 4))
    assert load_settings(None, {"triton": ("a:1,HTTP=2", "b:3,HTTP=4")}, {}).triton == two
    assert load_settings(None, {}, {"MODELPOOL_TRITON": "a:1,HTTP=2; b:3,HTTP=4"}).triton == two
    file = tmp_path / "settings.yaml"
    file.write_text("triton: ['a:1,HTTP=2', 'b:3,HTTP=4']\ntriton_command: [tritonserver --x, other]\n")
    assert load_settings(file, {}, {}).triton == two
    assert load_settings(file, {}, {}).triton_command == ("tritonserver --x", "other")
    with pytest.raises(SetupError, match="triton"):
        load_settings(None, {"triton": ("nowhere",)}, {})
