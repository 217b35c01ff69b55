from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modelpool.errors import Forbidden, InvalidName, InvalidRequest, MalformedModel, ModelpoolError, Unsupported
from modelpool.repository.catalogue import Repository, entry_from_properties
from tests.unit.repository.models import write_external, write_onnx, write_text


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_onnx(tmp_path / "root" / "m.onnx")
    return tmp_path / "root"


def posted(url: object, **more: Any) -> dict[str, Any]:
    return {"url": url, "type": "onnx", **more}


def test_a_file_by_path_url_and_relative_path(root: Path) -> None:
    repository = Repository([root])
    write_onnx(root / "with space.onnx")
    for url in (
        str(root / "m.onnx"),
        f"file://{root}/m.onnx",
        f"file://localhost{root}/m.onnx",
        "m.onnx",
        f"file://{root}/with%20space.onnx",
    ):
        properties = posted(url, dimensions=384, note="a note")
        entry = repository.entry_from_properties("hf/e5-base-v2", properties)
        assert (entry.name, entry.source, entry.properties) == ("hf/e5-base-v2", "posted", properties)
        assert entry.config["name"] == "hf/e5-base-v2"
        assert entry.spec is not None


def test_a_folder_in_any_layout(root: Path) -> None:
    repository = Repository([root])
    write_external(root / "folder" / "model.onnx")
    write_onnx(root / "triton" / "3" / "model.onnx")
    write_text(root / "triton" / "config.pbtxt", 'name: "triton" max_batch_size: 2')
    write_text(root / "triton" / "modelpool.yaml", "pinned: true")
    assert repository.entry_from_properties("a", posted(str(root / "folder"))).default_version == 1
    entry = repository.entry_from_properties("b", posted(str(root / "triton")))
    assert (entry.default_version, entry.config["max_batch_size"]) == (3, 2)
    assert entry.spec is not None
    assert entry.spec.residency.pinned


def test_the_same_files_are_read_once_and_changed_ones_again(root: Path) -> None:
    repository = Repository([root])
    first = repository.entry_from_properties("a", posted("m.onnx"))
    assert repository.entry_from_properties("a", posted("m.onnx")) is first
    assert repository.entry_from_properties("a", posted("m.onnx", note="new")) is not first
    write_onnx(root / "m.onnx", 9)
    assert repository.entry_from_properties("a", posted("m.onnx", note="new")).revision != first.revision


def test_only_beneath_the_allowed_roots(root: Path, tmp_path: Path) -> None:
    outside = write_onnx(tmp_path / "outside.onnx")
    (root / "link.onnx").symlink_to(outside)
    (root / "linked").mkdir()
    (root / "linked" / "model.onnx").symlink_to(outside)
    write_external(root / "ext" / "model.onnx")
    (root / "ext" / "weights.bin").rename(tmp_path / "weights.bin")
    (root / "ext" / "weights.bin").symlink_to(tmp_path / "weights.bin")
    repository = Repository([root])
    for url in (str(outside), "../outside.onnx", f"{root}/../outside.onnx", "link.onnx", "linked", "ext", "/etc/passwd", "/no/such.onnx"):
        with pytest.raises(Forbidden, match="allowed_roots"):
            repository.entry_from_properties("a", posted(url))
    other = Repository([root], [tmp_path])
    assert other.entry_from_properties("a", posted(str(outside))).problem is None
    assert entry_from_properties("a", posted(str(outside)), [tmp_path]).problem is None
    with pytest.raises(Forbidden):
        Repository([]).entry_from_properties("a", posted(str(outside)))


@pytest.mark.parametrize(
    ("properties", "error", "told"),
    [
        ({}, InvalidRequest, "'url'"),
        ({"url": "m.onnx"}, InvalidRequest, "'type'"),
        (posted(3), InvalidRequest, "'url'"),
        (posted(""), InvalidRequest, "'url'"),
        (posted("m.onnx", dimensions="many"), InvalidRequest, "dimensions 'many'"),
        (posted("m.onnx", dimensions=True), InvalidRequest, "dimensions True"),
        (posted("m.onnx") | {"type": "open_clip"}, Unsupported, "'open_clip'"),
        (posted("https://example.org/m.onnx"), Unsupported, "come with a later version"),
        (posted("s3://bucket/m.onnx"), Unsupported, "come with a later version"),
        (posted("hf://org/model"), Unsupported, "come with a later version"),
        (posted("file://elsewhere/m.onnx"), InvalidRequest, "not the url of a local file"),
        (posted("a\0b"), InvalidRequest, "NUL"),
        (posted("file:///a%00b"), InvalidRequest, "not the url of a local file"),
        (posted("gone.onnx"), InvalidRequest, "no file or folder"),
        (posted("text.txt"), InvalidRequest, "neither an .onnx file nor a folder"),
        (posted("text.onnx"), MalformedModel, "'a' cannot be used: text.onnx is not an ONNX file"),
        (posted("py"), Unsupported, "Python model"),
        (posted("loop"), InvalidRequest, "cannot be followed"),
        (posted("x" * 5000), InvalidRequest, "cannot be followed|no file"),
        (posted("\ud800"), InvalidRequest, "UTF-8"),
    ],
)
def test_properties_that_cannot_be_served(root: Path, properties: dict[str, Any], error: type[Exception], told: str) -> None:
    write_text(root / "text.txt", "x")
    write_text(root / "text.onnx", "x")
    write_text(root / "py" / "1" / "model.py", "")
    (root / "loop").symlink_to(root / "loop")
    with pytest.raises(error, match=told):
        Repository([root]).entry_from_properties("a", properties)


def test_a_name_that_names_nothing(root: Path) -> None:
    with pytest.raises(InvalidName):
        Repository([root]).entry_from_properties("../a", posted("m.onnx"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(url=st.text(alphabet=st.characters(), max_size=60), name=st.text(alphabet=st.characters(), max_size=20))
def test_any_text_ends_in_an_error_of_ours(root: Path, url: str, name: str) -> None:
    with pytest.raises(ModelpoolError):
        Repository([root]).entry_from_properties(name, posted(url + "!"))
