"""A server in a process of its own, with what tests of faults need: signals, restarts, and the workers that outlive it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from modelpool.protocol.record import read_records

LIMIT_S = 40.0


def until(condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Wait until a condition is true; its value. A bound on a hang, not a measure of time."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        with contextlib.suppress(httpx.TransportError):
            if found := condition():
                return found
        time.sleep(0.02)
    raise AssertionError(f"never came: {what}")


class RunningServer:
    """`modelpool serve --json` on a free port; `client` asks it."""

    def __init__(self, repository: Path, state: Path, *arguments: str) -> None:
        self.state = state
        self.lines: list[str] = []
        self._command = [sys.executable, "-m", "modelpool", "serve", str(repository), "--http-port", "0", "--json", *arguments]
        self._command += ["--state-dir", str(state), "--set", "poll_interval=0.2s"]
        self.start()

    def start(self) -> None:
        """Start it (again) over the same state folder."""
        self.log = self.state.with_suffix(".log")
        with self.log.open("a") as log:
            self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.process.stdout.close()
            raise AssertionError(f"it did not start: {self.log.read_text()[-2000:]}")
        self.about = json.loads(line)
        self.connect()

    def connect(self) -> None:
        """A new client, without connections so far."""
        self.client = httpx.Client(base_url=self.about["url"], timeout=LIMIT_S, trust_env=False)

    def infer(self, model: str, value: float = 1.0, **parameters: Any) -> httpx.Response:
        """Ask a model that takes one FP32 input `x` of one row."""
        tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [value]}
        return self.client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor], "parameters": parameters})

    def value(self, model: str, value: float = 1.0) -> float:
        """The first output of `infer`."""
        answer = self.infer(model, value)
        assert answer.status_code == 200, answer.text
        return float(answer.json()["outputs"][0]["data"][0])

    def view(self, model: str) -> dict[str, Any]:
        """All that is known of a model."""
        found: dict[str, Any] = self.client.get("/models/view", params={"model_name": model}).json()
        return found

    def metric(self, row: str) -> float:
        """A figure of /metrics by its name and labels, as they stand there; 0 where it is not there."""
        lines = self.client.get("/metrics").text.splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == row), 0.0)

    def workers(self) -> dict[str, int]:
        """Process ids of the workers by name."""
        return {record.name: record.pid for record in read_records(self.state / "run")}

    def shared_worker(self) -> int:
        """Process id of the worker that holds models together, once there is one."""
        return int(until(lambda: self.workers().get("local"), "a shared worker"))

    def kill(self) -> None:
        """The server's process ends at once; its workers do not."""
        self.process.kill()
        self.process.wait()
        self.close()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(LIMIT_S)
        self.close()
        return code

    def close(self) -> None:
        """Let go of a process that ended."""
        self.client.close()
        assert self.process.stdout is not None
        self.process.stdout.close()


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextlib.contextmanager
def running(repository: Path, state: Path, *arguments: str) -> Iterator[RunningServer]:
    """A server that is ended with all its workers, whatever happens."""
    server = RunningServer(repository, state, *arguments)
    try:
        yield server
    finally:
        left = server.workers()
        if server.process.poll() is None:
            server.stop()
        server.close()
        for pid in left.values():
            with contextlib.suppress(ProcessLookupError):
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)


class Traffic:
    """Clients in threads that ask until told to stop; every answer is checked, every outcome kept."""

    def __init__(self, ask: Callable[[int], None], clients: int) -> None:
        self.faults: list[str] = []
        self.asked = 0
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(ask, number)) for number in range(clients)]

    def _run(self, ask: Callable[[int], None], number: int) -> None:
        while not self._end.is_set():
            try:
                ask(number)
            except Exception as error:
                self.faults.append(repr(error))
            self.asked += 1

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
