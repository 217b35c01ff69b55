"""The catalogue of a running server: configurations that are honoured, models that appear, change and go, entries that are malformed."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelpool.testing.models import python_model, scale, write_config
from tests.integration import zoo
from tests.integration.serving import RunningServer, ask, infer, question, serving, until

X = question(x=np.array([2.0], np.float32))
ROW = np.ones((1, 4), np.float32)
CONFIG = """
backend: "python"
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
NAPS = """
    import time
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def initialize(self, args):
            self.name = args["model_instance_name"]

        def execute(self, requests):
            time.sleep(0.5 * len(requests))
            tensors = [pb_utils.get_input_tensor_by_name(request, "x") for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", tensor.as_numpy())]) for tensor in tensors]
"""
COUNTS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def initialize(self, args):
            self.runs = 0

        def execute(self, requests):
            self.runs += 1
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([self.runs], np.float32))]) for _ in requests]
"""
WARMUP = """
model_warmup [ {
  name: "zeros" batch_size: 1 count: 3
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 5 ] zero_data: true } }
} ]
"""
BAD_WARMUP = WARMUP.replace('key: "x"', 'key: "nobody"')


@pytest.fixture
def models(tmp_path: Path) -> Path:
    scale(tmp_path / "models" / "triple.onnx", 3.0)
    return tmp_path / "models"


def rows(server: RunningServer) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in server.client.post("/v2/repository/index").json()}


def resident(server: RunningServer) -> set[str]:
    return {one["model_name"] for one in server.client.get("/models").json()["models"]}


def test_instance_group_warmup_and_devices_of_a_configuration(models: Path, tmp_path: Path) -> None:
    for count in (1, 3):
        write_config(models / f"naps{count}", CONFIG + f"instance_group [ {{ kind: KIND_CPU count: {count} }} ]")
        python_model(models / f"naps{count}", NAPS)
    write_config(models / "warm", CONFIG + WARMUP)
    python_model(models / "warm", COUNTS)
    zoo.onnx_add_sub(models / "warm-onnx", batch=0, more=WARMUP.replace('"x"', '"a"').replace("5", "4"))
    write_config(models / "bad-warm", CONFIG + BAD_WARMUP)
    python_model(models / "bad-warm", COUNTS)
    zoo.onnx_add_sub(models / "gpu", more="instance_group [ { kind: KIND_GPU count: 1 gpus: [ 0 ] } ]")
    with serving(tmp_path, "--device", "cpu=2GiB") as server:
        took_s = {}
        for model in ("naps1", "naps3"):
            server.value(model)
            began = time.monotonic()
            with ThreadPoolExecutor(3) as pool:
                assert {one.status_code for one in pool.map(lambda _: infer(server, model, X), range(3))} == {200}  # noqa: B023
            took_s[model] = time.monotonic() - began
        assert took_s["naps1"] >= 1.5  # one after the other
        assert took_s["naps3"] < took_s["naps1"] - 0.4
        assert server.client.get("/v2/models/naps3/config").json()["instance_group"] == [
            {"name": "naps3_0", "count": 3, "kind": "KIND_CPU"}
        ]

        assert server.value("warm") == 4.0  # three warm-up runs came before
        answer = infer(server, "warm-onnx", question(a=np.ones(4, np.float32), b=np.ones(4, np.float32)))
        assert (answer.status_code, answer.json()["code"]) == (400, "load_failed")  # its warm-up lacks an input
        assert "warm-up sample 'zeros'" in answer.json()["error"]
        assert int(answer.headers["retry-after"]) >= 1
        answer = infer(server, "bad-warm", X)
        assert (answer.status_code, answer.json()["code"]) == (400, "load_failed")
        assert "nobody" in answer.json()["error"]

        answer = infer(server, "gpu", question(a=ROW, b=ROW))
        assert (answer.status_code, answer.json()["code"]) == (404, "device_not_found")
        assert "needs device cuda; this server has cpu" in answer.json()["error"]
        assert server.client.get("/v2/models/gpu/ready").status_code == 400
        assert server.value("triple") == 3.0


def test_preload_from_everywhere_and_a_failing_one_stops_nothing(models: Path, tmp_path: Path) -> None:
    for name in ("by-option", "by-file", "by-itself", "pinned", "nobody-asked"):
        scale(models / f"{name}.onnx", 2.0)
    write_config(models / "raises", CONFIG)
    python_model(models / "raises", "raise RuntimeError('no weights today')")
    (models / "bad.onnx").write_bytes(b"not a model")
    (models / "modelpool.yaml").write_text("preload: [raises, missing, bad, by-file]\n")
    (models / "by-itself.modelpool.yaml").write_text("preload: true\n")
    (models / "pinned.modelpool.yaml").write_text("pinned: true\n")
    arguments = ["--preload", "raises", "--preload", "missing-too", "--preload", "bad", "--preload", "by-option"]
    with serving(tmp_path, "--device", "cpu=1GiB", *arguments) as server:
        until(lambda: {"by-option", "by-file", "by-itself", "pinned"} <= resident(server), "the preloads")
        assert "nobody-asked" not in resident(server)
        assert server.value("triple") == 3.0
        assert server.client.get("/v2/health/ready").status_code == 200
        answer = infer(server, "raises", X)
        assert (answer.status_code, answer.json()["code"]) == (400, "load_failed")
        assert "no weights today" in answer.json()["error"]
        log = server.log.read_text()
        for name in ("raises", "missing-too", "bad"):
            assert f"preload of {name} failed" in log


def test_models_appear_change_and_go_while_it_serves(models: Path, tmp_path: Path) -> None:
    with serving(tmp_path, "--device", "cpu=1GiB") as server:
        assert server.value("triple") == 3.0
        assert infer(server, "later", X).status_code == 404

        zoo.versions(models / "later", "version_policy { latest { num_versions: 2 } }")
        until(lambda: "later" in rows(server), "the new model")
        assert server.client.get("/v2/models/later").json()["versions"] == ["2", "10"]
        assert ask(server, "later/versions/2", x=np.array([2.0], np.float32)) == {"y": [4.0]}

        scale(models / "later" / "11" / "model.onnx", 11.0)
        until(lambda: ask(server, "later", x=np.array([2.0], np.float32)) == {"y": [22.0]}, "the newer version")
        assert infer(server, "later/versions/2", X).status_code == 404  # the policy has the latest two
        write_config(models / "later", 'backend: "onnxruntime"\nversion_policy { all { } }')
        until(lambda: server.client.get("/v2/models/later").json()["versions"] == ["1", "2", "10", "11"], "the changed policy")
        assert ask(server, "later/versions/1", x=np.array([2.0], np.float32)) == {"y": [2.0]}

        (models / "later.modelpool.yaml").write_text("pinned: true\n")  # that of a single file, not of a folder
        (models / "later" / "modelpool.yaml").write_text("pinned: true\n")
        until(lambda: server.view("later")["pinned"], "the changed policy of residency")

        shutil.rmtree(models / "later")
        until(lambda: infer(server, "later", X).status_code == 404, "the removed model")
        until(lambda: "later" not in resident(server), "its memory")
        assert server.value("triple") == 3.0


def test_what_turns_malformed_is_listed_and_what_is_mended_serves(models: Path, tmp_path: Path) -> None:
    scale(models / "fragile.onnx", 2.0)
    whole = (models / "fragile.onnx").read_bytes()
    with serving(tmp_path, "--device", "cpu=1GiB") as server:
        assert server.value("fragile") == 2.0
        (models / "fragile.onnx").write_bytes(whole[: len(whole) // 2])
        until(lambda: "cut off" in rows(server)["fragile"].get("reason", ""), "the damage to be seen")
        answer = infer(server, "fragile", X)
        assert (answer.status_code, answer.json()["code"]) == (404, "malformed_model")
        assert server.client.get("/v2/models/fragile/ready").status_code == 400
        load = server.client.post("/v2/repository/models/fragile/load")
        assert (load.status_code, load.json()["code"]) == (500, "malformed_model")
        assert server.client.post("/models", json={"model_name": "fragile"}).status_code == 400
        assert "mend its files" in server.client.get("/models/explain", params={"model_name": "fragile"}).text
        scale(models / "fragile.onnx", 5.0)
        until(lambda: infer(server, "fragile", X).status_code == 200, "the mended model")
        assert server.value("fragile") == 5.0


def test_two_repositories_and_one_that_vanishes_for_a_while(models: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    scale(second / "only-there.onnx", 4.0)
    scale(second / "triple.onnx", 100.0)  # the first repository wins
    with serving(tmp_path, str(second), "--device", "cpu=1GiB") as server:
        assert server.value("triple") == 3.0
        assert server.value("only-there") == 4.0
        second.rename(tmp_path / "away")
        until(lambda: rows(server), "an answer")
        scale(models / "sign.onnx", 1.0)
        until(lambda: "sign" in rows(server), "a rescan")
        assert server.value("only-there") == 4.0  # an outage of a disk is no wish to remove it
        (tmp_path / "away").rename(second)
        scale(second / "more.onnx", 6.0)
        until(lambda: "more" in rows(server), "the repository that came back")
        assert server.value("more") == 6.0


def test_an_empty_repository_serves_nothing_until_it_has_something(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert server.about["models"] == 0
        assert server.client.get("/models").json() == {"models": []}
        assert server.client.post("/v2/repository/index").json() == []
        assert server.client.get("/v2/health/ready").status_code == 200
        scale(tmp_path / "models" / "first.onnx", 8.0)
        until(lambda: infer(server, "first", X).status_code == 200, "the first model")


def test_names_in_a_repository_that_no_model_may_have_are_listed(models: Path, tmp_path: Path) -> None:
    scale(models / "line\nbreak.onnx", 1.0)
    shutil.copy(models / "triple.onnx", os.fsencode(models) + b"/bytes\xff.onnx")
    scale(models / ".hidden.onnx", 1.0)
    (models / "notes.txt").write_text("not a model")
    with serving(tmp_path, "--device", "cpu=1GiB") as server:
        found = rows(server)
        assert set(found) == {"triple", "line\\nbreak", "bytes\\udcff"}
        for name in set(found) - {"triple"}:
            assert "leave them out" in found[name]["reason"]
            assert infer(server, name, X).status_code == 404
        assert server.value("triple") == 3.0
