"""The whole way of an inference, from the socket through the controller to a worker's process and back."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from modelpool.controller.controller import Controller
from modelpool.gateway.server import HttpServer
from modelpool.settings import Settings
from modelpool.testing.models import python_model, write_config
from tests.integration.gateway_repository import build
from tests.unit.gateway.wire import Wire, get, post, until

SLOW_START = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            time.sleep(1.0)

        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(request, "x").as_numpy())])
                for request in requests
            ]
"""


def question(number: float) -> bytes:
    def tensor(name: str, value: float) -> dict[str, Any]:
        return {"name": name, "datatype": "FP32", "shape": [1, 4], "data": [value] * 4}

    return json.dumps({"inputs": [tensor("a", number), tensor("b", 1.0)]}).encode()


def total(body: bytes) -> list[float]:
    return next(output["data"] for output in json.loads(body)["outputs"] if output["name"] == "sum")


@pytest.fixture
def serve(tmp_path: Path) -> Callable[[Callable[[Controller, int], Awaitable[None]]], None]:
    """Run a scenario against a controller and an HTTP server in this process, on the loop that the real server uses."""
    models = build(tmp_path / "models")
    write_config(
        models / "slow",
        """
        backend: "python"
        input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
        output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
        """,
    )
    python_model(models / "slow", SLOW_START)

    @contextlib.asynccontextmanager
    async def started() -> AsyncIterator[tuple[Controller, int]]:
        settings = Settings(repositories=[models], state_dir=tmp_path / "state", devices={"cpu": "500MiB"})
        controller = Controller(settings)
        await controller.start()
        server = HttpServer(controller, "127.0.0.1", 0)
        try:
            yield controller, await server.start()
        finally:
            await server.stop(limit_s=0.0)
            await controller.stop(limit_s=0.0)

    def run(scenario: Callable[[Controller, int], Awaitable[None]]) -> None:
        async def main() -> None:
            async with started() as (controller, port):
                await scenario(controller, port)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    return run


Serve = Callable[[Callable[[Controller, int], Awaitable[None]]], None]


def test_an_inference_of_a_resident_model_makes_no_task(serve: Serve) -> None:
    async def scenario(controller: Controller, port: int) -> None:
        made: list[str] = []

        def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
            made.append(coroutine.__qualname__)
            return asyncio.Task(coroutine, loop=loop, **options)

        async with Wire.to(port) as wire:
            assert (await wire.ask(post("tiny", question(0)))).status == 200
            asyncio.get_running_loop().set_task_factory(factory)
            for number in range(200):
                reply = await wire.ask(post("tiny", question(number)))
                assert total(reply.body) == [number + 1.0] * 4
            inferred = [name for name in made if "poll" not in name.lower()]  # the repository is looked at meanwhile
            assert not inferred
            await wire.ask(get("/v2"))
            assert len(made) > len(inferred)

    serve(scenario)


def test_what_arrives_together_runs_together(serve: Serve) -> None:
    count = 64

    async def scenario(controller: Controller, port: int) -> None:
        async with contextlib.AsyncExitStack() as stack:
            wires = [await stack.enter_async_context(Wire.to(port)) for _ in range(count)]
            assert (await wires[0].ask(post("tiny", question(0)))).status == 200
            before = controller.statistics("tiny")[0]["execution_count"]
            for number, wire in enumerate(wires):
                wire.writer.write(post("tiny", question(number)))
            for number, wire in enumerate(wires):
                assert total((await wire.reply()).body) == [number + 1.0] * 4
            assert controller.statistics("tiny")[0]["execution_count"] - before <= 16

    serve(scenario)


def test_one_load_serves_all_who_wait_and_those_who_left_are_not_run(serve: Serve) -> None:
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [5.0]}]}).encode()

    async def scenario(controller: Controller, port: int) -> None:
        async with Wire.to(port) as first, Wire.to(port) as second:
            async with Wire.to(port) as third:
                for wire in (first, second, third):
                    await wire.send(post("slow", body))
                await until(lambda: sum(controller.waiting_for().values()) == 3)
            for wire in (first, second):
                reply = await wire.reply()
                assert json.loads(reply.body)["outputs"][0]["data"] == [5.0]
                assert reply.headers["modelpool-queued"] == "1"
        (row,) = controller.statistics("slow")
        assert row["inference_count"] == 2
        counted = next(one for one in controller.metrics().models if one.model == "slow")
        assert (counted.loads, counted.outcomes) == (1, {"ok": 2, "cancelled": 1})

    serve(scenario)


def test_a_time_limit_ends_the_wait(serve: Serve) -> None:
    body = {"parameters": {"timeout": 50_000}, "inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [5.0]}]}

    async def scenario(controller: Controller, port: int) -> None:
        async with Wire.to(port) as wire:
            reply = await wire.ask(post("slow", json.dumps(body).encode()))
            assert (reply.status, reply.json["code"]) == (504, "timeout")
            assert int(reply.headers["retry-after"]) >= 1

    serve(scenario)
