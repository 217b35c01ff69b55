"""A server in a process of its own, started as a user would, and its memory seen from outside; for tests, demo and benchmarks."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import psutil

from modelpool.protocol.record import anonymous_bytes

START_LIMIT_S = 30.0
STOP_LIMIT_S = 20.0


@contextlib.contextmanager
def serving(arguments: Sequence[str], folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Run `modelpool serve` on a free port with its state and log in `folder`; gives its address and its process.

    At the end it is told to stop. Raises RuntimeError where it does not start: how it ended, and what its log says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "modelpool.cli", "serve", *arguments, "--host", "127.0.0.1", "--http-port", str(port)]
    if "--grpc-port" not in arguments:
        command += ["--grpc-port", "off"]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen([*command, "--state-dir", str(folder / "state")], stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_ready(url, process, folder / "server.log")
        yield url, psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + START_LIMIT_S
    while time.monotonic() < limit and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            devices = httpx.get(f"{url}/devices", timeout=5, trust_env=False)
            if devices.is_success and any(device["up"] for device in devices.json()["devices"]):
                return
        time.sleep(0.1)
    code = process.poll()
    if code is None:
        how = f"was not ready within {START_LIMIT_S:.0f} s"
    else:
        how = f"ended at its start with {f'signal {-code}' if code < 0 else f'exit status {code}'}"
    said = log.read_text(errors="replace").strip()[-3000:]
    raise RuntimeError(f"the server {how}; its log, {log}, " + (f"says:\n{said}" if said else "is empty"))


class MemoryWatch:
    """Samples the private memory of a process and all its children.

    peak_bytes, now_bytes: above what it was when the watch began, before any model was loaded.
    """

    PERIOD_S = 0.01
    LOOK_FOR_CHILDREN = 20  # samples between two looks at who the children are

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._pids = self._tree()
        self._idle_bytes = self._total()
        self.peak_bytes = 0
        self.now_bytes = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join()

    def _tree(self) -> list[int]:
        return [self._process.pid, *(child.pid for child in self._process.children(recursive=True))]

    def _total(self) -> int:
        return sum(anonymous_bytes(pid) or 0 for pid in self._pids)

    def _watch(self) -> None:
        samples = 0
        while not self._end.wait(self.PERIOD_S):
            samples += 1
            if samples % self.LOOK_FOR_CHILDREN == 0:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._pids = self._tree()
            self.now_bytes = self._total() - self._idle_bytes
            self.peak_bytes = max(self.peak_bytes, self.now_bytes)
