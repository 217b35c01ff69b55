"""Copies as an embedded instance holds them, and the names of their processes."""

from __future__ import annotations

from typing import Any

import pytest

from modelpool.core.model import Learned
from modelpool.instances import adoption
from modelpool.instances.resident import Resident, per_process_spec, process_count
from modelpool.protocol.messages import Loaded, LoadSpec, VersionSpec


def spec(runtime: str, **config: Any) -> LoadSpec:
    return LoadSpec(
        copy=1,
        model="m",
        revision="r",
        runtime=runtime,
        device="cpu",
        model_dir="/m",
        versions=(VersionSpec(1, "/m/1"),),
        default_version=1,
        config=config,
    )


@pytest.mark.parametrize(
    ("groups", "count"),
    [(None, 1), ([], 1), ([{}], 1), ([{"count": 0}], 1), ([{"count": 3}], 3), ([{"count": 2}, {"kind": "KIND_CPU"}], 3)],
)
def test_a_python_model_has_a_process_for_each_member(groups: Any, count: int) -> None:
    python = spec("python") if groups is None else spec("python", instance_group=groups, max_batch_size=4)
    assert process_count(python) == count
    assert process_count(spec("onnx", instance_group=[{"count": 3}])) == 1
    part = per_process_spec(python)
    assert process_count(part) == 1
    if count > 1:
        assert part.config["max_batch_size"] == 4
        assert len(part.config["instance_group"]) == 1
    else:
        assert part is python


def test_figures_of_several_processes_add_up() -> None:
    def loaded(private: int, peak: int, load_s: float) -> Loaded:
        return Loaded(copy=1, load_s=load_s, private_bytes=private, load_peak_bytes=peak, total_bytes=0, inputs=(), outputs=())

    resident = Resident(spec("python"), (), True, (loaded(10, 12, 0.5), loaded(11, 15, 0.25)), None, run_peak_bytes=3)  # type: ignore[arg-type]
    assert resident.learned == Learned(private_bytes=21, load_peak_bytes=27, run_peak_bytes=3, load_s=0.5)


def test_the_name_of_a_process_says_which_of_how_many_it_is() -> None:
    name = adoption.member_name("my.instance", "ab12", 1, 3)
    assert name == "my.instance+ab12.2of3"
    match = adoption._MEMBER.fullmatch(name)
    assert match is not None
    assert match.group("instance", "token", "n", "count") == ("my.instance", "ab12", "2", "3")
