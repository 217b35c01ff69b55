"""Bad set-ups: each ends with exit code 2 and a sentence that says what to do."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from modelpool.testing.models import dense, scale


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    scale(folder / "times2.onnx", 2.0)
    return folder


def refused(*arguments: str) -> str:
    """What `serve` says when it does not start."""
    command = [sys.executable, "-m", "modelpool", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    said = refused(str(tmp_path / "nowhere"), "--state-dir", str(tmp_path / "state"))
    assert "nowhere" in said


@pytest.mark.parametrize("option", ["--http-port", "--grpc-port"])
def test_a_port_in_use(repository: Path, tmp_path: Path, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        said = refused(str(repository), "--state-dir", str(tmp_path / "state"), "--http-port", "0", option, port)
    assert port in said
    assert option in said


def test_a_device_that_does_not_exist(repository: Path, tmp_path: Path) -> None:
    said = refused(str(repository), "--state-dir", str(tmp_path / "state"), "--device", "cuda:7=1GiB")
    assert "cuda:7" in said


def test_a_budget_below_the_smallest_model(repository: Path, tmp_path: Path) -> None:
    (repository / "times2.onnx").unlink()
    dense(repository / "big.onnx", weight_bytes=8 << 20)
    said = refused(str(repository), "--state-dir", str(tmp_path / "state"), "--device", "cpu=1MiB")
    assert "big" in said
    assert "--device" in said


def test_a_state_folder_of_a_newer_version(repository: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    db = sqlite3.connect(state / "state.sqlite")
    db.execute("PRAGMA user_version=999")
    db.close()
    said = refused(str(repository), "--state-dir", str(state))
    assert "newer" in said
    assert "999" in said


def test_a_setting_that_does_not_exist_names_the_nearest(repository: Path, tmp_path: Path) -> None:
    said = refused(str(repository), "--state-dir", str(tmp_path / "state"), "--set", "keep_alife=5m")
    assert "keep_alive" in said


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB that is full."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], check=False).returncode != 0:
        pytest.skip("only root can mount the small file system that this needs")
    try:
        (folder / "filler").write_bytes(b"x" * 60_000)
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk(repository: Path, tiny_disk: Path) -> None:
    said = refused(str(repository), "--state-dir", str(tiny_disk / "state"))
    assert "--state-dir" in said
