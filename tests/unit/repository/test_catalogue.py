from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from modelpool.errors import MalformedModel, SetupError
from modelpool.repository import catalogue
from modelpool.repository.builder import Built
from modelpool.repository.catalogue import Repository, diff
from modelpool.repository.entry import Entry
from modelpool.repository.layouts import Place
from tests.unit.repository.models import matmul, write_external, write_onnx, write_text


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of models whose files were read, in order."""
    names: list[str] = []
    build = catalogue.build

    def counting(place: Place) -> Built:
        names.append(place.name)
        return build(place)

    monkeypatch.setattr(catalogue, "build", counting)
    return names


def names(changed: list[Entry]) -> list[str]:
    return [entry.name for entry in changed]


def test_new_changed_and_removed_models_are_noticed(tmp_path: Path) -> None:
    write_onnx(tmp_path / "a.onnx")
    write_onnx(tmp_path / "b" / "1" / "model.onnx")
    repository = Repository([tmp_path])
    first = repository.scan()
    assert names(diff({}, first)[0]) == ["a", "b"]

    write_onnx(tmp_path / "c.onnx")
    write_onnx(tmp_path / "a.onnx", 5)
    (tmp_path / "b" / "1" / "model.onnx").unlink()
    shutil.rmtree(tmp_path / "b")
    second = repository.scan()
    changed, removed = diff(first, second)
    assert names(changed) == ["a", "c"]
    assert removed == ["b"]
    assert first["a"].revision != second["a"].revision
    assert diff(second, repository.scan()) == ([], [])


def test_a_scan_reads_only_what_changed(tmp_path: Path, built: list[str]) -> None:
    for name in "abc":
        write_onnx(tmp_path / f"{name}.onnx")
    write_onnx(tmp_path / "t" / "1" / "model.onnx")
    repository = Repository([tmp_path])
    first = repository.scan()
    assert built == ["a", "b", "c", "t"]
    built.clear()
    second = repository.scan()
    assert built == []
    assert all(first[name] is second[name] for name in first)
    write_onnx(tmp_path / "t" / "2" / "model.onnx")
    assert repository.scan()["t"].default_version == 2
    assert built == ["t"]


def test_the_same_files_have_the_same_revision_in_the_next_server(tmp_path: Path) -> None:
    write_onnx(tmp_path / "a.onnx")
    assert Repository([tmp_path]).scan() == Repository([tmp_path]).scan()


def test_the_policy_is_part_of_the_revision_and_its_comments_are_not(tmp_path: Path) -> None:
    write_onnx(tmp_path / "a.onnx")
    repository = Repository([tmp_path])
    plain = repository.scan()["a"]
    write_text(tmp_path / "a.modelpool.yaml", "# nothing yet")
    assert repository.scan()["a"].revision == plain.revision
    write_text(tmp_path / "a.modelpool.yaml", "pinned: true")
    assert repository.scan()["a"].revision != plain.revision


def test_versions_that_are_left_out_do_not_change_the_revision(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m" / "1" / "model.onnx")
    write_onnx(tmp_path / "m" / "2" / "model.onnx")
    repository = Repository([tmp_path])
    before = repository.scan()
    shutil.rmtree(tmp_path / "m" / "1")
    assert diff(before, repository.scan()) == ([], [])


def test_caches_of_python_and_hidden_files_are_no_change(tmp_path: Path, built: list[str]) -> None:
    write_text(tmp_path / "p" / "1" / "model.py", "class TritonPythonModel: ...")
    repository = Repository([tmp_path])
    repository.scan()
    built.clear()
    write_text(tmp_path / "p" / "1" / "__pycache__" / "model.pyc", "x")
    write_text(tmp_path / "p" / "1" / ".lock", "x")
    repository.scan()
    assert built == []
    write_text(tmp_path / "p" / "1" / "helper.py", "x = 1")
    repository.scan()
    assert built == ["p"]


def test_a_model_that_is_being_copied_settles(tmp_path: Path) -> None:
    whole = matmul(50).SerializeToString()
    path = tmp_path / "m.onnx"
    repository = Repository([tmp_path])
    for length in (0, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        entry = repository.scan()["m"]
        assert entry.spec is None
    path.write_bytes(whole)
    assert repository.scan()["m"].problem is None


def test_external_data_that_comes_later(tmp_path: Path) -> None:
    write_external(tmp_path / "m.onnx", location="any name.bin")
    content = (tmp_path / "any name.bin").read_bytes()
    (tmp_path / "any name.bin").unlink()
    repository = Repository([tmp_path])
    assert "not there" in (repository.scan()["m"].problem or "")
    (tmp_path / "any name.bin").write_bytes(content)
    first = repository.scan()["m"]
    assert first.problem is None
    (tmp_path / "any name.bin").write_bytes(content + b"0")
    assert repository.scan()["m"].revision != first.revision


def test_a_good_model_stays_while_its_files_change_and_goes_when_they_stay_bad(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx")
    repository = Repository([tmp_path])
    good = repository.scan()
    path.write_bytes(b"\x08\x09\x3a\x7f")
    assert repository.scan() == good
    path.write_bytes(b"\x08\x09\x3a\x7f more")
    assert repository.scan() == good
    bad = repository.scan()
    assert "ends in the middle" in (bad["m"].problem or "")
    assert diff(good, bad) == ([], ["m"])
    assert repository.scan() == bad
    write_onnx(path, 6)
    assert names(diff(bad, repository.scan())[0]) == ["m"]


def test_a_malformed_model_harms_nobody(tmp_path: Path) -> None:
    write_text(tmp_path / "bad.onnx", "no model")
    write_text(tmp_path / "worse" / "config.pbtxt", "{{{{")
    write_onnx(tmp_path / "good.onnx")
    entries = Repository([tmp_path]).scan()
    assert [name for name, entry in entries.items() if entry.problem is None] == ["good"]
    with pytest.raises(MalformedModel, match=r"'bad' cannot be loaded: bad\.onnx is not an ONNX file"):
        entries["bad"].load_spec(1, "cpu")


def test_new_permissions_are_a_change(tmp_path: Path, built: list[str]) -> None:
    path = write_onnx(tmp_path / "m.onnx")
    repository = Repository([tmp_path])
    before = repository.scan()
    path.chmod(0o600)
    assert diff(before, repository.scan()) == ([], [])
    assert built == ["m", "m"]


def test_the_first_of_two_roots_wins(tmp_path: Path) -> None:
    write_onnx(tmp_path / "one" / "m.onnx", 3)
    write_onnx(tmp_path / "two" / "m.onnx", 4)
    write_onnx(tmp_path / "two" / "n.onnx", 4)
    repository = Repository([tmp_path / "one", tmp_path / "two", tmp_path / "one"])
    entries = repository.scan()
    assert sorted(entries) == ["m", "n"]
    assert entries["m"].versions[0].path == str(tmp_path / "one" / "m.onnx")
    (told,) = repository.problems()
    assert str(tmp_path / "two" / "m.onnx") in told


def test_a_root_that_vanishes_keeps_its_models(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_onnx(root / "m.onnx")
    write_text(root / "modelpool.yaml", "preload: [m]")
    repository = Repository([root])
    before = repository.scan()
    root.rename(tmp_path / "away")
    assert repository.scan() == before
    assert repository.preload == ("m",)
    assert "cannot be read" in repository.problems()[0]
    (tmp_path / "away").rename(root)
    assert diff(before, repository.scan()) == ([], [])
    assert repository.problems() == []


def test_roots_that_are_no_repository(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="nowhere cannot be read: No such file"):
        Repository([tmp_path / "nowhere"])
    with pytest.raises(SetupError, match="Not a directory"):
        Repository([write_onnx(tmp_path / "m.onnx")])
    with pytest.raises(SetupError, match="not a path that can be used"):
        Repository([Path("a\0b")])
    write_text(tmp_path / "model" / "config.pbtxt", "")
    with pytest.raises(SetupError, match="is itself a model"):
        Repository([tmp_path / "model"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_folders_without_permission(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    write_onnx(locked / "model.onnx")
    write_onnx(tmp_path / "m.onnx")
    locked.chmod(0)
    try:
        entries = Repository([tmp_path]).scan()
        assert entries["m"].problem is None
        assert "Permission denied" in (entries["locked"].problem or "")
        with pytest.raises(SetupError, match="Permission denied"):
            Repository([locked])
    finally:
        locked.chmod(0o700)


def test_no_repository_at_all() -> None:
    repository = Repository([])
    assert repository.scan() == {}
    assert repository.problems() == []


def test_a_load_spec_says_all_that_a_worker_needs(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m.onnx")
    entry = Repository([tmp_path]).scan()["m"]
    spec = entry.load_spec(7, "cuda:0")
    assert (spec.copy, spec.model, spec.device, spec.runtime) == (7, "m", "cuda:0", "onnx")
    assert (spec.revision, spec.default_version) == (entry.revision, 1)
    assert (spec.model_dir, spec.config) == (str(tmp_path), entry.config)
