"""Models of backends that only a Triton server has."""

from __future__ import annotations

from pathlib import Path

from modelpool.repository.catalogue import Repository
from modelpool.repository.ensembles import housed
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
    assert "ensemble_scheduling" in str(found["steps"].problem)


def test_a_changed_file_of_such_a_model_is_another_revision(tmp_path: Path) -> None:
    write(tmp_path, "own", 'backend: "ours"')
    repository = Repository([tmp_path], any_backend=True)
    before = repository.scan()["own"].revision
    (tmp_path / "own" / "1" / "model.plan").write_bytes(b"y" * 2000)
    assert repository.scan()["own"].revision != before


def write_ensemble(root: Path, name: str, *steps: str) -> None:
    named = ", ".join(f'{{ model_name: "{step}" }}' for step in steps)
    write(root, name, f'platform: "ensemble" ensemble_scheduling {{ step [ {named} ] }}')


def homes(root: Path, *instances: str) -> dict[str, str | None]:
    found = housed(Repository([root], any_backend=True).scan(), instances)
    return {name: entry.spec.residency.device for name, entry in found.items() if entry.spec is not None}


def test_ensembles_that_share_a_step_have_one_home(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "alone"):
        write(tmp_path, name, 'backend: "ours"')
    write_ensemble(tmp_path, "ab", "a", "b")
    write_ensemble(tmp_path, "bc", "b", "c", "missing")
    spec = Repository([tmp_path], any_backend=True).scan()["ab"].spec
    assert spec is not None
    assert (spec.residency.requires, spec.steps_first, spec.estimate_bytes) == (("a", "b"), True, 0)
    assert set(homes(tmp_path).values()) == {None}
    found = homes(tmp_path, "triton0", "triton1")
    assert found.pop("alone") is None
    assert len(set(found.values())) == 1
    assert set(found.values()) <= {"triton0", "triton1"}
    (tmp_path / "c" / "modelpool.yaml").write_text("device: cpu\n")
    assert {name: home for name, home in homes(tmp_path, "triton0", "triton1").items() if name != "alone"} == dict.fromkeys(found, "cpu")


def test_an_ensemble_of_itself_or_of_nothing_is_malformed(tmp_path: Path) -> None:
    write_ensemble(tmp_path, "selfish", "selfish")
    write_ensemble(tmp_path, "empty")
    assert all("name the model of each step" in str(entry.problem) for entry in Repository([tmp_path], any_backend=True).scan().values())
