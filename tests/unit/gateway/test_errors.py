from __future__ import annotations

import math
from http import HTTPStatus

import msgspec
import pytest

from modelpool.errors import BY_CODE, InstanceLost, InvalidRequest, MalformedModel, ModelpoolError, NeverFits, NoSpace, QueueFull, from_code
from modelpool.gateway.errors import as_modelpool_error, marqo_form, oip_body, retry_after, status_of


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_code_has_a_status_that_http_knows(code: str) -> None:
    assert HTTPStatus(status_of(from_code(code, "words"))) >= 400


def test_a_malformed_model_is_not_there_for_those_who_use_it() -> None:
    error = MalformedModel("no such file")
    assert (status_of(error), status_of(error, serving=True)) == (500, 404)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (QueueFull("x", retry_after_s=2.1), 3),
        (QueueFull("x", retry_after_s=0.0), 1),
        (QueueFull("x"), 1),
        (InstanceLost("x"), 1),
        (NoSpace("x"), None),
        (NeverFits("x", retry_after_s=math.inf), None),
        (InvalidRequest("x"), None),
    ],
)
def test_when_to_come_back(error: ModelpoolError, seconds: int | None) -> None:
    assert retry_after(error) == seconds


def test_the_two_forms() -> None:
    assert msgspec.json.decode(oip_body(NoSpace("words"))) == {"error": "words", "code": "no_space"}
    status, content = marqo_form(NoSpace("words"))
    assert status == 409
    assert content == {
        "message": "words",
        "code": "model_cache_management_error",
        "type": "invalid_request",
        "link": None,
        "modelpool_code": "no_space",
    }
    assert marqo_form(QueueFull("x"))[0] == 429
    assert marqo_form(ModelpoolError("x"))[1]["type"] == "internal_error"


def test_what_should_not_happen_is_logged_and_told_without_details(caplog: pytest.LogCaptureFixture) -> None:
    found = as_modelpool_error(ZeroDivisionError("a secret"))
    assert (found.code, status_of(found)) == ("internal_error", 500)
    assert "a secret" not in found.message
    assert "a secret" in caplog.text
    assert as_modelpool_error(error := QueueFull("x")) is error
