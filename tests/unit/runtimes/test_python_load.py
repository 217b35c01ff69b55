"""Python models are loaded and closed: files, versions, configuration, warm-up, and what can go wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelpool.errors import LoadFailed
from modelpool.runtimes.python import PythonRuntime
from tests.unit.runtimes.python_models import ADD_SUB, add_sub_config, answer, loaded, port, request, run, spec, write

F32 = np.float32
SAYING = """
class TritonPythonModel:
    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([{what}], dtype=object))]) for _ in requests]
"""


def saying(what: str) -> str:
    """A model that answers with a text."""
    return SAYING.format(what=what)


TEXT = {"output": [port("OUT", "TYPE_STRING", 1)]}


def said(model: Any, version: int = 1) -> str:
    text = answer(model.execute(version, [request()])[0])["OUT"][0]
    assert isinstance(text, bytes)
    return text.decode()


def test_what_initialize_is_told(tmp_path: Path) -> None:
    config = {
        "max_batch_size": 0,
        "parameters": {"k": {"string_value": "12"}},
        "input": [port("A", "TYPE_INT32", "-1", "3", optional=True)],
    }
    with loaded(tmp_path, saying("json.dumps(self.args)"), {**TEXT, **config}) as model:
        args = json.loads(said(model))
    told = json.loads(args.pop("model_config"))
    assert args == {
        "model_instance_kind": "CPU",
        "model_instance_name": "m_0_0",
        "model_instance_device_id": "0",
        "model_repository": str(tmp_path),
        "model_version": "1",
        "model_name": "m",
    }
    assert told["input"][0]["dims"] == [-1, 3]
    assert told["input"][0]["data_type"] == "TYPE_INT32"
    assert told["name"] == "m"
    assert told["max_batch_size"] == 0
    assert told["parameters"] == {"k": {"string_value": "12"}}
    assert told["instance_group"] == [{"name": "m_0", "kind": "KIND_CPU", "count": 1}]


def test_a_device_with_a_number(tmp_path: Path) -> None:
    code = saying("self.args['model_instance_kind'] + self.args['model_instance_device_id']")
    with loaded(tmp_path, code, TEXT, device="cuda:3") as model:
        assert said(model) == "GPU3"


def test_versions_are_apart(tmp_path: Path) -> None:
    for version in (1, 2):
        write(tmp_path, version, "import helper\n" + saying("f'{helper.NAME} {self.args[\"model_version\"]}'"))
        (tmp_path / str(version) / "helper.py").write_text(f"NAME = 'helper {version}'")
    with loaded(tmp_path, None, TEXT, versions=(1, 2)) as model:
        assert [said(model, version) for version in (1, 2)] == ["helper 1 1", "helper 2 2"]


def test_helpers_beside_the_model_and_in_its_folder(tmp_path: Path) -> None:
    write(
        tmp_path,
        1,
        "import mp_above\nimport mp_beside\nfrom .mp_relative import C\n" + saying("mp_above.A + mp_beside.B + C + self.late()"),
    )
    with (tmp_path / "1" / "model.py").open("a") as file:
        file.write("\n    def late(self):\n        from mp_folder.inner import D\n        return D\n")
    (tmp_path / "mp_above.py").write_text("A = 'a'")
    (tmp_path / "1" / "mp_beside.py").write_text("B = 'b'")
    (tmp_path / "1" / "mp_relative.py").write_text("C = 'c'")
    (tmp_path / "1" / "mp_folder").mkdir()
    (tmp_path / "1" / "mp_folder" / "inner.py").write_text("D = 'd'")
    before = sorted(tmp_path.rglob("*"))
    path, hooks = list(sys.path), list(sys.path_hooks)
    with loaded(tmp_path, None, TEXT) as model:
        assert said(model) == "abcd"
    assert sorted(tmp_path.rglob("*")) == before  # no byte code: it would look like a change of the model
    assert (sys.path, sys.path_hooks) == (path, hooks)
    assert not {"1", "1.model", "mp_above", "mp_beside", "mp_folder"} & set(sys.modules)


def test_another_file_name(tmp_path: Path) -> None:
    write(tmp_path, 1, saying("__name__"), "other.py")
    with loaded(tmp_path, None, {**TEXT, "default_model_filename": "other.py"}) as model:
        assert said(model) == "1.other"


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("class TritonPythonModel\n    pass", ["the code of model 'm' version 1 raised SyntaxError", "line 5"]),
        ("import no_such_module_here", ["ModuleNotFoundError", "no_such_module_here", '1/model.py", line 5']),
        ("x = 1", ["model.py of model 'm' version 1 has no class TritonPythonModel"]),
        ("TritonPythonModel = 7", ["is no class with a method execute"]),
        ("class TritonPythonModel:\n    pass", ["is no class with a method execute"]),
        ("raise SystemExit(4)", ["it called sys.exit(4)"]),
        (
            "class TritonPythonModel:\n"
            "    def initialize(self, args):\n        raise OSError('no weights')\n"
            "    def execute(self, requests): ...",
            ["initialize of model 'm' version 1 raised OSError: no weights", "raise OSError('no weights')", "line 7, in initialize"],
        ),
        (
            "import sys\nclass TritonPythonModel:\n"
            "    def initialize(self, args):\n        sys.exit()\n"
            "    def execute(self, requests): ...",
            ["initialize of model 'm'", "SystemExit"],
        ),
    ],
)
def test_a_load_that_fails_says_why(tmp_path: Path, code: str, parts: list[str]) -> None:
    write(tmp_path, 1, code)
    path, hooks = list(sys.path), list(sys.path_hooks)
    with pytest.raises(LoadFailed) as caught:
        PythonRuntime().load(spec(tmp_path, TEXT))
    for part in parts:
        assert part in caught.value.message
    assert "pymodel" not in caught.value.message
    assert (sys.path, sys.path_hooks) == (path, hooks)


def test_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with pytest.raises(LoadFailed, match=r"version 1 has no model\.py in its version folder"):
        PythonRuntime().load(spec(tmp_path, TEXT))


def test_no_versions(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="no version to load"):
        PythonRuntime().load(spec(tmp_path, TEXT, versions=()))


def test_packages_of_a_packed_environment_are_hinted_at(tmp_path: Path) -> None:
    write(tmp_path, 1, "import no_such_module_here")
    config = {**TEXT, "parameters": {"EXECUTION_ENV_PATH": {"string_value": "env.tar.gz"}}}
    with pytest.raises(LoadFailed, match="EXECUTION_ENV_PATH"):
        PythonRuntime().load(spec(tmp_path, config))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**TEXT, "model_transaction_policy": {"decoupled": True}}, "is decoupled .* later version"),
        ({**TEXT, "sequence_batching": {}}, "sequence_batching.* later version"),
        ({}, "declares no output"),
        ({"output": [port("OUT", "TYPE_FP4")]}, "there is no data type 'TYPE_FP4'"),
        ({"output": [{"name": "OUT"}]}, "an output of model 'm' needs name, data_type and dims"),
        ({"output": [port("OUT"), port("OUT")]}, "declares output 'OUT' twice"),
    ],
)
def test_a_configuration_that_cannot_be_served(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    write(tmp_path, 1, saying("''"))
    with pytest.raises(LoadFailed, match=message):
        PythonRuntime().load(spec(tmp_path, config))


AUTO = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        assert auto_complete_model_config.as_dict()["name"] == "m"
        auto_complete_model_config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
        auto_complete_model_config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]})
        auto_complete_model_config.set_max_batch_size(8)
        auto_complete_model_config.set_dynamic_batching()
        return auto_complete_model_config

    def initialize(self, args):
        assert json.loads(args["model_config"])["max_batch_size"] > 0

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""


@pytest.mark.parametrize(
    ("config", "max_batch"),
    [({}, 8), ({"max_batch_size": 2, "input": [port("IN", "TYPE_FP32", "4")], "instance_group": [{"count": 2}]}, 2)],
)
def test_a_model_completes_its_configuration(tmp_path: Path, config: dict[str, Any], max_batch: int) -> None:
    with loaded(tmp_path, AUTO, config) as model:
        assert (model.max_batch, model.batches, model.inputs[0].shape) == (max_batch, True, (-1, 4))
        assert answer(run(model, IN=np.ones((2, 4), F32)))["OUT"].shape == (2, 4)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_batch_size": 16}, "max_batch_size 16, the model's auto_complete_config 8"),
        ({"input": [port("IN", "TYPE_INT8", 4)]}, "data_type TYPE_INT8 for input 'IN'"),
        ({"sequence_batching": {}}, "only one can be"),
    ],
)
def test_a_model_that_contradicts_its_configuration(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    write(tmp_path, 1, AUTO)
    with pytest.raises(LoadFailed, match=message):
        PythonRuntime().load(spec(tmp_path, config))


def test_auto_complete_that_returns_nothing(tmp_path: Path) -> None:
    write(tmp_path, 1, AUTO.replace("        return auto_complete_model_config\n", ""))
    with pytest.raises(LoadFailed, match="returned NoneType; return the ModelConfig"):
        PythonRuntime().load(spec(tmp_path, {}))


NOTING = """
class TritonPythonModel:
    ran = []

    def execute(self, requests):
        self.ran.append([(r.inputs()[0].shape(), r.inputs()[0].as_numpy().tolist()) for r in requests])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps(self.ran)]))]) for r in requests]
"""


def test_warm_up(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "raw").write_bytes(np.array([5, 6], "<i4").tobytes())
    entry = {"data_type": "TYPE_INT32", "dims": ["2"]}
    config = {
        "max_batch_size": 4,
        "input": [port("IN", "TYPE_INT32", 2)],
        "output": [port("OUT", "TYPE_STRING", 1)],
        "model_warmup": [
            {"name": "zeros", "batch_size": 3, "inputs": {"IN": {**entry, "zero_data": True}}, "count": 2},
            {"name": "file", "batch_size": 1, "inputs": {"IN": {**entry, "input_data_file": "raw"}}},
        ],
    }
    with loaded(tmp_path, NOTING, config) as model:
        ran = json.loads(answer(run(model, IN=np.ones((1, 2), np.int32)))["OUT"][0])
    assert [shape for call in ran for shape, _ in call] == [[3, 2], [3, 2], [1, 2], [1, 2]]
    assert [values for call in ran for _, values in call][2:] == [[[5, 6]], [[1, 1]]]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"data_type": "TYPE_FP32", "dims": ["5"], "zero_data": True}, "warm-up sample 's' of model 'm' failed: unexpected shape"),
        ({"data_type": "TYPE_FP32", "dims": ["4"], "input_data_file": "none"}, "warm-up sample 's' cannot be made: .*No such file"),
        ({"data_type": "TYPE_FP32", "dims": ["-1"]}, "every size must be given"),
    ],
)
def test_a_warm_up_that_fails(tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    write(tmp_path, 1, ADD_SUB)
    right = {"data_type": "TYPE_FP32", "dims": ["4"], "random_data": True}
    config = add_sub_config(model_warmup=[{"name": "s", "inputs": {"A": entry, "B": right}}])
    with pytest.raises(LoadFailed, match=message):
        PythonRuntime().load(spec(tmp_path, config))


def test_every_slot_is_warmed_up_and_finalised(tmp_path: Path) -> None:
    code = """
    class TritonPythonModel:
        warm = set()

        def execute(self, requests):
            self.warm.add(id(self))
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([str(len(self.warm))]))])]

        def finalize(self):
            pb_utils.Logger.log_info("finalised")
            raise RuntimeError("at the end")
    """
    config = {**TEXT, "instance_group": [{"count": 3}], "model_warmup": [{"name": "s"}]}
    with loaded(tmp_path, code, config) as model:
        assert said(model) == "3"


def test_errors_of_finalize_go_to_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = saying("''") + "\n    def finalize(self):\n        raise RuntimeError('at the end')\n"
    with loaded(tmp_path, code, TEXT) as model:
        model.close()
        model.close()  # closing again is harmless
    assert "error model=m finalize of m_0_0 raised RuntimeError: at the end (1/model.py:" in capsys.readouterr().err


def test_a_finalize_that_never_returns_is_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelpool.runtimes.python.FINALIZE_LIMIT_S", 0.0)
    code = "import threading\nend = threading.Event()\n" + saying("''") + "\n    def finalize(self):\n        end.wait()\n"
    write(tmp_path, 1, code)
    model = PythonRuntime().load(spec(tmp_path, TEXT))
    event = sys.modules["1.model"].end
    model.close()
    assert "did not return within" in capsys.readouterr().err
    event.set()
