"""Set-ups that are wrong, and disks that run full: the server says what is wrong and what to do, and ends with code 2, or goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from modelpool.testing.models import dense, scale, write_config
from tests.integration import zoo
from tests.integration.running import running
from tests.integration.serving import infer, question, restart, until

X = question(x=np.array([2.0], np.float32))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    scale(tmp_path / "models" / "double.onnx", 2.0)
    return tmp_path / "models"


def refused(tmp_path: Path, *arguments: str) -> str:
    """What `serve` says when it does not start: one sentence, no trace, exit code 2."""
    command = [sys.executable, "-m", "modelpool", "serve", *arguments, "--http-port", "0"]
    if "--state-dir" not in arguments:
        command += ["--state-dir", str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert not done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


# --- repositories ---------------------------------------------------------------------------------------------------------------------
def test_a_repository_that_is_none(models: Path, tmp_path: Path) -> None:
    said = refused(tmp_path, str(models / "double.onnx"))
    assert "double.onnx" in said
    assert "Not a directory" in said
    write_config(models, 'backend: "onnxruntime"')
    assert "is itself a model" in refused(tmp_path, str(models))


def test_a_repository_that_may_not_be_read(models: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    models.chmod(0)
    try:
        said = refused(tmp_path, str(models))
    finally:
        models.chmod(0o755)
    assert "Permission denied" in said
    assert "permissions" in said


def test_models_that_may_not_be_read_are_listed(models: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    scale(models / "closed.onnx", 3.0).chmod(0)
    with running(models, tmp_path / "state") as server:
        (row,) = [row for row in server.client.post("/v2/repository/index").json() if row["name"] == "closed"]
        assert "permissions" in row["reason"]
        assert server.value("double") == 2.0


def test_one_good_repository_does_not_excuse_a_missing_one(models: Path, tmp_path: Path) -> None:
    assert "nowhere" in refused(tmp_path, str(models), str(tmp_path / "nowhere"))


# --- settings -------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "gpu=1GiB"], "gpu"),
        (["--device", "cpu=plenty"], "200MiB"),
        (["--device", "cpu=-5"], "cpu"),
        (["--device", "cpu=0"], "cpu"),
        (["--device", "cpu=1GiB", "--device", "cpu=2GiB"], "twice"),
        (["--eviction", "random"], "demand"),
        (["--keep-alive", "soon"], "5m"),
        (["--host", "no.such.host.invalid"], "--host"),
        (["--host", "203.0.113.77"], "--host"),
        (["--set", "queue_bound=0"], "queue_bound"),
        (["--set", "queue_bound=lots"], "queue_bound"),
        (["--set", "body_limit=0"], "body_limit"),
        (["--set", "nonsense"], "NAME=VALUE"),
        (["--set", "colour=red"], "colour"),
        (["--config", "/nowhere/settings.yaml"], "/nowhere/settings.yaml"),
    ],
)
def test_settings_that_make_no_sense(models: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    assert words in refused(tmp_path, str(models), *arguments)


def test_a_state_folder_that_is_none_is_in_use_or_damaged(models: Path, tmp_path: Path) -> None:
    assert "--state-dir" in refused(tmp_path, str(models), "--state-dir", str(models / "double.onnx"))
    assert "--state-dir" in refused(tmp_path, str(models), "--state-dir", "/proc/nowhere")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "state.sqlite").write_bytes(b"this is no database, but a long sentence" * 100)
    said = refused(tmp_path, str(models), "--state-dir", str(damaged))
    assert "state.sqlite" in said
    assert "remove or repair it" in said
    with running(models, tmp_path / "used") as server:
        said = refused(tmp_path, str(models), "--state-dir", str(tmp_path / "used"))
        assert "another modelpool uses the state folder" in said
        assert server.value("double") == 2.0


def test_a_budget_below_all_models_but_one(models: Path, tmp_path: Path) -> None:
    dense(models / "big.onnx", weight_bytes=8 << 20)
    with running(models, tmp_path / "state", "--device", "cpu=4MiB") as server:  # one fits: the others are refused when asked for
        assert server.value("double") == 2.0
        assert infer(server, "big", X).status_code == 507
    (models / "double.onnx").unlink()
    said = refused(tmp_path, str(models), "--device", "cpu=4MiB")
    assert "'big'" in said
    assert "--device cpu=SIZE" in said


def test_told_to_stop_while_it_starts(models: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "modelpool", "serve", str(models), "--http-port", "0", "--state-dir", str(tmp_path / "state")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(0.6)  # after the imports, before it is ready; whichever it is, it must end well
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in said


# --- full disks -----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("free_kib", [0, 8, 100])
def test_a_disk_that_is_full_at_the_start(models: Path, tmp_path: Path, disk_of: Callable[[str], Path], free_kib: int) -> None:
    disk = disk_of("256k")
    (disk / "filler").write_bytes(b"x" * ((256 - 8 - free_kib) << 10))
    said = refused(tmp_path, str(models), "--state-dir", str(disk / "state"))
    assert "full" in said or "No space left" in said
    assert "--state-dir" in said


def test_a_disk_that_runs_full_while_it_serves(models: Path, tmp_path: Path, disk_of: Callable[[str], Path]) -> None:
    scale(models / "triple.onnx", 3.0)
    zoo.python_raising(models / "python")
    disk = disk_of("1m")
    with running(models, disk / "state", "--device", "cpu=1GiB") as server:
        _fill(disk / "filler")
        assert server.value("double") == 2.0  # what needs no disk goes on
        assert server.value("triple") == 3.0
        properties = {"url": "double.onnx", "type": "onnx"}
        assert server.client.post("/models", json={"model_name": "posted", "model_properties": properties}).status_code == 200
        assert server.client.post("/models/pin", params={"model_name": "triple"}).status_code == 200
        answer = infer(server, "python", X)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")  # it needs files for a process of its own
        assert "full: free some space" in answer.json()["error"]
        (disk / "filler").unlink()
        until(lambda: infer(server, "python", X).status_code == 200, "the Python model, now that there is room")
        restart(server)
        assert server.value("posted") == 2.0  # written once there was room
        assert server.view("triple")["pinned"]


def test_a_shared_worker_that_dies_while_the_disk_is_full(models: Path, tmp_path: Path, disk_of: Callable[[str], Path]) -> None:
    scale(models / "triple.onnx", 3.0)
    zoo.python_raising(models / "python")
    disk = disk_of("1m")
    with running(models, disk / "state", "--device", "cpu=1GiB") as server:
        assert server.value("double") == 2.0
        assert infer(server, "python", X).status_code == 200
        _fill(disk / "filler")
        os.kill(server.shared_worker(), signal.SIGKILL)
        begun = time.monotonic()
        for model in ("double", "triple", "double"):
            answer = infer(server, model, X, timeout=60)  # the first waits for the restart, the others are told at once
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert "full: free some space" in answer.json()["error"]
            assert int(answer.headers["Retry-After"]) >= 1
        assert time.monotonic() - begun < 30  # and not request_timeout, which is 120 s
        assert infer(server, "python", X).status_code == 200  # what lives goes on
        assert server.client.get("/v2/health/ready").status_code == 400
        assert server.client.get("/v2/models/python/ready").status_code == 200
        (disk / "filler").unlink()
        until(lambda: server.client.get("/v2/health/ready").status_code == 200, "the worker, now that there is room")
        until(lambda: infer(server, "double", X).status_code == 200, "the model, after its pause")


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1024))
