"""How close the gateway and its worker come to the least that a Python server can do.

    .venv/bin/python benchmarks/data_path.py

A tiny model's inference over HTTP is compared with a bare httptools/uvloop server that sends each body back, asked with the same
bytes by the same load generator, which checks every answer. Rounds alternate, and ratios are taken within a round, so that a machine
that is busy for a while slows both.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import httptools
import httpx
import msgspec
import psutil
import uvloop

from modelpool.testing.asking import Question, ask, post
from modelpool.testing.benchmarking import print_machine, print_result, server
from modelpool.testing.models import add_sub, write_config

VARIANTS = 64
CONNECTIONS = (1, 32)
PATH = "/v2/models/tiny/infer"


# --- what is asked -------------------------------------------------------------------------------------------------------------------
def build(folder: Path) -> None:
    """One tiny model that batches."""
    write_config(
        folder / "tiny",
        """
        platform: "onnxruntime_onnx"
        max_batch_size: 64
        input [ { name: "a" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "b" data_type: TYPE_FP32 dims: [ 4 ] } ]
        output [ { name: "sum" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "difference" data_type: TYPE_FP32 dims: [ 4 ] } ]
        dynamic_batching { }
        """,
    )
    add_sub(folder / "tiny" / "1" / "model.onnx")


def _body(variant: int) -> bytes:
    def tensor(name: str, values: list[float]) -> dict[str, object]:
        return {"name": name, "shape": [1, 4], "datatype": "FP32", "data": values}

    a = [float(variant + step) for step in range(4)]
    return msgspec.json.encode({"inputs": [tensor("a", a), tensor("b", [1.0, 2.0, 3.0, 4.0])]})


def model_questions(url: str) -> list[Question]:
    """Questions to the model, with the answers that it gave once and that were found right."""
    found = []
    for variant in range(VARIANTS):
        body = _body(variant)
        reply = httpx.post(f"{url}{PATH}", content=body, headers={"content-type": "application/json"}, trust_env=False)
        outputs = {output["name"]: output["data"] for output in reply.raise_for_status().json()["outputs"]}
        wanted = [float(variant + step + step + 1) for step in range(4)], [float(variant - 1)] * 4
        if (outputs["sum"], outputs["difference"]) != wanted:
            raise RuntimeError(f"a wrong answer: {outputs} instead of {wanted}")
        found.append(Question(post(PATH, body), reply.content))
    return found


def echo_questions() -> list[Question]:
    """The same questions; the answer is the question's body."""
    return [Question(post(PATH, body), body) for body in map(_body, range(VARIANTS))]


# --- the yardstick -------------------------------------------------------------------------------------------------------------------
class _Echo(asyncio.Protocol):
    """Parses a request and sends its body back."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(self._body)
        self._transport.write(head + self._body)


def _serve_echo(port: Connection) -> None:
    async def serve() -> None:
        listening = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", 0)
        port.send(listening.sockets[0].getsockname()[1])
        await listening.serve_forever()

    uvloop.run(serve())


# --- the comparison ------------------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Rounds:
    """Rates of one number of connections, round by round."""

    echo: list[float] = field(default_factory=list)
    model: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(model / echo for model, echo in zip(self.model, self.echo, strict=True))


@dataclass(frozen=True, slots=True)
class Target:
    """One side of the comparison, and the process that it runs in, with its children."""

    port: int
    questions: Sequence[Question]
    process: psutil.Process

    def cpu_s(self) -> float:
        """Processor time that it has used so far."""
        times = [process.cpu_times() for process in (self.process, *self.process.children(recursive=True))]
        return sum(one.user + one.system for one in times)


async def measure(target: Target, connections: int, seconds: float) -> tuple[float, float]:
    """Answers per second, and about how many microseconds of processor time each took."""
    before, started = target.cpu_s(), time.perf_counter()
    rate = (await ask(target.port, target.questions, connections, seconds)).per_s
    return rate, (target.cpu_s() - before) / (time.perf_counter() - started) / rate * 1e6


async def compare(targets: tuple[Target, Target], rounds: int, seconds: float) -> dict[int, Rounds]:
    """Rates of both, in alternation, by number of connections."""
    found = {connections: Rounds() for connections in CONNECTIONS}
    for number in range(rounds):
        for connections, rates in found.items():
            (echo, echo_us), (model, model_us) = [await measure(target, connections, seconds) for target in targets]
            rates.echo.append(echo)
            rates.model.append(model)
            sides = f"echo {echo:6.0f}/s ({echo_us:3.0f} us of CPU each), model {model:6.0f}/s ({model_us:3.0f} us)"
            print(f"round {number + 1}, {connections:2} connections: {sides}, {model / echo:.3f}", flush=True)
    return found


def main() -> None:
    """Print the rounds and the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement")
    options = parser.parse_args()
    print_machine()
    # As a client on another machine would be: it takes cores from what is measured, but does not interrupt it.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    echo = context.Process(target=_serve_echo, args=(there,), daemon=True)
    echo.start()
    try:
        with server(build) as (url, process):
            bare = Target(int(here.recv()), echo_questions(), psutil.Process(echo.pid))
            model = Target(int(url.rpartition(":")[2]), model_questions(url), process)
            found = uvloop.run(compare((bare, model), options.rounds, options.seconds))
    finally:
        echo.terminate()
        echo.join()
    print_result(**{f"embedded_vs_echo_c{connections}": rates.ratio for connections, rates in found.items()})


if __name__ == "__main__":
    main()
