"""The worker program by itself, spoken to frame by frame."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelpool.protocol import messages
from modelpool.protocol.frames import ANSWER_PREFIX, INFER_PREFIX, WIRE_VERSION, Kind, frame
from modelpool.protocol.inference import decode_response, encode_request
from modelpool.protocol.record import connect, read_records, socket_path
from modelpool.protocol.stream import FrameConnection
from tests.integration.embedded import FAULTY, faulty, until

Frame = tuple[int, int, int, bytes]


class Client(FrameConnection):
    """A server's end that keeps all frames."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.frames: list[Frame] = []
        self.ended = asyncio.Event()
        self._more = asyncio.Event()

    def frame_received(self, kind: int, copy: int, call: int, payload: memoryview) -> None:
        self.frames.append((kind, copy, call, bytes(payload)))
        self._more.set()

    def closed(self) -> None:
        self.ended.set()

    async def next(self, *kinds: Kind) -> Frame:
        """Take out the first frame of these kinds, now or when it comes."""
        while True:
            for found in self.frames:
                if found[0] in kinds:
                    self.frames.remove(found)
                    return found
            self._more.clear()
            await self._more.wait()

    async def hello(self, wire_version: int = WIRE_VERSION) -> messages.Welcome:
        self.send(Kind.HELLO, 0, 1, messages.encode(messages.Hello(wire_version=wire_version, server="test")))
        return messages.decode((await self.next(Kind.WELCOME))[3], messages.Welcome)

    async def load(self, copy: int, **config: Any) -> messages.Loaded:
        self.send(Kind.LOAD, copy, 2, messages.encode(faulty(copy, **config)))
        return messages.decode((await self.next(Kind.LOADED))[3], messages.Loaded)

    async def answer(self) -> tuple[int, float]:
        """Call and first value of the next answer."""
        _, _, call, payload = await self.next(Kind.ANSWER)
        answer = decode_response(payload[ANSWER_PREFIX.size :], ANSWER_PREFIX.unpack_from(payload)[0])
        return call, float(answer.outputs["Y"].array[0, 0])


def question(value: float) -> bytes:
    """The payload of an INFER frame."""
    body = encode_request({"X": np.full((1, 2), value, np.float32)})
    return INFER_PREFIX.pack(body.json_bytes, 0) + body.joined()


class Program:
    """A worker process."""

    def __init__(self, run_dir: Path, *arguments: str) -> None:
        self.run_dir = run_dir
        run_dir.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "modelpool.worker", "--run-dir", str(run_dir), "--name", "w", *arguments]
        source = str(Path(messages.__file__).parents[2])
        with (run_dir / "out").open("ab") as out:
            environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{FAULTY}"}
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)

    async def client(self) -> Client:
        await until(lambda: read_records(self.run_dir))
        loop = asyncio.get_running_loop()
        _, client = await loop.create_unix_connection(lambda: Client(loop), sock=connect(socket_path(self.run_dir, "w")))
        return client

    async def exit_code(self) -> int:
        return await asyncio.to_thread(self.process.wait)


@contextlib.asynccontextmanager
async def program(run_dir: Path, *arguments: str) -> AsyncIterator[Program]:
    made = Program(run_dir, *arguments)
    try:
        yield made
    finally:
        made.process.kill()
        await made.exit_code()


async def test_a_worker_greets_loads_runs_and_stops(tmp_path: Path) -> None:
    async with program(tmp_path) as worker:
        client = await worker.client()
        (record,) = read_records(tmp_path)
        welcome = await client.hello()
        assert (welcome.worker, welcome.pid, welcome.generation, welcome.copies) == ("w", record.pid, record.generation, ())
        assert welcome.baseline_bytes > 1 << 20
        loaded = await client.load(5, keep_bytes=30_000_000)
        assert 28_000_000 < loaded.private_bytes < 40_000_000
        assert loaded.inputs[0].datatype == "FP32"
        client.send(Kind.INFER, 5, 7, question(4))
        assert await client.answer() == (7, 8)
        again = await client.hello()  # the same server may ask anew
        assert [held.spec.model for held in again.copies] == ["m5"]
        client.send(Kind.PROBE, 0, 9)
        _, _, call, payload = await client.next(Kind.OBSERVED)
        while call == 0:  # what runs added comes unasked
            _, _, call, payload = await client.next(Kind.OBSERVED)
        assert call == 9
        assert messages.decode(payload, messages.Observed).baseline_bytes == welcome.baseline_bytes
        client.send(Kind.UNLOAD, 5, 10)
        assert (await client.next(Kind.UNLOADED))[1:3] == (5, 10)
        client.send(Kind.STOP, 0, 0)
        await client.ended.wait()
        assert await worker.exit_code() == 0
        assert os.listdir(tmp_path) == ["out"]


async def test_what_was_accepted_before_the_stop_is_answered(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with program(tmp_path) as worker:
        client = await worker.client()
        await client.hello()
        await client.load(1, gate=str(gate), runs_to=str(tmp_path / "runs"))
        for call in range(10, 15):
            client.send(Kind.INFER, 1, call, question(call))
        await until((tmp_path / "runs").exists)
        client.send(Kind.STOP, 0, 0)
        client.send(Kind.INFER, 1, 15, question(0))
        _, _, refused, _ = await client.next(Kind.ERROR)
        assert refused == 15
        gate.touch()
        assert [await client.answer() for _ in range(10, 15)] == [(call, 2 * call) for call in range(10, 15)]
        assert await worker.exit_code() == 0


async def test_sixty_four_frames_that_arrive_together_take_at_most_sixteen_runs(tmp_path: Path) -> None:
    async with program(tmp_path) as worker:
        client = await worker.client()
        await client.hello()
        await client.load(1, max_batch_size=64, batches=True)
        for _ in range(6):
            client.write(b"".join(frame(Kind.INFER, 1, call, question(call)) for call in range(100, 164)))
            runs = 0
            for _ in range(64):
                _, _, call, payload = await client.next(Kind.ANSWER)
                json_bytes, _, _, _, executions = ANSWER_PREFIX.unpack_from(payload)
                runs += executions
                assert decode_response(payload[ANSWER_PREFIX.size :], json_bytes).outputs["Y"].array[0, 0] == 2 * call
            assert runs <= 16


async def test_a_newer_server_replaces_the_older_and_finds_the_copies(tmp_path: Path) -> None:
    async with program(tmp_path) as worker:
        first = await worker.client()
        await first.hello()
        await first.load(1)
        second = await worker.client()
        assert not first.ended.is_set()  # a connection alone is no server
        welcome = await second.hello()
        await first.ended.wait()
        (held,) = welcome.copies
        assert held.spec == faulty(1)
        second.send(Kind.INFER, 1, 7, question(1))
        assert await second.answer() == (7, 2)


async def test_a_server_that_speaks_another_language_gets_no_further_than_the_greeting(tmp_path: Path) -> None:
    async with program(tmp_path) as worker:
        client = await worker.client()
        assert (await client.hello(WIRE_VERSION + 1)).wire_version == WIRE_VERSION
        client.send(Kind.LOAD, 1, 2, messages.encode(faulty(1)))
        await client.ended.wait()
        other = await worker.client()
        await other.hello(WIRE_VERSION + 1)
        other.send(Kind.STOP, 0, 0)  # which every version understands
        assert await worker.exit_code() == 0


@pytest.mark.parametrize(("kind", "payload"), [(Kind.HELLO, b"{"), (Kind.LOAD, b"{}"), (Kind.PROBE, b"")])
async def test_rubbish_ends_a_connection_and_not_the_worker(tmp_path: Path, kind: Kind, payload: bytes) -> None:
    async with program(tmp_path) as worker:
        client = await worker.client()
        client.send(kind, 0, 1, payload)
        await client.ended.wait()
        other = await worker.client()
        await other.hello()
        await other.load(1)


async def test_a_worker_without_a_server_ends_after_its_time_of_grace(tmp_path: Path) -> None:
    async with program(tmp_path, "--orphan-grace", "0.3") as worker:
        assert await worker.exit_code() == 0
    async with program(tmp_path, "--orphan-grace", "0.3") as worker:
        client = await worker.client()
        await client.hello()
        await client.load(1)
        client.close()
        assert await worker.exit_code() == 0
        assert not read_records(tmp_path)


async def test_sigterm_ends_a_worker_only_if_it_has_no_server(tmp_path: Path) -> None:
    async with program(tmp_path) as worker:
        client = await worker.client()
        await client.hello()
        for number in (signal.SIGTERM, signal.SIGINT):
            worker.process.send_signal(number)
        await client.load(1)
        client.close()
        await until(lambda: b"the server is gone" in (tmp_path / "out").read_bytes())
        worker.process.send_signal(signal.SIGINT)
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.exit_code() == 0


async def test_the_files_of_a_successor_are_left_alone(tmp_path: Path) -> None:
    async with program(tmp_path) as worker, contextlib.AsyncExitStack() as stack:
        client = await worker.client()
        await client.hello()
        (before,) = read_records(tmp_path)
        await stack.enter_async_context(program(tmp_path))
        await until(lambda: read_records(tmp_path) != [before])
        client.send(Kind.STOP, 0, 0)
        assert await worker.exit_code() == 0
        assert read_records(tmp_path)
        assert socket_path(tmp_path, "w").exists()


async def test_a_log_file_may_be_named(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    async with program(tmp_path, "--log", str(log), "--preload", "no-such-runtime") as worker:
        client = await worker.client()
        await client.hello()
        client.send(Kind.STOP, 0, 0)
        assert await worker.exit_code() == 0
    assert "there is no runtime 'no-such-runtime'" in log.read_text()
    assert (tmp_path / "out").read_bytes() == b""
