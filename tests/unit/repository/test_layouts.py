from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from modelpool.protocol.messages import TensorMeta
from modelpool.repository.catalogue import Repository
from modelpool.repository.entry import Entry
from tests.unit.repository.models import write_external, write_onnx, write_text


def scan(root: Path) -> dict[str, Entry]:
    return Repository([root]).scan()


def problem(root: Path, name: str = "m") -> str:
    entry = scan(root)[name]
    assert entry.spec is None
    assert entry.problem is not None
    return entry.problem


def numbers(entry: Entry) -> list[int]:
    return [version.version for version in entry.versions]


def test_single_file(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "small model.onnx")
    entry = scan(tmp_path)["small model"]
    assert entry.problem is None
    assert (entry.runtime, entry.platform, entry.default_version) == ("onnx", "onnxruntime_onnx", 1)
    assert [(one.version, one.path) for one in entry.versions] == [(1, str(path))]
    assert entry.inputs == (TensorMeta("x", "FP32", (-1, 4)),)
    assert entry.config["max_batch_size"] == 0
    assert entry.config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 4]}]
    assert entry.spec is not None
    assert entry.spec.device_kinds == ("cuda", "cpu")
    assert entry.spec.isolation == "shared"
    assert entry.spec.estimate_bytes > 0


WARM = 'backend: "onnxruntime" model_warmup [ { name: "w" inputs { key: "x" value { data_type: TYPE_FP32 input_data_file: "raw" } } } ]'


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def make_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("name", ["config.pbtxt", "modelpool.yaml", "warmup/raw", "1/model.onnx", "1/model.py"])
@pytest.mark.parametrize("make", [make_fifo, make_socket, make_link_to_a_device, Path.mkdir])
def test_what_is_read_must_be_a_regular_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[Path], None]
) -> None:
    if name != "1/model.py":
        write_onnx(tmp_path / "m" / "1" / "model.onnx")
    write_text(tmp_path / "m" / "config.pbtxt", WARM if name != "1/model.py" else 'backend: "python"')
    path = tmp_path / "m" / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    monkeypatch.chdir(path.parent)
    make(Path(path.name))
    write_onnx(tmp_path / "good.onnx")
    assert scan(tmp_path)["good"].problem is None
    said = problem(tmp_path)
    if make is not Path.mkdir or not name.startswith("1/"):
        assert path.name in said
        assert "regular file" in said


def test_a_preload_list_that_is_a_fifo_is_told(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m.onnx")
    os.mkfifo(tmp_path / "modelpool.yaml")
    os.mkfifo(tmp_path / "m.modelpool.yaml")
    repository = Repository([tmp_path])
    assert "m.modelpool.yaml is a FIFO" in (repository.scan()["m"].problem or "")
    assert any("modelpool.yaml is a FIFO, not a regular file" in told for told in repository.problems())


def test_folder_with_one_model(tmp_path: Path) -> None:
    write_external(tmp_path / "m" / "model.onnx")
    write_onnx(tmp_path / "named" / "network.onnx")
    entries = scan(tmp_path)
    assert entries["m"].spec is not None
    assert entries["m"].spec.estimate_bytes > 360_000
    assert entries["named"].versions[0].path.endswith("named/network.onnx")


def test_folder_with_several_models_or_none(tmp_path: Path) -> None:
    write_onnx(tmp_path / "two" / "a.onnx")
    write_onnx(tmp_path / "two" / "b.onnx")
    write_text(tmp_path / "none" / "README.md", "hello")
    assert "several" in problem(tmp_path, "two")
    assert "holds no model" in problem(tmp_path, "none")


def test_triton_layout_takes_the_newest_version(tmp_path: Path) -> None:
    for version in (1, 2, 10):
        write_onnx(tmp_path / "m" / str(version) / "model.onnx")
    write_onnx(tmp_path / "m" / "011" / "model.onnx")  # Triton passes over folders that begin with 0
    write_text(tmp_path / "m" / "config.pbtxt", 'platform: "onnxruntime_onnx"')
    (tmp_path / "m" / "12").mkdir()  # a version that is just being copied
    entry = scan(tmp_path)["m"]
    assert numbers(entry) == [10]
    assert entry.default_version == 10
    assert entry.load_spec(3, "cpu").versions == entry.versions


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        ("", [4]),
        ("version_policy {}", [4]),
        ("version_policy { latest { } }", [4]),
        ("version_policy { latest { num_versions: 2 } }", [2, 4]),
        ("version_policy { latest { num_versions: 9 } }", [1, 2, 4]),
        ("version_policy { all { } }", [1, 2, 4]),
        ("version_policy { specific { versions: [ 1, 2, 3 ] } }", [1, 2]),
    ],
)
def test_version_policy(tmp_path: Path, policy: str, chosen: list[int]) -> None:
    for version in (1, 2, 4):
        write_onnx(tmp_path / "m" / str(version) / "model.onnx")
    write_text(tmp_path / "m" / "config.pbtxt", f'backend: "onnxruntime"\n{policy}\n')
    entry = scan(tmp_path)["m"]
    assert numbers(entry) == chosen
    assert entry.default_version == chosen[-1]


def test_version_policy_that_selects_nothing(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m" / "1" / "model.onnx")
    write_text(tmp_path / "m" / "config.pbtxt", "version_policy { specific { versions: [ 7 ] } }")
    assert "asks for version 7, and there is version 1" in problem(tmp_path)


def test_a_full_configuration(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m" / "1" / "net.onnx")
    write_text(
        tmp_path / "m" / "config.pbtxt",
        """
        # a comment
        name: "m"
        platform: "onnxruntime_onnx"
        default_model_filename: "net.onnx"
        max_batch_size: 8
        input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
        output { name: "y" data_type: TYPE_FP32 dims: 4 }
        instance_group [ { kind: KIND_CPU count: 2 }, { kind: KIND_GPU gpus: [ 0 ] } ]
        dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
        parameters { key: "mode" value { string_value: "fast" } }
        model_warmup [ { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } } ]
        """,
    )
    entry = scan(tmp_path)["m"]
    assert entry.problem is None
    assert entry.inputs == (TensorMeta("x", "FP32", (-1, 4)),)
    assert entry.outputs == (TensorMeta("y", "FP32", (-1, 4)),)
    assert entry.spec is not None
    assert entry.spec.device_kinds == ("cpu", "cuda")
    config = entry.config
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]
    assert config["dynamic_batching"] == {"preferred_batch_size": [4, 8], "max_queue_delay_microseconds": 100}
    assert config["parameters"] == {"mode": {"string_value": "fast"}}
    assert config["model_warmup"][0]["inputs"]["x"] == {"data_type": "TYPE_FP32", "dims": [4], "zero_data": True}
    assert [(group["name"], group["kind"], group["count"]) for group in config["instance_group"]] == [
        ("m_0", "KIND_CPU", 2),
        ("m_1", "KIND_GPU", 1),
    ]
    assert config["default_model_filename"] == "net.onnx"


def test_a_configuration_without_tensors_is_completed_from_the_file(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m" / "1" / "model.onnx")
    write_text(tmp_path / "m" / "config.pbtxt", "max_batch_size: 4")
    entry = scan(tmp_path)["m"]
    assert entry.config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]
    assert entry.inputs == (TensorMeta("x", "FP32", (-1, 4)),)


def test_without_configuration(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m" / "1" / "model.onnx")
    write_text(tmp_path / "p" / "1" / "model.py", "class TritonPythonModel: ...")
    entries = scan(tmp_path)
    assert entries["m"].runtime == "onnx"
    python = entries["p"]
    assert (python.runtime, python.platform, python.inputs) == ("python", "python", None)
    assert python.spec is not None
    assert python.spec.isolation == "process"


def test_python_model_with_configuration(tmp_path: Path) -> None:
    write_text(tmp_path / "p" / "1" / "model.py", "class TritonPythonModel: ...")
    write_text(tmp_path / "p" / "1" / "weights.bin", "x" * 1000)
    write_text(tmp_path / "p" / "2" / "unused.bin", "x" * 50_000)
    write_text(
        tmp_path / "p" / "config.pbtxt",
        'backend: "python" input { name: "t" data_type: TYPE_STRING dims: -1 } instance_group { kind: KIND_CPU }',
    )
    entry = scan(tmp_path)["p"]
    assert entry.inputs == (TensorMeta("t", "BYTES", (-1,)),)
    assert entry.outputs is None
    assert entry.config["backend"] == "python"
    assert entry.spec is not None
    assert entry.spec.device_kinds == ("cpu",)
    assert (64 << 20) + 1000 < entry.spec.estimate_bytes < (64 << 20) + 10_000


def test_a_folder_of_the_files_name_holds_model_and_weights(tmp_path: Path) -> None:
    write_external(tmp_path / "m" / "1" / "model.onnx" / "model.onnx")
    assert scan(tmp_path)["m"].versions[0].path.endswith("1/model.onnx/model.onnx")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ('name: "m"\nmax_batch_size: many', "line 2: .*many"),
        ("name: 'm'\n\nno_such_field: 1", 'line 3: .*no field named "no_such_field"'),
        ('name: "other"', "names the model 'other'"),
        ('platform: "ensemble"', "ensembles are not supported yet"),
        ('platform: "tensorrt_plan"', "platform 'tensorrt_plan' is not supported yet"),
        ('backend: "pytorch"', "backend 'pytorch' is not supported yet"),
        ("sequence_batching {}", "sequence_batching is not supported yet"),
        ("max_batch_size: -1", "max_batch_size is -1"),
        ('default_model_filename: "../x.onnx" backend: "onnxruntime"', "no plain file name"),
        ('default_model_filename: "x.onnx"', "there is no x.onnx"),
        ('backend: "python"', "no version folder holds model.py"),
        ('input { name: "x" dims: 4 }', "no usable data_type"),
        ("input { data_type: TYPE_FP32 dims: 4 }", "has no name"),
        ('input { name: "x" data_type: TYPE_FP32 dims: 0 }', "dims"),
        ('input { name: "x" data_type: TYPE_FP32 dims: -2 }', "dims"),
        ('input { name: "x" data_type: TYPE_FP32 } input { name: "x" data_type: TYPE_FP32 }', "twice"),
        ('input { name: "z" data_type: TYPE_FP32 dims: [-1, 4] }', "declares input 'z', and the model file has 'x'"),
        ('output { name: "y" data_type: TYPE_INT8 dims: [-1, 4] }', "as INT8, and the model file has FP32"),
        ("\x00", "line 1"),
        ("}" * 1000, "line 1"),
        ("input {" * 3000, "line 1"),
    ],
)
def test_malformed_configurations(tmp_path: Path, config: str, told: str) -> None:
    write_onnx(tmp_path / "good.onnx")
    write_onnx(tmp_path / "m" / "1" / "model.onnx")
    write_text(tmp_path / "m" / "config.pbtxt", config)
    assert re.search(told, problem(tmp_path))
    assert scan(tmp_path)["good"].problem is None


def test_configuration_that_is_not_text(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m" / "1" / "model.onnx")
    (tmp_path / "m" / "config.pbtxt").write_bytes(b'name: "\xff\xfe"')
    assert "not UTF-8" in problem(tmp_path)


def test_version_folders_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    write_text(tmp_path / "m" / "config.pbtxt", 'backend: "onnxruntime"')
    assert "put it at m/1/model.onnx" in problem(tmp_path)
    (tmp_path / "m" / "1").rmdir()
    assert "there is no version folder" in problem(tmp_path)


def test_a_version_number_that_no_frame_can_carry(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m" / "4294967296" / "model.onnx")
    assert "too large" in problem(tmp_path)


def test_external_data_that_is_missing_or_short(tmp_path: Path) -> None:
    write_external(tmp_path / "m" / "model.onnx")
    weights = tmp_path / "m" / "weights.bin"
    content = weights.read_bytes()
    weights.write_bytes(content[:1000])
    assert "holds 1000 bytes of weights" in problem(tmp_path)
    weights.unlink()
    assert "which is not there" in problem(tmp_path)


def test_the_version_at_fault_is_named(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m" / "1" / "model.onnx")
    write_text(tmp_path / "m" / "2" / "model.onnx", "no model")
    write_text(tmp_path / "m" / "config.pbtxt", "version_policy { all {} }")
    assert problem(tmp_path).startswith("version 2: model.onnx is not an ONNX file")


@pytest.mark.parametrize("name", ["a\nb", "x\x01", b"\xff\xfe"])
def test_hostile_names_are_listed_with_a_problem(tmp_path: Path, name: str | bytes) -> None:
    folder = os.path.join(os.fsencode(tmp_path), name if isinstance(name, bytes) else os.fsencode(name))
    os.mkdir(folder)
    (entry,) = scan(tmp_path).values()
    assert entry.spec is None
    assert entry.problem is not None
    assert "control characters" in entry.problem
    for text in (entry.name, entry.problem, entry.model_dir):
        text.encode()


def test_unicode_names_hidden_files_and_dangling_links(tmp_path: Path) -> None:
    write_onnx(tmp_path / "模型-ä.onnx")
    write_onnx(tmp_path / ".hidden.onnx")
    write_onnx(tmp_path / ".cache" / "model.onnx")
    write_text(tmp_path / "README.md", "text")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.onnx").symlink_to(tmp_path / "loop.onnx")
    entries = scan(tmp_path)
    assert sorted(entries) == ["gone", "loop", "模型-ä"]
    assert "cannot be read" in (entries["gone"].problem or "")
    assert "cannot be read" in (entries["loop"].problem or "")


def test_a_linked_model_is_served(tmp_path: Path) -> None:
    write_onnx(tmp_path / "store" / "real.onnx")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "m.onnx").symlink_to(tmp_path / "store" / "real.onnx")
    assert scan(tmp_path / "root")["m"].problem is None
