"""The embedded instance with real worker processes: requests, loads, faults, adoption."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelpool.core.events import CopyLost, InstanceDown, InstanceUp, Loaded, LoadFailed, Observed
from modelpool.errors import InvalidTensor, ModelError, NotCached, RequestTimeout, SetupError, UnknownVersion
from modelpool.instances import adoption
from modelpool.instances import peer as peer_module
from modelpool.instances.embedded import DEATHS_BEFORE_PROBLEM
from modelpool.instances.peer import Peer
from modelpool.instances.process import default_python
from modelpool.protocol.messages import LoadSpec, VersionSpec
from modelpool.protocol.record import WorkerRecord, write_record
from tests.integration.embedded import FAULTY, Asked, Cancelled, Lost, Rig, outcome_of, rig, until
from tests.integration.faulty.faulty_runtime import DIE, EXIT, GRIP, NO_MEMORY, RAISE, WRONG
from tests.integration.running import alive
from tests.unit.runtimes.onnx_models import FLOAT, helper, write

MB = 1_000_000


@pytest.fixture(autouse=True)
def _faulty_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", FAULTY)


def onnx_double(folder: Path, **config: Any) -> LoadSpec:
    """`x`[n, 4] -> `y` = x + x."""
    path = write(folder / "model.onnx", [helper.make_node("Add", ["x", "x"], ["y"])], [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 4])])
    return LoadSpec(
        copy=1,
        model="m1",
        revision="r",
        runtime="onnx",
        device="cpu",
        model_dir=str(folder),
        versions=(VersionSpec(1, str(path)),),
        default_version=1,
        config=config,
    )


def python_pid(folder: Path, count: int) -> LoadSpec:
    """A Python model that answers its process id after a while."""
    version = folder / "1"
    version.mkdir()
    (version / "model.py").write_text(
        "import os, time\n"
        "import numpy as np\n"
        "import triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        time.sleep(0.05)\n"
        "        pid = np.array([os.getpid()], np.int64)\n"
        "        return [pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor('PID', pid)]) for _ in requests]\n"
    )
    config = {
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1, -1]}],
        "output": [{"name": "PID", "data_type": "TYPE_INT64", "dims": [1]}],
        "instance_group": [{"kind": "KIND_CPU", "count": count}],
    }
    return LoadSpec(
        copy=1,
        model="m1",
        revision="r",
        runtime="python",
        device="cpu",
        model_dir=str(folder),
        versions=(VersionSpec(1, str(version)),),
        default_version=1,
        config=config,
    )


# --- the ordinary way ------------------------------------------------------------------------------------------------------------
async def test_a_model_is_loaded_run_and_unloaded_and_its_bytes_are_told(tmp_path: Path) -> None:
    run_dir = tmp_path / ("d" * 120)  # longer than a Unix socket's address may be
    async with rig(run_dir) as one:
        assert one.up is not None
        assert one.up.devices == (("cpu", 1 << 30),)
        loaded = await one.load(1, keep_bytes=40 * MB)
        assert 38 * MB < loaded.private_bytes < 50 * MB
        assert loaded.load_peak_bytes >= loaded.private_bytes
        assert await one.value(1, 3.0) == 6.0
        (process,) = one.instance.describe()["processes"]
        assert process["models"] == ["m1"]
        assert process["private_bytes"] > 38 * MB
        unloaded = await one.unload(1)
        assert unloaded.total_bytes is not None
        assert unloaded.total_bytes < 10 * MB
        assert stat.S_IMODE((run_dir / "w.sock").stat().st_mode) == 0o600
    assert not list(run_dir.glob("w.[!l]*"))


async def test_sixty_four_simultaneous_requests_take_at_most_sixteen_runs(tmp_path: Path) -> None:
    async with rig(tmp_path / "run", preload=("onnx",)) as one:
        await one.load(1, spec=onnx_double(tmp_path, max_batch_size=32, dynamic_batching={}))
        for _ in range(5):  # a model that is new, one that is known
            calls = [one.send(1, {"x": np.full((1, 4), number, np.float32)}) for number in range(64)]
            for number, call in enumerate(calls):
                assert (await call.outcome)["y"].tolist() == [[2.0 * number] * 4]
            assert sum(call.executions for call in calls) <= 16


async def test_requests_that_arrive_during_a_run_share_the_next_one(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with rig(tmp_path / "run") as one:
        await one.load(1, max_batch_size=8, batches=True, gate=str(gate), runs_to=str(tmp_path / "runs"))
        first = one.ask(1, 100)
        await until((tmp_path / "runs").exists)
        others = [one.ask(1, number) for number in range(20)]
        await asyncio.sleep(0.05)
        gate.touch()
        for number, call in enumerate(others):
            assert (await call.outcome)["Y"][0, 0] == 2 * number
        assert (await first.outcome)["Y"][0, 0] == 200
        assert first.batch == 1
        assert sorted(call.batch for call in others) == [4] * 4 + [8] * 16


async def test_a_batch_waits_for_its_delay(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        await one.load(1, max_batch_size=4, batches=True, max_delay_s=0.3)
        calls = []
        for number in range(3):
            calls.append(one.ask(1, number))
            await asyncio.sleep(0.01)
        await asyncio.gather(*(call.outcome for call in calls))
        assert [call.batch for call in calls] == [3, 3, 3]


async def test_what_does_not_batch_runs_one_by_one_in_its_slots(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        await one.load(1, slots=2, run_s=0.002)
        calls = [one.ask(1, number) for number in range(10)]
        for number, call in enumerate(calls):
            assert (await call.outcome)["Y"][0, 0] == 2 * number
            assert (call.batch, call.executions) == (1, 1)


async def test_large_bodies_go_both_ways(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        await one.load(1)
        large = np.arange(1_500_000, dtype=np.float32).reshape(1, -1)
        calls = [one.send(1, {"X": large + number}) for number in range(4)]
        small = one.ask(1, 1)
        for number, call in enumerate(calls):
            assert np.array_equal((await call.outcome)["Y"], (large + number) * 2)
        assert (await small.outcome)["Y"][0, 0] == 2


async def test_a_load_holds_up_no_other_model(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with rig(tmp_path / "run") as one:
        await one.load(1)
        one.begin_load(2, load_gate=str(gate))
        for number in range(20):
            assert await one.value(1, number) == 2 * number
        assert len(one.events.of(Loaded)) == 1
        gate.touch()
        await one.events.next(Loaded)
        assert await one.value(2, 4) == 8


# --- requests that fail ------------------------------------------------------------------------------------------------------------
async def test_a_request_that_fails_does_not_fail_those_that_share_its_run(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        await one.load(1, max_batch_size=32, batches=True)
        for bad, kind, message in [
            (RAISE, ModelError, "ValueError: the model does not like this"),
            (NO_MEMORY, ModelError, "out of memory"),
            (EXIT, ModelError, "SystemExit: 3"),
            (WRONG, InvalidTensor, "X is wrong"),
        ]:
            calls = [one.ask(1, value) for value in (1, 2, bad, 3)]
            outcomes = [await outcome_of(call) for call in calls]
            assert isinstance(outcomes[2], kind)
            assert str(outcomes[2]) == message
            assert [outcomes[place]["Y"][0, 0] for place in (0, 1, 3)] == [2, 4, 6]


async def test_a_message_that_json_cannot_carry_is_told_all_the_same(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        await one.load(1, complaint_bytes=[110, 111, 255])
        for _ in range(2):
            with pytest.raises(ModelError, match="no"):
                await one.ask(1, RAISE).outcome
        assert await one.value(1, 2) == 4


async def test_a_request_whose_time_ran_out_does_not_run(tmp_path: Path) -> None:
    gate, runs = tmp_path / "gate", tmp_path / "runs"
    async with rig(tmp_path / "run") as one:
        await one.load(1, gate=str(gate), runs_to=str(runs))
        first = one.ask(1, 1)
        late = one.ask(1, 2, {"timeout": 1000})
        patient = one.ask(1, 3, {"timeout": 60_000_000})
        await until(runs.exists)
        await asyncio.sleep(0.01)
        gate.touch()
        with pytest.raises(RequestTimeout):
            await late.outcome
        assert (await first.outcome)["Y"][0, 0] == 2
        assert (await patient.outcome)["Y"][0, 0] == 6
        assert len(runs.read_text().splitlines()) == 2


async def test_a_withdrawn_request_is_dropped_unless_it_runs(tmp_path: Path) -> None:
    gate, runs = tmp_path / "gate", tmp_path / "runs"
    async with rig(tmp_path / "run") as one:
        await one.load(1, gate=str(gate), runs_to=str(runs))
        first, second = one.ask(1, 1), one.ask(1, 2)
        await until(runs.exists)
        for call in (first, second):
            one.instance.route(1).cancel(call)
        with pytest.raises(Cancelled):
            await second.outcome
        gate.touch()
        assert (await first.outcome)["Y"][0, 0] == 2
        assert len(runs.read_text().splitlines()) == 1


async def test_a_copy_or_version_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        await one.load(1)
        route = one.instance.route(1)
        call = Asked("m1", {"X": np.ones((1, 2), np.float32)})
        call.version = 7
        route.infer(call)
        with pytest.raises(UnknownVersion):
            await call.outcome
        await one.unload(1)
        call = Asked("m1", {"X": np.ones((1, 2), np.float32)})
        route.infer(call)
        with pytest.raises(NotCached):
            await call.outcome
        assert (await one.unload(1)).copy == 1


# --- loads that fail -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("isolated", [False, True])
async def test_a_load_that_fails_says_why_and_leaves_nothing(tmp_path: Path, isolated: bool) -> None:
    async with rig(tmp_path / "run") as one:
        for how, message in [("fail", "this model cannot be loaded"), ("raise", "RuntimeError: something broke")]:
            one.begin_load(1, isolated=isolated, load=how)
            failed = await one.events.next(LoadFailed)
            assert failed.code == "load_failed"
            assert message in failed.message
        assert list(one.pids()) == ["w"]
        await one.load(1, isolated=isolated)
        assert await one.value(1, 1) == 2


async def test_a_load_that_ends_its_process_fails_and_the_worker_comes_back(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        await one.load(1)
        one.begin_load(2, load="die")
        lost = await one.lost(1)
        assert not lost.running
        failed = await one.events.next(LoadFailed)
        assert failed.code == "load_failed"
        assert "died while loading m2 (signal 9)" in failed.message
        await one.load(1)
        assert await one.value(1, 5) == 10
        assert {event.generation for event in one.events.all} == {one.generation}


async def test_a_load_that_takes_too_long_costs_its_process(tmp_path: Path) -> None:
    async with rig(tmp_path / "run", load_timeout_s=0.3) as one:
        for isolated in (True, False):
            one.begin_load(1, isolated=isolated, load_gate=str(tmp_path / "never"))
            failed = await one.events.next(LoadFailed)
            assert "load_timeout" in failed.message
        await one.load(2)
        assert await one.value(2, 1) == 2


@contextlib.contextmanager
def descriptors(free: int) -> Iterator[None]:
    """Of all file descriptors only so many can be had."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(free):
            os.close(taken.pop())
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def children() -> set[int]:
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


async def test_a_process_for_whose_start_descriptors_are_lacking_fails_its_load_and_no_other(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        before = children()
        for free in range(8):
            with descriptors(free):
                one.begin_load(1, isolated=True)
                ended = await one.events.next(Loaded | LoadFailed)  # type: ignore[arg-type]
            if isinstance(ended, Loaded):
                break
            assert "Too many open files" in ended.message
            assert children() == before, "a process was left behind"
        assert free > 2
        assert await one.value(1, 1) == 2


@pytest.mark.parametrize("step", ["start", "load"])
async def test_a_load_that_ends_in_an_error_nobody_thought_of_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def broken(*_: Any) -> None:
        raise ZeroDivisionError("nobody thought of this")

    async with rig(tmp_path / "run") as one:
        before = children()
        for isolated in (True, False) if step == "load" else (True,):
            with monkeypatch.context() as patch:
                patch.setattr(Peer, step if step == "load" else "_connect", broken)
                one.begin_load(1, isolated=isolated)
                failed = await one.events.next(LoadFailed)
            assert "nobody thought of this" in failed.message
            assert children() == before, "a process was left behind"
        await one.load(1)
        assert await one.value(1, 1) == 2


async def test_a_restart_that_ends_in_an_error_nobody_thought_of_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    async def broken(self: Peer) -> None:
        tries.append(self)
        raise ZeroDivisionError("nobody thought of this")

    async with rig(tmp_path / "run") as one:
        with monkeypatch.context() as patch:
            patch.setattr(Peer, "start", broken)
            os.kill(one.pids()["w"], signal.SIGKILL)
            await until(lambda: len(tries) > 1)
        assert "nobody thought of this" in (one.instance.problem or "")
        await until(lambda: one.instance.problem is None)
        await one.load(1)
        assert await one.value(1, 1) == 2


async def test_the_death_of_a_process_whose_files_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    async with rig(tmp_path / "run") as one:
        await one.load(1, isolated=True)
        monkeypatch.setattr(peer_module, "remove_files", read_only)
        outcome = await outcome_of(one.ask(1, DIE))
        assert isinstance(outcome, Lost)
        await one.lost(1)
        one.begin_load(2, isolated=True)
        assert "Read-only file system" in (await one.events.next(LoadFailed)).message


async def test_an_unload_that_ends_in_an_error_nobody_thought_of_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        raise ZeroDivisionError("nobody thought of this")

    async with rig(tmp_path / "run") as one:
        for copy, isolated, step in ((1, False, "unload"), (2, True, "stop")):
            await one.load(copy, isolated=isolated)
            with monkeypatch.context() as patch:
                patch.setattr(Peer, step, broken)
                await one.unload(copy)
        await until(lambda: list(one.pids()) == ["w"])


# --- processes that die ------------------------------------------------------------------------------------------------------------
async def test_a_shared_worker_killed_in_the_middle_of_runs(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    async with rig(tmp_path / "run") as one:
        await one.load(1, gate=str(tmp_path / "never"), runs_to=str(runs))
        await one.load(2)
        await one.load(3, isolated=True)
        pid = one.pids()["w"]
        running, *queued = [one.ask(1, number) for number in range(4)]
        await until(runs.exists)
        os.kill(pid, signal.SIGKILL)
        outcomes = [await outcome_of(call) for call in (running, *queued)]
        assert all(isinstance(outcome, Lost) for outcome in outcomes)
        assert [outcome.started for outcome in outcomes] == [True, False, False, False]
        lost = {event.copy: event for event in one.events.of(CopyLost)}
        assert sorted(lost) == [1, 2]
        assert (lost[1].running, lost[2].running) == (True, False)
        assert "signal 9" in lost[1].reason
        assert await one.value(3, 1) == 2  # in a process of its own
        await one.load(2)
        assert await one.value(2, 3) == 6
        assert one.pids()["w"] != pid
        assert not one.events.of(InstanceDown)


async def test_what_was_answered_before_the_death_is_not_lost(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        await one.load(1)
        good, bad = one.ask(1, 4), one.ask(1, DIE)
        assert (await good.outcome)["Y"][0, 0] == 8
        lost = await outcome_of(bad)
        assert isinstance(lost, Lost)
        assert lost.started


async def test_a_request_for_a_dead_process_is_lost_and_not_left_hanging(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        await one.load(1)
        route = one.instance.route(1)
        os.kill(one.pids()["w"], signal.SIGKILL)
        dying = Asked("m1", {"X": np.ones((1, 2), np.float32)})
        route.infer(dying)
        outcome = await outcome_of(dying)
        assert isinstance(outcome, Lost)
        assert not outcome.started
        dead = Asked("m1", {"X": np.ones((1, 2), np.float32)})
        route.infer(dead)
        assert not dead.outcome.done()
        assert isinstance(await outcome_of(dead), Lost)
        assert not dead.begun


async def test_the_death_of_an_isolated_copy_hurts_no_other(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        await one.load(1)
        loaded = await one.load(2, isolated=True, keep_bytes=10 * MB)
        assert loaded.private_bytes > 15 * MB  # the interpreter is charged as well
        shared = one.pids()["w"]
        assert len(one.pids()) == 2
        outcome = await outcome_of(one.ask(2, DIE))
        assert isinstance(outcome, Lost)
        lost = await one.lost(2)
        assert lost.running
        assert await one.value(1, 1) == 2
        await until(lambda: one.pids() == {"w": shared})
        assert [event.copy for event in one.events.of(CopyLost)] == [2]


async def test_an_isolated_copy_is_unloaded_by_the_end_of_its_process(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        await one.load(1, isolated=True, keep_bytes=30 * MB)
        (pid,) = [pid for name, pid in one.pids().items() if name != "w"]
        unloaded = await one.unload(1)
        assert not alive(pid)
        assert unloaded.total_bytes is not None
        assert unloaded.total_bytes < 5 * MB
        assert not one.events.of(CopyLost)


async def test_an_isolated_process_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    async with rig(tmp_path / "run", stop_timeout_s=0.2) as one:
        await one.load(1, isolated=True, gate=str(tmp_path / "never"), runs_to=str(runs))
        call = one.ask(1, 1)
        await until(runs.exists)
        await one.unload(1)
        assert isinstance(await outcome_of(call), Lost)


async def test_a_python_model_gets_a_process_for_each_member_of_its_instance_group(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        await one.load(1, isolated=True, spec=python_pid(tmp_path, 2))
        x = {"X": np.ones((1, 2), np.float32)}
        answers = await asyncio.gather(*(one.send(1, x).outcome for _ in range(4)))
        pids = {int(answer["PID"][0]) for answer in answers}
        assert pids == set(one.pids().values()) - {one.pids()["w"]}
        assert len(pids) == 2
        os.kill(min(pids), signal.SIGKILL)
        await one.lost(1)
        await until(lambda: not any(alive(pid) for pid in pids))
        assert len(one.events.of(CopyLost)) == 1


async def test_copies_that_end_with_the_server_are_told_from_those_that_are_lost(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        await one.load(1)
        await one.load(2, isolated=True)
        await one.load(3, isolated=True)
        (pid,) = [pid for name, pid in one.pids().items() if name != "w"][:1]
        os.kill(pid, signal.SIGKILL)
        lost = await one.events.next(CopyLost)
        assert (lost.reason, lost.stopped) == ("signal 9", False)
        await one.instance.stop()
        ended = {event.copy: (event.reason, event.stopped) for event in one.events.of(CopyLost) if event is not lost}
        assert ended == dict.fromkeys({1, 2, 3} - {lost.copy}, ("exit status 0", True))


async def test_recycling_an_instance(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    async with rig(tmp_path / "run") as one:
        await one.load(1, gate=str(tmp_path / "never"), runs_to=str(runs))
        await one.load(2, isolated=True)
        call = one.ask(1, 1)
        await until(runs.exists)
        before = one.pids()
        one.instance.recycle(one.generation, None, "memory did not come back")
        down = await one.events.next(InstanceDown)
        assert down.generation == one.generation
        assert down.running == ("m1",)
        assert isinstance(await outcome_of(call), Lost)
        up = await one.events.next(InstanceUp)
        assert up.generation != one.generation
        assert up.held == ()
        assert not any(alive(pid) for pid in before.values())
        one.instance.recycle(one.generation, None, "too late")
        one.generation = up.generation
        await one.load(1)
        assert await one.value(1, 2) == 4
        assert not one.events.of(CopyLost)
        assert len(one.events.of(InstanceDown)) == 1


async def test_recycling_the_process_of_one_copy(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        await one.load(1)
        await one.load(2, isolated=True)
        one.instance.recycle(one.generation, 2, "it ran too long")
        lost = await one.lost(2)
        assert "it ran too long" in lost.reason
        assert await one.value(1, 1) == 2


# --- starts ----------------------------------------------------------------------------------------------------------------------------
async def test_a_worker_that_cannot_start_is_a_setup_error(tmp_path: Path) -> None:
    for python in ("/bin/false", str(tmp_path / "no-python")):
        one = Rig(tmp_path / "run", python=python)
        with pytest.raises(SetupError, match=r"w\.log"):
            await one.instance.start()
        await one.instance.stop()


class Breakable:
    """A Python interpreter that can be broken and mended."""

    def __init__(self, folder: Path) -> None:
        self._broken = folder / "broken"
        self.path = folder / "python"
        self.path.write_text(f'#!/bin/sh\ntest -e {self._broken} && exit 1\nexec {default_python()} "$@"\n')
        self.path.chmod(0o700)

    def break_(self) -> None:
        self._broken.touch()

    def mend(self) -> None:
        self._broken.unlink()


async def test_while_the_shared_worker_cannot_come_back_loads_fail_with_the_reason_and_others_are_served(tmp_path: Path) -> None:
    python = Breakable(tmp_path)
    async with rig(tmp_path / "run", python=str(python.path)) as one:
        await one.load(1)
        await one.load(2, isolated=True)
        python.break_()
        os.kill(one.pids()["w"], signal.SIGKILL)
        await one.lost(1)
        for copy, isolated in ((3, False), (4, True), (5, False)):  # the first one waits for the restart, the others learn of it at once
            one.begin_load(copy, isolated=isolated)
            failed = await one.events.next(LoadFailed)
            assert (failed.copy, failed.code, failed.died) == (copy, "unavailable", False)
            assert "at its start (exit status 1)" in failed.message
            assert "w.log" in failed.message
        assert one.instance.problem is not None
        await until(lambda: one.instance._young_deaths > DEATHS_BEFORE_PROBLEM)  # however long that goes on
        assert await one.value(2, 1) == 2
        python.mend()
        await until(lambda: one.instance.problem is None)
        await one.load(1)
        assert await one.value(1, 1) == 2
        assert not one.events.of(InstanceDown)
        assert {event.generation for event in one.events.all} == {one.generation}


async def test_an_instance_that_cannot_be_started_anew_is_up_again_with_the_reason(tmp_path: Path) -> None:
    python = Breakable(tmp_path)
    async with rig(tmp_path / "run", python=str(python.path)) as one:
        await one.load(1)
        python.break_()
        one.instance.recycle(one.generation, None, "memory did not come back")
        await one.events.next(InstanceDown)
        up = await one.events.next(InstanceUp)
        assert (up.generation != one.generation, up.held) == (True, ())
        one.generation = up.generation
        one.begin_load(1)
        assert (await one.events.next(LoadFailed)).code == "unavailable"
        python.mend()
        await until(lambda: one.instance.problem is None)
        await one.load(1)
        assert await one.value(1, 1) == 2


async def test_a_shared_worker_that_dies_again_and_again_is_a_problem_until_it_is_up(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        while one.instance.problem is None:
            await until(lambda: one.instance.describe()["up"])
            os.kill(one.pids()["w"], signal.SIGKILL)
            await until(lambda: not one.instance.describe()["up"])
        one.begin_load(1)
        failed = await one.events.next(LoadFailed)
        assert failed.code == "unavailable"
        assert f"died {DEATHS_BEFORE_PROBLEM} times in a row soon after its start (signal 9)" in failed.message
        await until(lambda: one.instance.problem is None)
        await one.load(1)
        assert await one.value(1, 1) == 2


# --- servers that come and go --------------------------------------------------------------------------------------------------------
async def test_a_later_server_adopts_what_lives(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    first = Rig(run_dir)
    await first.start()
    await first.load(1, keep_bytes=20 * MB)
    await first.load(2, isolated=True)
    before = first.pids()
    call = first.ask(1, 1)
    await call.outcome
    await first.instance.stop(keep=True)
    write_record(run_dir, WorkerRecord(name="w+dead.1of1", pid=2**22 - 7, start_ticks=1, generation=1, wire_version=1))
    async with rig(run_dir) as second:
        assert second.up is not None
        assert second.up.generation == first.generation
        held = {held.copy: held for held in second.up.held}
        assert sorted(held) == [1, 2]
        assert (held[1].model, held[1].revision, held[1].device) == ("m1", "r", "cpu")
        assert 18 * MB < held[1].learned.private_bytes < 30 * MB
        assert second.pids() == before
        assert await second.value(1, 2) == 4
        assert await second.value(2, 3) == 6
        inputs, _ = second.instance.tensors(1)
        assert inputs[0].name == "X"
        await second.unload(2)
        assert list(second.pids()) == ["w"]


async def test_a_copy_that_lost_one_of_its_processes_is_not_adopted(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    first = Rig(run_dir)
    await first.start()
    await first.load(1, isolated=True, spec=python_pid(tmp_path, 2))
    pids = [pid for name, pid in first.pids().items() if name != "w"]
    await first.instance.stop(keep=True)
    os.kill(pids[0], signal.SIGKILL)
    await until(lambda: not alive(pids[0]))
    async with rig(run_dir) as second:
        assert second.up is not None
        assert second.up.held == ()
        await until(lambda: list(second.pids()) == ["w"])


async def test_a_load_that_nobody_waits_for_any_more_is_undone(tmp_path: Path) -> None:
    run_dir, gate = tmp_path / "run", tmp_path / "gate"
    first = Rig(run_dir)
    await first.start()
    first.begin_load(1, load_gate=str(gate), keep_bytes=30 * MB)
    await until((tmp_path / "gate.waiting").exists)
    await first.instance.stop(keep=True)
    async with rig(run_dir) as second:
        assert second.up is not None
        assert second.up.held == ()
        gate.touch()
        loaded = await second.load(1)
        assert loaded.private_bytes < 10 * MB


async def test_a_worker_of_another_version_is_told_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tmp_path / "run"
    first = Rig(run_dir)
    await first.start()
    await first.load(1)
    before = first.pids()["w"]
    await first.instance.stop(keep=True)
    monkeypatch.setattr(adoption, "WIRE_VERSION", adoption.WIRE_VERSION + 1)
    async with rig(run_dir) as second:
        assert second.up is not None
        assert second.up.held == ()
        assert second.pids()["w"] != before
        await second.load(1)


async def test_orphans_end_and_leave_no_files(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    one = Rig(run_dir, orphan_grace_s=0.2)
    await one.start()
    await one.load(1, isolated=True)
    pids = list(one.pids().values())
    await one.instance.stop(keep=True)
    await until(lambda: not any(alive(pid) for pid in pids))
    assert [path.name for path in run_dir.iterdir()] == ["w.log"]


async def test_signals_meant_for_the_server_do_not_end_its_workers(tmp_path: Path) -> None:
    async with rig(tmp_path / "run") as one:
        await one.load(1)
        pid = one.pids()["w"]
        assert os.getsid(pid) == pid
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
            assert await one.value(1, 1) == 2


# --- figures -------------------------------------------------------------------------------------------------------------------------
async def test_what_runs_add_to_memory_is_observed(tmp_path: Path) -> None:
    async with rig(tmp_path / "run", probe_s=0.05) as one:
        await one.load(1, run_bytes=50 * MB)
        await one.value(1, 1)
        observed = await one.events.next(Observed, lambda event: bool(event.run_peaks))
        ((copy, peak_bytes),) = observed.run_peaks
        assert copy == 1
        assert 45 * MB < peak_bytes < 70 * MB
        observed = await one.events.next(Observed, lambda event: event.total_bytes is not None)
        assert observed.total_bytes is not None
        assert observed.total_bytes < 30 * MB


async def test_a_stuck_worker_is_ended(tmp_path: Path) -> None:
    async with rig(tmp_path / "run", probe_s=0.05, stuck_s=0.2) as one:
        await one.load(1)
        await one.value(1, GRIP)
        lost = await one.lost(1)
        assert "did not answer" in lost.reason


async def test_a_worker_that_was_asked_for_a_sign_of_life_while_it_started_is_not_stuck(tmp_path: Path) -> None:
    async with rig(tmp_path / "run", probe_s=0.02, stuck_s=0.4) as one:
        await one.load(1, isolated=True)
        looks = len(one.events.of(Observed))
        await until(lambda: len(one.events.of(Observed)) > looks + 40)
        assert not one.events.of(CopyLost)


async def test_a_load_in_a_stopped_process_goes_on_in_another(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with rig(tmp_path / "run", probe_s=0.05) as one:
        for copy, isolated in ((1, False), (2, True)):
            before = set(one.pids().values())
            one.begin_load(copy, isolated=isolated, load_gate=str(gate))
            await until((tmp_path / "gate.waiting").exists)
            stopped = (set(one.pids().values()) - before).pop() if isolated else one.pids()["w"]
            os.kill(stopped, signal.SIGSTOP)
            await until(lambda stopped=stopped: not alive(stopped))  # type: ignore[misc]
            gate.touch()
            await one.events.next(Loaded)
            assert await one.value(copy, 3) == 6
            gate.unlink()
            (tmp_path / "gate.waiting").unlink()
        assert not one.events.of(LoadFailed)


async def test_stopping_ends_all_processes(tmp_path: Path) -> None:
    one = Rig(tmp_path / "run")
    await one.start()
    await one.load(1)
    await one.load(2, isolated=True)
    one.begin_load(3, isolated=True)
    pids = list(one.pids().values())
    await one.instance.stop()
    assert not any(alive(pid) for pid in pids)
    assert one.pids() == {}
