"""A real Triton server on loopback, for tests and benchmarks; `make triton` fetches it."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

FOLDER = Path(__file__).resolve().parents[3] / ".triton"
START_LIMIT_S = 30.0


def unavailable() -> str | None:
    """Why there is no Triton here; None where there is one."""
    if (FOLDER / "ready").exists():
        return None
    reason = FOLDER / "unavailable"
    return reason.read_text().strip() if reason.exists() else "there is no Triton here; `make triton` fetches one"


def environment() -> dict[str, str]:
    """What a server is started with: its libraries, and the Python that its models run in."""
    path = os.pathsep.join((str(FOLDER / "venv" / "bin"), os.environ.get("PATH", "")))
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**clean, "PATH": path, "LD_LIBRARY_PATH": str(FOLDER / "lib")}


def command() -> str:
    """The command for `--triton-command`: it brings its environment along."""
    own = environment()
    words = ["env", "-u", "PYTHONPATH", *(f"{name}={own[name]}" for name in ("PATH", "LD_LIBRARY_PATH")), str(FOLDER / "tritonserver")]
    return shlex.join([*words, f"--backend-directory={FOLDER / 'backends'}", "--disable-auto-complete-config"])


@dataclass
class RunningTriton:
    """A server that runs; `start` it again on the same ports after `kill`."""

    models: Path
    log: Path
    http_port: int
    grpc_port: int
    metrics_port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """For `modelpool serve --triton`."""
        return f"127.0.0.1:{self.grpc_port},HTTP={self.http_port},METRICS={self.metrics_port},BACKENDS=python"

    @property
    def url(self) -> str:
        """Of its HTTP interface."""
        return f"http://127.0.0.1:{self.http_port}"

    def start(self) -> None:
        """Start it and wait until it answers. Raises RuntimeError with its log."""
        words = [str(FOLDER / "tritonserver"), f"--model-repository={self.models}", f"--backend-directory={FOLDER / 'backends'}"]
        words += ["--model-control-mode=explicit", "--disable-auto-complete-config", "--strict-readiness=false"]
        for kind, port in (("http", self.http_port), ("grpc", self.grpc_port), ("metrics", self.metrics_port)):
            words += [f"--{kind}-address=127.0.0.1", f"--{kind}-port={port}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(words, env=environment(), stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        limit = time.monotonic() + START_LIMIT_S
        while time.monotonic() < limit and self.process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/v2/health/live", timeout=5, trust_env=False).is_success:
                    return
            time.sleep(0.05)
        self.kill()
        raise RuntimeError(f"Triton did not start; its log says:\n{self.log.read_text(errors='replace')[-3000:]}")

    def kill(self) -> None:
        """End it at once, with the processes of its models."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def index(self) -> dict[str, str]:
        """What its index says: state by model."""
        found = httpx.post(f"{self.url}/v2/repository/index", timeout=5, trust_env=False).json()
        return {one["name"]: one.get("state", "") for one in found}

    def ready(self) -> set[str]:
        """The models that are READY."""
        return {name for name, state in self.index().items() if state == "READY"}


@contextlib.contextmanager
def running_triton(models: Path, folder: Path) -> Iterator[RunningTriton]:
    """A server over a repository on free ports, with its log in `folder`; it is ended at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    sockets = [socket.socket() for _ in range(3)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    server = RunningTriton(models, folder / "triton.log", *ports)
    try:
        server.start()
        yield server
    finally:
        server.kill()
