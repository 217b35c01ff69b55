"""`modelpool serve` and its client in processes of their own, as users start them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from modelpool import errors
from modelpool.client import Client
from modelpool.testing.models import busy, scale
from tests.integration.running import until

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("MODELPOOL_")}
WIDTH = 64
FOR_EVER = 2_000_000  # rounds: longer than any test


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    scale(folder / "triple.onnx", 3.0)
    busy(folder / "busy.onnx", width=WIDTH)
    return folder


def start(repository: Path, state: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "modelpool", "serve", str(repository), "--state-dir", str(state), "--device", "cpu=100MiB", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def stream(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@pytest.fixture
def server(repository: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with start(
        repository, tmp_path / "state", "--http-port", "0", "--json", "--set", "stop_limit=30s", "--set", "poll_interval=0.2s"
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def url(server: subprocess.Popen[str]) -> str:
    ready = json.loads(stream(server.stdout).readline())
    assert ready["models"] == 2
    assert ready["malformed"] == 0
    assert ready["devices"] == {"cpu": 100 << 20}
    return str(ready["url"])


def run(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "modelpool", *arguments, "--url", url]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=30, check=False)


def infer_busy(client: Client, rounds: int, found: list[object]) -> threading.Thread:
    """Ask a busy model in a thread; what comes of it is put into `found`."""

    def ask() -> None:
        try:
            found.append(client.infer("busy", {"x": np.ones(WIDTH, np.float32), "rounds": np.array(rounds, np.int64)}))
        except errors.ModelpoolError as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def await_log(server: subprocess.Popen[str], words: str) -> None:
    for line in stream(server.stderr):
        if words in line:
            return
    raise AssertionError(f"the server never said {words!r}")


def await_running(client: Client, model: str) -> None:
    while client.model(model)["in_flight"] == 0:
        pass


def test_client_and_commands_against_a_real_server(server: subprocess.Popen[str], url: str) -> None:
    with Client(url) as client:
        assert client.infer("triple", {"x": np.arange(3, dtype=np.float32)})["y"].tolist() == [0, 3, 6]
        assert client.get_loaded_models()["cpu"]["triple"]["type"] == "onnx"
        with pytest.raises(errors.InvalidTensor, match="'x'"):
            client.infer("triple", {"wrong": [1.0]})
        with pytest.raises(errors.UnknownVersion):
            client.infer("triple", {"x": np.zeros(1, np.float32)}, version=9)
        with pytest.raises(errors.ModelpoolError) as caught:
            client.infer("..", {"x": np.zeros(1, np.float32)})
        assert caught.value.code in ("invalid_name", "model_not_found")
    assert "triple" in run(url, "models").stdout
    assert run(url, "explain", "triple").stdout.startswith("triple: READY\n")
    assert run(url, "eject", "triple").returncode == 0
    assert run(url, "eject", "triple").returncode == 4
    assert run(url, "load", "triple", "--json").returncode == 0
    assert json.loads(run(url, "devices", "--json").stdout)[0]["models"] == ["triple"]
    assert run(url, "pin", "triple").returncode == 0
    assert run(url, "unpin", "triple").returncode == 0
    assert len(json.loads(run(url, "decisions", "--limit", "2", "--json").stdout)) == 2
    assert run(url, "forget", "triple").returncode == 0
    assert run(url, "pin", "triple").returncode == 4
    assert run(url, "load", "triple").returncode == 0  # which makes it known again
    server.terminate()
    assert server.wait(30) == 0
    assert run(url, "models").returncode == 3


def test_a_pin_that_cannot_be_kept_is_refused(repository: Path, server: subprocess.Popen[str], url: str) -> None:
    for name, size in (("huge", "101MiB"), ("half", "60MiB"), ("other", "60MiB")):
        scale(repository / f"{name}.onnx", 2.0)
        (repository / f"{name}.modelpool.yaml").write_text(f"size: {size}\n")
    with Client(url) as client:
        until(lambda: {"huge", "half", "other"} <= {one["name"] for one in client.models()}, "the new models")
    assert run(url, "pin", "half").returncode == 0
    for name, words in (("huge", "can never be loaded"), ("other", "unpin half first")):
        done = run(url, "pin", name)
        assert (done.returncode, done.stdout) == (1, "")
        assert words in done.stderr
        assert "it is pinned" not in run(url, "explain", name).stdout
    assert run(url, "unpin", "half").returncode == 0
    assert run(url, "pin", "other").returncode == 0


def test_told_to_stop_it_finishes_what_runs_and_says_what_it_waits_for(server: subprocess.Popen[str], url: str) -> None:
    found: list[object] = []
    with Client(url) as client:
        thread = infer_busy(client, 300_000, found)
        await_running(client, "busy")
        server.send_signal(signal.SIGTERM)
        await_log(server, "waiting for 1 request: busy (1)")
        thread.join()
    assert server.wait(30) == 0
    assert isinstance(found[0], dict), found


def test_told_twice_it_stops_at_once(server: subprocess.Popen[str], url: str) -> None:
    found: list[object] = []
    with Client(url) as client:
        thread = infer_busy(client, FOR_EVER, found)
        await_running(client, "busy")
        server.send_signal(signal.SIGINT)
        await_log(server, "waiting for 1 request")
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 1
        thread.join()
    assert isinstance(found[0], errors.ModelpoolError)


def test_a_port_in_use_is_said_and_ends_with_code_2(repository: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with start(repository, tmp_path / "state", "--http-port", port) as process:
            out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    assert f"port {port}" in err.splitlines()[-1]
    assert "Traceback" not in err
