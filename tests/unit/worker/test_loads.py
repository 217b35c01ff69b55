"""Loading and unloading with their figures."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from modelpool.errors import LoadFailed, MalformedModel, ModelpoolError
from modelpool.protocol.messages import LoadSpec
from modelpool.worker import loads
from modelpool.worker.memory import private_bytes
from tests.unit.worker.fakes import Doubling, spec

SIZE = 200 << 20
SLACK = 40 << 20


class Heavy(Doubling):
    """Holds SIZE bytes, and twice that while it loads."""

    def __init__(self) -> None:
        super().__init__()
        draft = np.ones(SIZE, np.uint8)
        self.kept: np.ndarray | None = draft.copy()
        self.broken = False

    def close(self) -> None:
        self.kept = None
        if self.broken:
            raise RuntimeError("finalize failed")


class Runtime:
    """Loads a Heavy model, or fails with `error` after it was half loaded."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.last: weakref.ref[Heavy] | None = None

    def load(self, spec: LoadSpec) -> Heavy:
        model = Heavy()
        self.last = weakref.ref(model)
        if self.error is not None:
            raise self.error
        return model


def use(monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> Runtime:
    monkeypatch.setattr(loads, "open_runtime", lambda name: runtime)
    return runtime


def loaded(result: loads.LoadResult | ModelpoolError) -> loads.LoadResult:
    assert isinstance(result, loads.LoadResult)
    return result


def test_a_load_is_charged_what_it_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Runtime())
    result = loaded(loads.load(spec(), False))
    assert abs(result.private_bytes - SIZE) < SLACK
    assert result.load_peak_bytes >= result.private_bytes
    assert abs(result.total_bytes - private_bytes()) < SLACK
    total = loads.unload(result.model, result.private_bytes, 10.0)
    assert abs(result.total_bytes - total - SIZE) < SLACK


def test_a_process_of_its_own_is_charged_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Runtime())
    result = loaded(loads.load(spec(), True))
    assert result.private_bytes == result.total_bytes
    result.model.close()


@pytest.mark.parametrize("error", [MalformedModel("half a file"), RuntimeError("oops"), MemoryError(), SystemExit(1)])
def test_a_load_that_fails_keeps_no_memory_and_says_why(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    runtime = use(monkeypatch, Runtime(error))
    before = private_bytes()
    failed = loads.load(spec(), False)
    assert isinstance(failed, MalformedModel if error.args == ("half a file",) else LoadFailed)
    assert "m1" in failed.message or failed is error
    error.__traceback__ = None
    runtime.error = None
    assert runtime.last is not None
    assert runtime.last() is None
    assert private_bytes() - before < SLACK


def test_a_close_that_fails_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    use(monkeypatch, Runtime())
    result = loaded(loads.load(spec(), False))
    assert isinstance(result.model, Heavy)
    result.model.broken = True
    loads.unload(result.model, result.private_bytes, 10.0)
    assert "finalize failed" in caplog.text


def test_an_unload_does_not_wait_for_ever_for_bytes_that_stay() -> None:
    model = Doubling()
    assert loads.unload(model, 1 << 40, 0.0) > 0
    assert model.closed
