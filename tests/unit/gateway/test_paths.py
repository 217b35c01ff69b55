from __future__ import annotations

import pytest

from modelpool.errors import InvalidName, InvalidRequest
from modelpool.gateway.paths import infer_target, model_path


@pytest.mark.parametrize(
    ("path", "model", "version", "action"),
    [
        (b"/v2/models/m", "m", 0, ""),
        (b"//v2/models/m/ready", "m", 0, "ready"),
        (b"/v2/models/m/versions/2", "m", 2, ""),
        (b"/v2/models/a/b/versions/2/config", "a/b", 2, "config"),
        (b"/v2/models/a%2Fready", "a/ready", 0, ""),
        (b"/v2/models/a%2Fversions%2F3/stats", "a/versions/3", 0, "stats"),
        (b"/v2/models/ready", "ready", 0, ""),
        (b"/v2/models/m/trace/setting", "m", 0, "trace/setting"),
        (b"/v2/models/m/versions/1/generate_stream", "m", 1, "generate_stream"),
        (b"/v2/models/m/inferx", "m/inferx", 0, ""),
        (b"/v2/models//infer", "", 0, "infer"),
    ],
)
def test_a_path_names_model_version_and_action(path: bytes, model: str, version: int, action: str) -> None:
    found = model_path(path)
    assert found is not None
    assert (found.model, found.version, found.action) == (model, version, action)


@pytest.mark.parametrize("path", [b"/v2/models", b"/v2/models/", b"/v2", b"/models/m", b"x/v2/models/m"])
def test_other_paths_are_none_of_a_model(path: bytes) -> None:
    assert model_path(path) is None


def test_a_name_must_be_utf_8_and_a_version_a_number() -> None:
    found = model_path(b"/v2/models/%fe/versions/-1")
    assert found is not None
    with pytest.raises(InvalidName):
        _ = found.model
    with pytest.raises(InvalidRequest):
        _ = found.version


@pytest.mark.parametrize("version", ["4294967296", "9999999999", "99999999999", "9" * 5000])
def test_a_version_beyond_all_is_too_large(version: str) -> None:
    found = model_path(f"/v2/models/m/versions/{version}".encode())
    assert found is not None
    with pytest.raises(InvalidRequest, match="is too large; the largest is 4294967295"):
        _ = found.version


@pytest.mark.parametrize(("text", "version"), [("4294967295", 4294967295), ("000000000012", 12)])
def test_every_version_that_a_repository_may_hold_can_be_named(text: str, version: int) -> None:
    found = model_path(f"/v2/models/m/versions/{text}".encode())
    assert found is not None
    assert found.version == version


@pytest.mark.parametrize(
    ("url", "model"),
    [
        (b"/v2/models/m/infer", "m"),
        (b"/v2/models/m/infer?a=/ready", "m"),
        (b"http://host:1/v2/models/m/infer?a", "m"),
        (b"/v2/models/" + b"m" * 1000 + b"/infer", "m" * 1000),
        (b"/v2/models/infer/infer", "infer"),
    ],
)
def test_the_urls_of_inferences(url: bytes, model: str) -> None:
    found = infer_target(url)
    assert found is not None
    assert found.model == model


@pytest.mark.parametrize("url", [b"/", b"*", b"/v2/models/infer", b"/v2/models/m/infer/", b"/v2/models/m?x=/infer", b"/infer"])
def test_other_urls_are_no_inferences(url: bytes) -> None:
    assert infer_target(url) is None
