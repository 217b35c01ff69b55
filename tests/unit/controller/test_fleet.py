"""Which instances settings ask for, and what each may hold."""

from __future__ import annotations

from typing import Any

import pytest

from modelpool.controller.fleet import budgets, places
from modelpool.errors import SetupError
from modelpool.settings import Settings

TWO = ("a:1,HTTP=2,BACKENDS=python+onnxruntime", "b:3,HTTP=4")


def settings(devices: dict[str, Any], triton: tuple[str, ...] = TWO, **others: Any) -> Settings:
    return Settings(devices=devices, triton=triton, **others)  # type: ignore[arg-type]


def test_without_triton_there_are_workers() -> None:
    assert budgets(settings({"cpu": 100}, ()), []) == {"local": {"cpu": 100}}


def test_a_budget_is_for_each_server_that_has_none_of_its_own() -> None:
    assert budgets(settings({"cpu": 100}), []) == {"triton0": {"cpu": 100}, "triton1": {"cpu": 100}}
    assert budgets(settings({"cpu": 100, "triton1/cuda:0": 70}), []) == {"triton0": {"cpu": 100}, "triton1": {"cuda:0": 70}}


def test_workers_stand_beside_servers_where_they_have_a_budget() -> None:
    assert budgets(settings({"local/cpu": 50, "cpu": 100}, TWO[:1]), []) == {"local": {"cpu": 50}, "triton0": {"cpu": 100}}


def test_what_is_free_is_shared() -> None:
    found = budgets(settings({}), [])
    assert found["triton0"]["cpu"] > 0
    assert abs(found["triton0"]["cpu"] - found["triton1"]["cpu"]) < found["triton0"]["cpu"] // 2


@pytest.mark.parametrize(
    ("devices", "words"), [({"triton7/cpu": 1}, "no instance"), ({"local/cuda:0": 1}, "no device"), ({"cuda:0": "auto"}, "cuda:0=SIZE")]
)
def test_what_is_not_there_is_named(devices: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        budgets(settings(devices), [])


def test_servers_have_the_runtimes_of_their_backends() -> None:
    found = places(settings({}, triton_command=("tritonserver --backend-directory /nowhere",)))
    assert list(found) == ["triton0", "triton1", "triton2"]
    assert found["triton0"].runtimes == ("python", "onnx", "ensemble")
    assert found["triton1"].runtimes is found["triton2"].runtimes is None
    with pytest.raises(SetupError, match="HTTP"):
        places(settings({}, ("a:1",)))
