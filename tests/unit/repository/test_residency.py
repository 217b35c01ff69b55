from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from modelpool.core.model import Residency
from modelpool.core.state import ModelState
from modelpool.repository.catalogue import Repository
from modelpool.repository.entry import Entry
from tests.unit.repository.models import write_onnx, write_text


def entry_with(root: Path, text: str) -> Entry:
    write_onnx(root / "m" / "model.onnx")
    write_text(root / "m" / "modelpool.yaml", text)
    return Repository([root]).scan()["m"]


def test_all_fields(tmp_path: Path) -> None:
    entry = entry_with(
        tmp_path,
        """
        pinned: true
        priority: 2
        min_copies: 1
        max_copies: 3
        keep_alive: 5m
        device: cuda:1
        size: 200MiB
        requires: [tokenizer, hf/e5]
        isolation: process
        preload: yes
        """,
    )
    assert entry.spec is not None
    assert entry.spec.residency == Residency(
        pinned=True,
        priority=2,
        min_copies=1,
        max_copies=3,
        keep_alive_s=300.0,
        device="cuda:1",
        size_bytes=200 << 20,
        requires=("tokenizer", "hf/e5"),
        isolation="process",
        preload=True,
    )
    assert entry.spec.isolation == "process"
    assert entry.spec.device_kinds == ("cuda",)


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}"])
def test_an_empty_policy_is_the_default(tmp_path: Path, text: str) -> None:
    entry = entry_with(tmp_path, text)
    assert entry.spec is not None
    assert entry.spec.residency == Residency()


def test_keep_for_ever(tmp_path: Path) -> None:
    entry = entry_with(tmp_path, "keep_alive: inf")
    assert entry.spec is not None
    assert entry.spec.residency.keep_alive_s == math.inf


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pined: true", "unknown field 'pined'; did you mean 'pinned'"),
        ("keep_alive_s: 5", "did you mean 'keep_alive'"),
        ("1: 2", "unknown field '1'"),
        ("pinned: 3", "pinned: 3 is neither true nor false"),
        ("priority: high", "priority: 'high' is not a whole number"),
        ("priority: 17", "priority: 17 is not a whole number from -16 to 16"),
        ("priority: -17", "from -16 to 16"),
        ("max_copies: 0", "max_copies: 0"),
        ("min_copies: 2", "raise max_copies"),
        ("keep_alive: soon", "write for example 90s, 5m"),
        ("size: 0", "cannot be 0"),
        ("size: big", "write for example 200MiB"),
        ("device: GPU!", "write for example cpu or cuda:0"),
        ("requires: a", "not a list of model names"),
        ("requires: [m]", "the model names itself"),
        ("requires: ['../x']", "has the part '..'"),
        ("isolation: vm", "write shared or process"),
        ("- a\n- b", "lines of `field: value`"),
        ("a: [", "not YAML \\(line 2\\)|not YAML \\(line 1\\)"),
        ("!!python/object:os.system {}", "not YAML"),
        ("[" * 3000, "not YAML|not be understood"),
        ("x: " + "y" * 70_000, "larger than"),
    ],
)
def test_bad_policies_name_the_field_and_what_to_write(tmp_path: Path, text: str, told: str) -> None:
    entry = entry_with(tmp_path, text)
    assert entry.spec is None
    assert re.search(told, entry.problem or ""), entry.problem


@pytest.mark.parametrize("priority", [-16, 16])
def test_the_largest_priorities_count_in_full(tmp_path: Path, priority: int) -> None:
    entry = entry_with(tmp_path, f"priority: {priority}")
    assert entry.spec is not None
    assert ModelState(entry.spec, 0).priority == priority


def test_a_policy_beside_a_single_file(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m.onnx")
    write_text(tmp_path / "m.modelpool.yaml", "device: cpu")
    entry = Repository([tmp_path]).scan()["m"]
    assert entry.spec is not None
    assert entry.spec.device_kinds == ("cpu",)


def test_a_python_model_cannot_share_a_process(tmp_path: Path) -> None:
    write_text(tmp_path / "p" / "1" / "model.py", "")
    write_text(tmp_path / "p" / "modelpool.yaml", "isolation: shared")
    assert "process of its own" in (Repository([tmp_path]).scan()["p"].problem or "")


def test_preload_list_of_a_repository(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m.onnx")
    write_text(tmp_path / "modelpool.yaml", "preload: [m, gone]")
    repository = Repository([tmp_path])
    assert sorted(repository.scan()) == ["m"]
    assert repository.preload == ("m", "gone")
    assert ["'gone'" in problem for problem in repository.problems()] == [True]
    write_text(tmp_path / "modelpool.yaml", "pinned: true")
    repository.scan()
    assert "did you mean 'preload'" in repository.problems()[0]
