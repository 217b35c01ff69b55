"""Python models that call others (BLS), with real processes: what they require is there, and held, for as long as they run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from modelpool.testing.models import python_model, scale, write_config
from tests.integration.running import RunningServer, Traffic, running, until
from tests.integration.scripted import CONFIG, Gate, add_python

CALLER = """
import asyncio, os, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

def request(model, x, **more):
    return pb_utils.InferenceRequest(
        model_name=model, requested_output_names=["y"], inputs=[pb_utils.Tensor("x", x.astype(np.float32))], **more)

def result(response):
    if response.has_error():
        raise pb_utils.TritonModelException(f"code {{response.error().code()}}: {{response.error().message()}}")
    return pb_utils.get_output_tensor_by_name(response, "y").as_numpy()

class TritonPythonModel:
    {how} execute(self, requests):
        responses = []
        for one in requests:
            x = pb_utils.get_input_tensor_by_name(one, "x").as_numpy()
            {line}
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.asarray(y, np.float32))]))
        return responses
"""


def add_caller(repository: Path, name: str, line: str, *requires: str, how: str = "def") -> None:
    """A Python model whose answer `y` a line of its own makes of `x`."""
    write_config(repository / name, CONFIG)
    python_model(repository / name, CALLER.format(line=line, how=how))
    if requires:
        (repository / name / "modelpool.yaml").write_text(f"requires: [{', '.join(requires)}]\n")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for factor in (2, 3, 5):
        scale(folder / f"times{factor}.onnx", float(factor))
    add_caller(folder, "six", "y = result(request('times3', result(request('times2', x).exec())).exec())", "times2", "times3")
    add_caller(
        folder,
        "async_six",
        "y = result(await request('times3', result(await request('times2', x).async_exec())).async_exec())",
        "times2",
        "times3",
        how="async def",
    )
    add_caller(folder, "twelve", "y = 2 * result(request('six', x).exec())", "six")
    add_caller(folder, "undeclared", "y = result(request('times5', x).exec())")
    add_caller(folder, "each", "y = sum(result(one) for one in request('times2', x).exec(decoupled=True))", "times2")
    return folder


@pytest.fixture
def server(repository: Path, tmp_path: Path) -> Iterator[RunningServer]:
    with running(repository, tmp_path / "state", "--device", "cpu=2GiB") as found:
        yield found


def test_a_model_calls_others_that_come_with_it(server: RunningServer) -> None:
    assert server.value("six", 7) == 42
    assert server.value("async_six", 7) == 42
    assert server.value("each", 7) == 14
    assert server.metric('modelpool_requests_total{model="times2",outcome="ok"}') == 3


def test_calls_go_on_through_models_that_call_others(server: RunningServer) -> None:
    assert server.value("twelve", 7) == 84


def test_a_model_that_is_not_required_is_not_waited_for(server: RunningServer) -> None:
    answer = server.infer("undeclared", 7)
    assert answer.status_code == 500
    assert "model 'times5' is not resident, and model 'undeclared' calls it without having it in its `requires`" in answer.json()["error"]
    assert server.value("times5", 1) == 5
    assert server.value("undeclared", 7) == 35


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("y = result(request('nobody', x).exec())", "code 2: Request for unknown model: 'nobody' is not found"),
        ("y = result(request('times2', x, model_version=9).exec())", "code 2: "),
        ("y = result(request('times2', np.zeros((2, 2))).exec())", "code 3: "),
        ("y = result(request('', x).exec())", "needs its name"),
    ],
)
def test_errors_come_back_as_responses(repository: Path, server: RunningServer, line: str, told: str) -> None:
    add_caller(repository, "wrong", line, "times2")
    until(lambda: "wrong" in [model["name"] for model in server.client.post("/v2/repository/index").json()], "the new model")
    answer = server.infer("wrong", 7)
    assert answer.status_code == 500
    assert told in answer.json()["error"]
    assert server.value("six", 7) == 42


def test_a_call_has_a_limit(repository: Path, server: RunningServer, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    add_python(repository, "slow", gate.line)
    add_caller(repository, "hasty", "y = result(request('slow', x).exec(execution_timeout=50_000))", "slow")
    until(lambda: "hasty" in [model["name"] for model in server.client.post("/v2/repository/index").json()], "the new models")
    answer = server.infer("hasty", 7)
    assert answer.status_code == 500
    assert "took longer than its execution_timeout of 50000 us" in answer.json()["error"]
    gate.open()
    assert server.value("slow", 7) == 14


def test_closures_that_do_not_fit_together_take_turns(repository: Path, tmp_path: Path) -> None:
    for name in ("left", "right"):
        add_caller(
            repository, name, f"y = result(request('times{2 if name == 'left' else 3}', x).exec())", f"times{2 if name == 'left' else 3}"
        )
    for name, size in (("left", 60), ("right", 60), ("times2", 30), ("times3", 30)):
        folder = repository / name
        if not folder.is_dir():
            folder.mkdir()
            (folder / "1").mkdir()
            (repository / f"{name}.onnx").rename(folder / "1" / "model.onnx")
        file = folder / "modelpool.yaml"
        file.write_text((file.read_text() if file.exists() else "") + f"size: {size}MiB\n")
    with running(repository, tmp_path / "state", "--device", "cpu=100MiB") as server:

        def ask(number: int) -> None:
            name, factor = ("left", 2) if number % 2 else ("right", 3)
            assert server.value(name, number) == factor * number

        with Traffic(ask, 4) as traffic:
            until(lambda: all(server.metric(f'modelpool_loads_total{{model="{name}"}}') >= 2 for name in ("left", "right")), "turns")
        assert not traffic.faults
