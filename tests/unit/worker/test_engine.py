"""The engine: requests in, runs, answers out; unloads and the end. No socket, no process, no model library."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from modelpool.errors import ModelpoolError
from modelpool.protocol import messages
from modelpool.protocol.frames import ANSWER_PREFIX, INFER_PREFIX, Kind
from modelpool.protocol.inference import InferenceRequest
from modelpool.protocol.running import RunningTable, read_running
from modelpool.worker import loads
from modelpool.worker.engine import Engine
from tests.unit.worker.fakes import Doubling, Server, hosted, question, spec, until


class Rig:
    """An engine with one server connected."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table = RunningTable(path)
        self.engine = Engine(asyncio.get_running_loop(), self.table, baseline_bytes=0, isolated=False, verify_timeout_s=0.0)
        self.server = Server()
        self.engine.connect(self.server.link)

    def host(self, model: Doubling, copy: int = 1, versions: Sequence[int] = (1,)) -> Doubling:
        self.engine.copies[copy] = hosted(model, copy, versions)
        return model

    def ask(self, call: int, value: float, *, copy: int = 1, alone: bool = False, **options: object) -> None:
        payload = question(value, **options)  # type: ignore[arg-type]
        self.engine.infer(self.server.link, copy, call, memoryview(payload), alone)

    async def ran(self, model: Doubling, runs: int) -> None:
        await until(lambda: len(model.runs) >= runs)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path / "w.running")
    yield made
    ended = asyncio.Event()
    made.engine.stop(ended.set)
    await ended.wait()
    made.table.close()


async def test_what_arrives_in_one_turn_runs_together(rig: Rig) -> None:
    model = rig.host(Doubling(max_batch=4, batches=True))
    for call in range(1, 11):
        rig.ask(call, call)
    assert model.runs == []  # not before all that is readable was read
    assert await rig.server.wait(10) == {call: 2.0 * call for call in range(1, 11)}
    assert model.runs == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    heads = [ANSWER_PREFIX.unpack_from(payload) for kind, _, _, payload in rig.server.frames() if kind == Kind.ANSWER]
    assert [head[3] for head in heads] == [4] * 8 + [2] * 2
    assert sum(head[4] for head in heads) == 3


async def test_a_known_short_model_runs_on_the_loop_and_answers_alike(rig: Rig) -> None:
    model = rig.host(Doubling(max_batch=4, batches=True))
    for call in range(1, 40):
        rig.ask(call, call)
        await rig.server.wait(call)
    rig.ask(40, 40)
    await asyncio.sleep(0)
    assert rig.server.outcomes()[40] == 80.0  # in the very turn
    assert len(model.runs) == 40


async def test_at_most_so_many_runs_as_there_are_slots(rig: Rig) -> None:
    model = rig.host(Doubling(slots=2))
    model.gate = threading.Event()
    for call in range(1, 6):
        rig.ask(call, call)
    await rig.ran(model, 2)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(model.runs) == 2
    model.gate.set()
    assert await rig.server.wait(5) == {call: 2.0 * call for call in range(1, 6)}


async def test_a_slow_model_holds_up_no_other(rig: Rig) -> None:
    slow, quick = rig.host(Doubling(), 1), rig.host(Doubling(), 2)
    slow.gate = threading.Event()
    rig.ask(1, 1)
    await rig.ran(slow, 1)
    for call in range(2, 8):
        rig.ask(call, call, copy=2)
    assert await rig.server.wait(6) == {call: 2.0 * call for call in range(2, 8)}
    assert quick.runs == [[call] for call in range(2, 8)]
    slow.gate.set()
    assert (await rig.server.wait(7))[1] == 2.0


async def test_calls_are_marked_while_they_run_and_no_longer(rig: Rig) -> None:
    model = rig.host(Doubling())
    model.gate = threading.Event()
    rig.ask(11, 1)
    rig.ask(12, 1)
    await rig.ran(model, 1)
    assert 11 in read_running(rig.path)
    assert 12 not in read_running(rig.path)
    model.gate.set()
    await rig.server.wait(2)
    rig.ask(13, 1)
    await rig.server.wait(3)
    assert 11 not in read_running(rig.path)


async def test_one_request_does_not_fail_the_others_of_its_run(rig: Rig) -> None:
    model = rig.host(Doubling(max_batch=8, batches=True))

    def fail(requests: Sequence[InferenceRequest]) -> None:
        if any(request.inputs["X"].array[0, 0] == 3 for request in requests):
            raise KeyError("three")

    model.fail = fail
    for call in range(1, 6):
        rig.ask(call, call)
    assert await rig.server.wait(5) == {1: 2.0, 2: 4.0, 3: "model_error", 4: 8.0, 5: 10.0}
    assert model.runs == [[1, 2, 3, 4, 5], [1], [2], [3], [4], [5]]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), MemoryError(), RecursionError("deep")])
async def test_whatever_a_model_raises_is_an_answer(rig: Rig, error: BaseException) -> None:
    model = rig.host(Doubling())

    def fail(_: Sequence[InferenceRequest]) -> None:
        raise error

    model.fail = fail
    rig.ask(1, 1)
    assert await rig.server.wait(1) == {1: "model_error"}
    model.fail = None
    rig.ask(2, 1)
    assert (await rig.server.wait(2))[2] == 2.0


async def test_a_model_that_answers_too_little_is_at_fault(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    model = rig.host(Doubling())
    monkeypatch.setattr(model, "execute", lambda version, requests: [])
    rig.ask(1, 1)
    assert await rig.server.wait(1) == {1: "model_error"}


async def test_what_cannot_be_run_is_refused_at_once(rig: Rig) -> None:
    rig.host(Doubling())
    rig.ask(1, 1, copy=9)
    rig.ask(2, 1, version=9)
    rig.engine.infer(rig.server.link, 1, 3, memoryview(INFER_PREFIX.pack(-1, 0) + b"not json"))
    rig.engine.infer(rig.server.link, 1, 4, memoryview(b"x"))
    rig.ask(5, 1, parameters={"timeout": -1})
    assert rig.server.outcomes() == {
        1: "model_not_in_cache",
        2: "version_not_found",
        3: "bad_request",
        4: "internal_error",
        5: "bad_request",
    }


async def test_a_request_that_was_running_at_a_death_runs_alone(rig: Rig) -> None:
    model = rig.host(Doubling(max_batch=8, batches=True))
    for call in (1, 2, 3):
        rig.ask(call, call, alone=call == 2)
    await rig.server.wait(3)
    assert model.runs == [[1], [2], [3]]


async def test_versions_run_apart(rig: Rig) -> None:
    model = rig.host(Doubling(max_batch=8, batches=True), versions=(1, 2))
    for call, version in enumerate((0, 2, 1), 1):
        rig.ask(call, call, version=version)
    await rig.server.wait(3)
    assert (model.runs, model.versions) == ([[1, 2], [3]], [2, 1])


async def test_a_delay_gathers_a_batch(rig: Rig) -> None:
    model = rig.host(Doubling(max_batch=3, batches=True, max_delay_s=3600.0))
    rig.ask(1, 1)
    rig.ask(2, 2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert model.runs == []
    rig.ask(3, 3)
    await rig.server.wait(3)
    assert model.runs == [[1, 2, 3]]


async def test_withdrawn_requests_are_dropped(rig: Rig) -> None:
    model = rig.host(Doubling())
    model.gate = threading.Event()
    for call in (1, 2, 3):
        rig.ask(call, call)
    await rig.ran(model, 1)
    for call in (1, 2, 9):
        rig.engine.cancel(rig.server.link, 1, call)
    rig.engine.cancel(rig.server.link, 9, 3)
    model.gate.set()
    assert await rig.server.wait(3) == {1: 2.0, 2: "cancelled", 3: 6.0}
    assert model.runs == [[1], [3]]


async def test_an_unload_comes_after_the_runs_and_is_told(rig: Rig) -> None:
    model = rig.host(Doubling())
    model.gate = threading.Event()
    rig.ask(1, 1)
    await rig.ran(model, 1)
    rig.engine.unload(rig.server.link, 1, 50)
    rig.engine.unload(rig.server.link, 1, 51)
    rig.ask(2, 2)
    assert rig.server.outcomes() == {51: "model_not_in_cache", 2: "model_not_in_cache"}
    assert not model.closed
    model.gate.set()
    told = await until(lambda: [frame for frame in rig.server.frames() if frame[0] == Kind.UNLOADED])
    assert model.closed
    assert rig.server.outcomes()[1] == 2.0
    assert told[0][1:3] == (1, 50)
    assert messages.decode(told[0][3], messages.Unloaded).total_bytes > 0


async def test_another_server_does_not_get_the_answers_of_the_one_before(rig: Rig) -> None:
    model = rig.host(Doubling())
    model.gate = threading.Event()
    rig.ask(1, 1)
    rig.ask(2, 2)
    await rig.ran(model, 1)
    second = Server()
    rig.engine.connect(second.link)
    rig.engine.infer(second.link, 1, 3, memoryview(question(3)))
    model.gate.set()
    assert await second.wait(1) == {3: 6.0}
    assert model.runs == [[1], [3]]
    assert rig.server.outcomes() == {}


async def test_loads_are_answered_and_those_of_a_server_that_left_are_undone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [Doubling(), Doubling()]
    results: list[loads.LoadResult | ModelpoolError] = [loads.LoadResult(model, 0.5, 7, 8, 9) for model in models]
    monkeypatch.setattr(loads, "load", lambda spec, whole_process: results.pop(0))
    rig.engine.load(rig.server.link, 60, spec())
    told = await until(lambda: [frame for frame in rig.server.frames() if frame[0] == Kind.LOADED])
    loaded = messages.decode(told[0][3], messages.Loaded)
    assert (loaded.private_bytes, loaded.load_peak_bytes, loaded.total_bytes, loaded.load_s) == (7, 8, 9, 0.5)
    rig.engine.load(rig.server.link, 61, spec())
    assert rig.server.outcomes() == {61: "load_failed"}  # there is such a copy
    rig.engine.load(rig.server.link, 62, spec(2))
    rig.engine.connect(None)
    await until(lambda: models[1].closed)
    assert list(rig.engine.copies) == [1]


async def test_the_end_comes_after_what_was_accepted(rig: Rig) -> None:
    model = rig.host(Doubling())
    model.gate = threading.Event()
    for call in (1, 2):
        rig.ask(call, call)
    await rig.ran(model, 1)
    ended = asyncio.Event()
    rig.engine.stop(ended.set)
    rig.ask(3, 3)
    rig.engine.load(rig.server.link, 4, spec(2))
    assert not ended.is_set()
    model.gate.set()
    await ended.wait()
    assert model.closed
    outcomes = rig.server.outcomes()
    assert (outcomes[1], outcomes[2]) == (2.0, 4.0)
    assert outcomes[3] in ("shutting_down", "model_not_in_cache")
    assert outcomes[4] == "load_failed"
