"""The model API over HTTP: posting, forgetting, pinning, refusals that say what to do; and what of it outlives a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from modelpool.testing.models import dense, scale, write_config
from tests.integration import zoo
from tests.integration.serving import RunningServer, ask, infer, question, restart, serving, until

MIB = 1 << 20
X = question(x=np.array([2.0], np.float32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """models/: the repository; allowed/: where posted models may lie; secret/: where they may not."""
    folder = tmp_path_factory.mktemp("api")
    scale(folder / "models" / "triple.onnx", 3.0)
    scale(folder / "models" / "double.onnx", 2.0)
    dense(folder / "models" / "big.onnx", weight_bytes=12 * MIB)
    dense(folder / "models" / "huge.onnx", weight_bytes=80 * MIB)
    scale(folder / "allowed" / "extra.onnx", 5.0)
    scale(folder / "allowed" / "in-folder" / "model.onnx", 6.0)
    zoo.versions(folder / "allowed" / "in-versions")
    zoo.python_raising(folder / "allowed" / "python")
    (folder / "allowed" / "bad.onnx").write_bytes(b"not a model")
    scale(folder / "secret" / "hidden.onnx", 9.0)
    (folder / "allowed" / "link.onnx").symlink_to(folder / "secret" / "hidden.onnx")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with serving(folder, "--device", "cpu=60MiB", "--allow-root", str(folder / "allowed")) as found:
        yield found


def post(server: RunningServer, name: str, device: str | None = None, **properties: Any) -> httpx.Response:
    wish: dict[str, Any] = {"model_name": name}
    if device is not None:
        wish["model_device"] = device
    if properties:
        wish["model_properties"] = {"type": "onnx", **properties}
    return server.client.post("/models", json=wish)


def delete(server: RunningServer, name: str, **query: str) -> httpx.Response:
    return server.client.delete("/models", params={"model_name": name, **query})


def entry(server: RunningServer, name: str) -> dict[str, Any] | None:
    models = server.client.get("/models", params={"detailed": "true"}).json()["models"]
    return next((one for one in models if one["model_name"] == name), None)


def well_formed(answer: httpx.Response, status: int, code: str) -> str:
    """The message of a refusal, which has all fields of Marqo's form."""
    found = answer.json()
    assert answer.status_code == status, answer.text
    assert set(found) == {"message", "code", "type", "link", "modelpool_code"}
    assert found["code"] == code
    assert found["type"] == ("invalid_request" if status < 500 else "internal_error")
    return str(found["message"])


# --- load, look, eject ----------------------------------------------------------------------------------------------------------------
def test_a_model_comes_is_seen_and_goes(server: RunningServer) -> None:
    delete(server, "triple")
    assert entry(server, "triple") is None
    answer = post(server, "triple", "cpu")
    assert answer.json() == {
        "result": "success",
        "message": "successfully loaded model `triple` on device `cpu`",
        "model_name": "triple",
        "model_device": "cpu",
    }
    found = entry(server, "triple")
    assert found is not None
    assert (found["model_name"], found["modelName"], found["model_device"]) == ("triple", "triple", "cpu")
    assert (found["state"], found["tier"], found["pinned"]) == ("READY", "DEVICE", False)
    assert found["size_bytes"] > 0
    assert '"type":"onnx"' in found["modelProperties"]
    assert delete(server, "triple", model_device="cpu").json()["message"] == "successfully ejected model `triple` from device `cpu`"
    assert entry(server, "triple") is None
    assert infer(server, "triple", X).json()["outputs"][0]["data"] == [6.0]  # a request brings it back
    assert entry(server, "triple") is not None


def test_ejecting_what_is_not_there(server: RunningServer) -> None:
    post(server, "triple")
    for name, query in (
        ("nobody", {}),
        ("trip", {}),
        ("triple", {"model_device": "cuda"}),
        ("triple", {"model_device": "cpu:0"}),
        ("huge", {}),
    ):
        device = query.get("model_device", "any device")
        message = well_formed(delete(server, name, **query), 404, "model_not_in_cache")
        assert message == f"The model_name `{name}` device `{device}` is not cached or found"
    assert entry(server, "triple") is not None


def test_devices_that_are_not_there(server: RunningServer) -> None:
    for device in ("cuda", "cuda:0", "tpu", "cpu:1"):
        message = well_formed(post(server, "triple", device), 404, "device_not_found")
        assert device in message
        assert "this server has cpu" in message
    well_formed(server.client.get("/device/tpu"), 404, "path_not_found")


def test_what_can_never_fit_says_so_with_sizes_and_evicts_nothing(server: RunningServer) -> None:
    post(server, "big")
    for answer in (post(server, "huge"), infer(server, "huge", X), server.client.post("/v2/repository/models/huge/load")):
        assert answer.status_code == 507
        message = answer.json().get("message") or answer.json()["error"]
        assert "60 MiB" in message
        assert "MiB loaded" in message
        assert "--device cpu=SIZE" in message
    assert entry(server, "big") is not None
    assert server.client.get("/v2/models/huge").status_code == 200
    assert server.client.get("/v2/models/huge/ready").status_code == 400  # it cannot be served


def test_explain_and_decisions(server: RunningServer) -> None:
    post(server, "triple")
    explained = server.client.get("/models/explain", params={"model_name": "triple"}).json()
    assert (explained["model"], explained["state"]) == ("triple", "READY")
    assert explained["now"]
    decisions = server.client.get("/decisions", params={"model_name": "triple", "limit": "1000"}).json()["decisions"]
    assert {"load", "loaded"} <= {one["kind"] for one in decisions}
    assert {one["model"] for one in decisions} == {"triple"}
    assert "can never be loaded" in server.client.get("/models/explain", params={"model_name": "huge"}).text
    well_formed(server.client.get("/models/explain", params={"model_name": "nobody"}), 404, "model_not_found")


# --- generic models -------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "where", "factor"),
    [
        ("hf/e5-base-v2", "{allowed}/extra.onnx", 5),
        ("open_clip/ViT-B-32/laion2b_s34b_b79k", "file://{allowed}/extra.onnx", 5),
        ("von Größe 模型+plus|pipe", "extra.onnx", 5),  # relative to an allowed root
        ("a folder", "{allowed}/in-folder", 6),
        ("versions", "{allowed}/in-versions", 10),
        ("triple", "{allowed}/extra.onnx", 5),  # instead of the one in the repository
    ],
)
def test_generic_models_of_all_sorts(server: RunningServer, folder: Path, name: str, where: str, factor: int) -> None:
    if name == "versions":  # a configuration that names a model is for that name alone
        write_config(folder / "allowed" / "in-versions", 'backend: "onnxruntime"')
    answer = post(server, name, url=where.format(allowed=folder / "allowed"), dimensions=384, note="mine", more={"a": [1, 2]})
    assert answer.status_code == 200, answer.text
    path = httpx.URL(server.about["url"]).copy_with(raw_path=f"/v2/models/{_escaped(name)}/infer".encode())
    assert server.client.post(path, json=X).json()["outputs"][0]["data"] == [2.0 * factor]
    found = entry(server, name)
    assert found is not None
    assert found["model_properties"] | {"url": ""} == {
        "url": "",
        "type": "onnx",
        "dimensions": 384,
        "note": "mine",
        "more": {"a": [1, 2]},
        "name": name,
    }
    assert delete(server, name, forget="true").status_code == 200


def _escaped(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


@pytest.mark.parametrize(
    ("properties", "status", "code", "words"),
    [
        ({"url": "{secret}/hidden.onnx"}, 403, "forbidden", "allowed_roots"),
        ({"url": "{allowed}/../secret/hidden.onnx"}, 403, "forbidden", "allowed_roots"),
        ({"url": "{allowed}/link.onnx"}, 403, "forbidden", "allowed_roots"),
        ({"url": "../secret/hidden.onnx"}, 403, "forbidden", "allowed_roots"),
        ({"url": "/etc/passwd"}, 403, "forbidden", "allowed_roots"),
        ({"url": "file:///etc/passwd"}, 403, "forbidden", "allowed_roots"),
        ({"url": "file://elsewhere/etc/passwd"}, 400, "bad_request", "local file"),
        ({"url": "{allowed}/nowhere.onnx"}, 400, "bad_request", "there is no file"),
        ({"url": "{allowed}/bad.onnx"}, 400, "bad_request", "not an ONNX file"),
        ({"url": "{allowed}/python"}, 400, "invalid_argument", "Python model"),
        ({"url": "{allowed}/extra.onnx", "type": "torch"}, 400, "invalid_argument", "'onnx'"),
        ({"url": "https://example.org/model.onnx"}, 400, "invalid_argument", "later version"),
        ({"url": "a\0b"}, 400, "bad_request", "NUL"),
        ({"url": ""}, 400, "bad_request", "url"),
        ({"url": 5}, 400, "bad_request", "url"),
        ({"note": "no url"}, 400, "bad_request", "url"),
        ({"url": "{allowed}/extra.onnx", "dimensions": -1}, 400, "bad_request", "dimensions"),
        ({"url": "{allowed}/extra.onnx", "dimensions": "384"}, 400, "bad_request", "dimensions"),
    ],
)
def test_generic_models_that_are_refused(
    server: RunningServer, folder: Path, properties: dict[str, Any], status: int, code: str, words: str
) -> None:
    if isinstance(properties.get("url"), str):
        properties = {**properties, "url": properties["url"].format(allowed=folder / "allowed", secret=folder / "secret")}
    assert words in well_formed(post(server, "refused", **properties), status, code)
    well_formed(server.client.get("/models/view", params={"model_name": "refused"}), 404, "model_not_found")


def test_a_generic_model_that_does_not_fit_is_registered_all_the_same(server: RunningServer, folder: Path) -> None:
    dense(folder / "allowed" / "vast.onnx", weight_bytes=90 * MIB)
    assert "can never be loaded" in well_formed(post(server, "vast", url="vast.onnx"), 507, "never_fits")
    assert server.view("vast")["source"] == "posted"
    assert delete(server, "vast", forget="true").status_code == 200


# --- over restarts --------------------------------------------------------------------------------------------------------------------
def test_posted_forgotten_and_pinned_outlive_restarts(folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        scale(tmp_path / "models" / f"{name}.onnx", float(len(name)))
    with serving(tmp_path, "--device", "cpu=60MiB", "--allow-root", str(folder / "allowed")) as server:
        assert post(server, "hf/extra", url="extra.onnx", note="kept").status_code == 200
        assert post(server, "brief", url="extra.onnx").status_code == 200
        assert server.client.post("/models/pin", params={"model_name": "two"}).status_code == 200
        assert delete(server, "brief", forget="true").status_code == 200
        assert delete(server, "one", forget="true").status_code == 200
        assert delete(server, "hf/extra").status_code == 200  # only ejected
        for hard in (False, True):
            _gone(server, "one")
            _gone(server, "brief")
            if hard:
                until(lambda: server.view("two")["state"] == "READY", "the pinned model, before the server is killed")
            restart(server, hard=hard)
            until(lambda: server.view("two")["state"] == "READY", "the pinned model")
            assert server.view("two")["pinned"]
            assert infer(server, "hf%2Fextra", X).json()["outputs"][0]["data"] == [10.0]
            found = entry(server, "hf/extra")
            assert found is not None
            assert found["model_properties"]["note"] == "kept"
        _gone(server, "one")
        _gone(server, "brief")
        scale(tmp_path / "models" / "one.onnx", 7.0)  # a new file is no wish to have it back
        scale(tmp_path / "models" / "seen.onnx", 1.0)
        until(lambda: infer(server, "seen", X).status_code == 200, "a rescan")
        _gone(server, "one")
        assert "with its properties" in well_formed(post(server, "brief"), 404, "model_forgotten")
        assert post(server, "brief", url="extra.onnx").status_code == 200
        assert ask(server, "brief", x=np.array([1.0], np.float32)) == {"y": [5.0]}
        assert server.client.post("/models/unpin", params={"model_name": "two"}).status_code == 200
        restart(server)
        assert not server.view("two")["pinned"]
        assert ask(server, "brief", x=np.array([1.0], np.float32)) == {"y": [5.0]}


def _gone(server: RunningServer, name: str) -> None:
    """Deleted from the catalogue: every way to use it says so with a code of its own."""
    assert infer(server, name, X).status_code == 404
    assert infer(server, name, X).json()["code"] == "model_forgotten"
    assert server.client.get(f"/v2/models/{name}").json()["code"] == "model_forgotten"
    assert server.client.get(f"/v2/models/{name}/ready").status_code == 400
    assert name not in {row["name"] for row in server.client.post("/v2/repository/index").json()}
    assert "post it again" in well_formed(delete(server, name), 404, "model_forgotten")


def test_a_forgotten_model_of_a_repository_is_known_again_once_its_name_is_posted(tmp_path: Path) -> None:
    scale(tmp_path / "models" / "twice.onnx", 2.0)
    zoo.python_add_sub(tmp_path / "models" / "sums")
    (tmp_path / "models" / "bad.onnx").write_bytes(b"not a model")
    pair = question(a=np.ones(4, np.float32), b=np.ones(4, np.float32))
    with serving(tmp_path, "--device", "cpu=200MiB") as server:
        assert infer(server, "twice", X).status_code == 200  # a copy that has to leave
        for name in ("twice", "sums", "bad"):
            assert delete(server, name, forget="true").status_code == 200
            _gone(server, name)
        restart(server)
        assert "not an ONNX file" in well_formed(post(server, "bad"), 400, "bad_request")
        _gone(server, "bad")  # a post that is refused changes nothing
        for name in ("twice", "sums"):
            _gone(server, name)
            assert post(server, name, "cpu").json()["message"] == f"successfully loaded model `{name}` on device `cpu`"
        for again in (False, True):
            if again:
                restart(server)
            assert infer(server, "twice", X).json()["outputs"][0]["data"] == [4.0]
            assert infer(server, "sums", pair).json()["outputs"][0]["data"] == [2.0] * 4
        assert server.view("twice")["source"] == "repository"


def test_a_posted_model_whose_file_is_gone_is_listed_with_its_fault(folder: Path, tmp_path: Path) -> None:
    scale(tmp_path / "loose.onnx", 2.0)
    scale(tmp_path / "models" / "other.onnx", 3.0)
    with serving(tmp_path, "--allow-root", str(tmp_path), "--device", "cpu=60MiB") as server:
        assert post(server, "loose", url=str(tmp_path / "loose.onnx")).status_code == 200
        (tmp_path / "loose.onnx").unlink()
        restart(server)
        (row,) = [row for row in server.client.post("/v2/repository/index").json() if row["name"] == "loose"]
        assert "there is no file" in row["reason"]
        assert infer(server, "loose", X).status_code == 404
        assert ask(server, "other", x=np.array([1.0], np.float32)) == {"y": [3.0]}
        scale(tmp_path / "loose.onnx", 4.0)
        until(lambda: infer(server, "loose", X).status_code == 200, "the file that came back")
        assert ask(server, "loose", x=np.array([1.0], np.float32)) == {"y": [4.0]}


# --- policy none ----------------------------------------------------------------------------------------------------------------------
def test_without_eviction_every_way_to_load_says_what_to_eject(tmp_path: Path) -> None:
    for number, name in enumerate(("alpha", "beta", "gamma")):
        dense(tmp_path / "models" / f"{name}.onnx", weight_bytes=12 * MIB, seed=number)
    with serving(tmp_path, "--device", "cpu=46MiB", "--eviction", "none") as server:
        assert post(server, "alpha").status_code == 200
        assert post(server, "beta").status_code == 200
        message = well_formed(post(server, "gamma"), 409, "model_cache_management_error")
        assert "eject alpha first" in message
        for answer in (infer(server, "gamma", X), server.client.post("/v2/repository/models/gamma/load")):
            assert (answer.status_code, answer.json()["code"]) == (409, "no_space")
            assert "eject alpha first" in answer.json()["error"]
        assert {one["model_name"] for one in server.client.get("/models").json()["models"]} == {"alpha", "beta"}
        assert delete(server, "alpha").status_code == 200
        assert post(server, "gamma").status_code == 200


def test_pins_in_the_way_are_named(tmp_path: Path) -> None:
    for number, name in enumerate(("alpha", "beta")):
        dense(tmp_path / "models" / f"{name}.onnx", weight_bytes=12 * MIB, seed=number)
    with serving(tmp_path, "--device", "cpu=25MiB") as server:
        assert server.client.post("/models/pin", params={"model_name": "alpha"}).status_code == 200
        until(lambda: server.view("alpha")["state"] == "READY", "the pinned model")
        message = well_formed(post(server, "beta"), 409, "model_cache_management_error")
        assert "unpin alpha first" in message
        message = well_formed(delete(server, "alpha"), 400, "bad_request")
        assert "unpin it first" in message
        assert server.client.post("/v2/repository/models/alpha/unload").status_code == 400
        assert server.client.post("/models/unpin", params={"model_name": "alpha"}).status_code == 200
        assert post(server, "beta").status_code == 200  # evicts it
        assert not server.view("alpha")["copies"]
