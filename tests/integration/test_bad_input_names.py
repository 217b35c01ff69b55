"""Names that are no model's, in every place where a name can stand: each ends in a clear answer, and never outside the catalogue."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from tests.integration.serving import RunningServer, question

X = json.dumps(question(x=np.array([2.0], np.float32))).encode()

RAW = [
    "..",
    "%2e%2e",
    "%2E%2E%2F%2E%2E%2Fetc%2Fpasswd",
    "../../etc/passwd",
    "a/../triple",
    "%00",
    "triple%00",
    "%0A",
    "a%0d%0aX-Injected:%20yes",
    "/",
    "%2F",
    "//",
    "triple/",
    "/triple",
    "%2Ftriple",
    "a/b/c",
    "Gr%C3%B6%C3%9Fe",
    "%E2%80%AE",
    "%F0%9F%98%80",
    "%zz",
    "%",
    "a%20b",
    "a+b",
    "a|b",
    "'%20OR%201=1",
    "x" * 300,
    "x" * 5000,
    ".",
    "versions",
    "infer",
]
NOT_UTF_8 = ["%ff", "triple%fe", "%ED%A0%80"]


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def code(self) -> str:
        """The code of an error."""
        return str(json.loads(self.text).get("code"))


def raw(server: RunningServer, method: str, path: str, body: bytes = b"") -> Answer:
    """A request whose path goes out as it is written; httpx would resolve its dots."""
    address = httpx.URL(server.about["url"])
    connection = http.client.HTTPConnection(address.host, address.port, timeout=30)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode())
    finally:
        connection.close()


def served(server: RunningServer) -> None:
    assert '"data":[6.0]' in raw(server, "POST", "/v2/models/triple/infer", X).text
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("name", RAW)
def test_inference(zoo_server: RunningServer, name: str) -> None:
    for path in (f"/v2/models/{name}/infer", f"/v2/models/{name}/versions/1/infer"):
        answer = raw(zoo_server, "POST", path, X)
        assert answer.status == 404, answer.text
        assert answer.code in ("model_not_found", "path_not_found")
        assert "x-injected" not in answer.headers
    served(zoo_server)


@pytest.mark.parametrize("name", NOT_UTF_8)
def test_names_that_are_not_utf_8(zoo_server: RunningServer, name: str) -> None:
    for method, path in (
        ("POST", f"/v2/models/{name}/infer"),
        ("GET", f"/v2/models/{name}"),
        ("GET", f"/v2/models/{name}/config"),
        ("DELETE", f"/models?model_name={name}"),
        ("GET", f"/models/view?model_name={name}"),
    ):
        answer = raw(zoo_server, method, path, X if method == "POST" else b"")
        assert (answer.status, answer.code) == (400, "invalid_name"), (method, path, answer.text)
        assert "UTF-8" in answer.text
    served(zoo_server)


@pytest.mark.parametrize("name", RAW)
def test_the_other_calls_below_v2(zoo_server: RunningServer, name: str) -> None:
    for action, status in (("", 404), ("/config", 404), ("/ready", 400), ("/stats", 400)):
        answer = raw(zoo_server, "GET", f"/v2/models/{name}{action}")
        assert (answer.status, answer.code) in ((status, "model_not_found"), (404, "path_not_found")), (action, answer.text)
    answer = raw(zoo_server, "POST", f"/v2/repository/models/{name}/load")
    assert (answer.status, answer.code) in ((500, "model_not_found"), (404, "path_not_found")), answer.text  # 500 as Triton has it
    served(zoo_server)


@pytest.mark.parametrize("name", RAW)
def test_eject_and_look(zoo_server: RunningServer, name: str) -> None:
    answer = raw(zoo_server, "DELETE", f"/models?model_name={name}")
    assert (answer.status, answer.code) == (404, "model_not_in_cache")
    answer = raw(zoo_server, "GET", f"/models/view?model_name={name}")
    assert (answer.status, answer.code) == (404, "model_not_found")
    served(zoo_server)


@pytest.mark.parametrize("version", ["0x1", "-1", "1.0", "", "one", "%31%", "1e3", "٣"])
def test_versions_that_are_no_number(zoo_server: RunningServer, version: str) -> None:
    answer = zoo_server.client.post(f"/v2/models/all/versions/{version}/infer", content=X)
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] == "bad_request"
    assert "is not a number" in answer.json()["error"]


def test_versions_that_are_too_large(zoo_server: RunningServer) -> None:
    answer = zoo_server.client.post(f"/v2/models/all/versions/{'9' * 30}/infer", content=X)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request"), answer.text
    assert "is too large" in answer.json()["error"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("..", "names are not paths"),
        (".", "names are not paths"),
        ("a/../b", "names are not paths"),
        ("../secret", "names are not paths"),
        ("a\0b", "NUL"),
        ("a\nb", "control characters"),
        ("a\u2028b", "control characters"),
        ("\x1b[31mred", "control characters"),
        ("/a", "begins or ends with '/'"),
        ("a/", "begins or ends with '/'"),
        ("a//b", "begins or ends with '/'"),
        ("x" * 256, "longer than 255 bytes"),
        ("ü" * 128, "longer than 255 bytes"),
    ],
)
def test_names_that_cannot_be_posted(zoo_server: RunningServer, name: str, words: str) -> None:
    properties = {"url": "triple.onnx", "type": "onnx"}
    answer = zoo_server.client.post("/models", json={"model_name": name, "model_properties": properties})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_name")
    assert words in answer.json()["message"]
    assert "\0" not in answer.json()["message"]
    assert "\x1b" not in answer.json()["message"]
    served(zoo_server)


@pytest.mark.parametrize("field", ["model_name", "model_device"])
@pytest.mark.parametrize("value", [5, 1.5, True, [], {}, ""])
def test_names_that_are_no_text(zoo_server: RunningServer, field: str, value: Any) -> None:
    answer = zoo_server.client.post("/models", json={"model_name": "triple", field: value})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert field in answer.json()["message"]


def test_unicode_is_a_name_like_any_other(zoo_server: RunningServer) -> None:
    name = "Größe 模型"
    for written in (name, "Gr%C3%B6%C3%9Fe%20%E6%A8%A1%E5%9E%8B"):
        answer = zoo_server.client.post(f"/v2/models/{written}/infer", content=X)
        assert answer.json()["outputs"][0]["data"] == [14.0]
        assert answer.json()["model_name"] == name
    assert zoo_server.client.get("/models/view", params={"model_name": name}).json()["name"] == name
    assert zoo_server.client.delete("/models", params={"model_name": name}).json()["result"] == "success"
