"""Models of backends that only a Triton server has."""

from __future__ import annotations

from pathlib import Path

from modelpool.repository.catalogue import Repository
from modelpool.testing.models import write_config

CONFIG = """
    {backend}
    input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 4 ] }} ]
    output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 4 ] }} ]
"""


def write(root: Path, name: str, backend: str, *, versions: tuple[int, ...] = (1,)) -> None:
    write_config(root / name, CONFIG.format(backend=backend))
    for version in versions:
        (root / name / str(version)).mkdir()
        (root / name / str(version) / "model.plan").write_bytes(b"x" * 1000)


def test_with_a_triton_server_every_backend_is_taken(tmp_path: Path) -> None:
    write(tmp_path, "plan", 'platform: "tensorrt_plan"', versions=(1, 2))
    write(tmp_path, "own", 'backend: "ours"')
    write(tmp_path, "empty", 'backend: "ours"', versions=())
    write(tmp_path, "steps", 'platform: "ensemble"')
    assert all(entry.problem is not None for entry in Repository([tmp_path]).scan().values())
    found = Repository([tmp_path], any_backend=True).scan()
    plan, own = found["plan"], found["own"]
    assert (plan.runtime, plan.platform, own.runtime) == ("tensorrt", "tensorrt_plan", "ours")
    assert [one.version for one in plan.versions] == [2]
    assert plan.spec is not None
    assert plan.spec.estimate_bytes >= 1000
    assert plan.inputs is not None
    assert "version folder" in str(found["empty"].problem)
    assert "ensembles" in str(found["steps"].problem)


def test_a_changed_file_of_such_a_model_is_another_revision(tmp_path: Path) -> None:
    write(tmp_path, "own", 'backend: "ours"')
    repository = Repository([tmp_path], any_backend=True)
    before = repository.scan()["own"].revision
    (tmp_path / "own" / "1" / "model.plan").write_bytes(b"y" * 2000)
    assert repository.scan()["own"].revision != before
