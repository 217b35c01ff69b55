from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from modelpool import errors
from modelpool.client import Client, ConnectionFailed
from modelpool.client.errors import error_from_reply, retry_after
from tests.unit.client.fake_server import Answer, FakeServer, running


class Clock:
    """Time that goes by only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running() as server:
        yield server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(server: FakeServer, clock: Clock) -> Iterator[Client]:
    with Client(server.url, timeout_s=10.0, retries=3, sleep=clock.sleep, monotonic=clock) as client:
        yield client


def refusal(code: str, status: int = 503, retry_after_s: str | None = "2") -> Answer:
    headers = {} if retry_after_s is None else {"Retry-After": retry_after_s}
    return Answer({"error": f"because of {code}", "code": code}, status, headers)


# --- addresses -------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "", "/tmp/socket", "http://", "http://[::1", "grpc://h:1"])
def test_an_address_that_is_none_says_how_one_looks(url: str) -> None:
    with pytest.raises(errors.SetupError, match=r"http://127\.0\.0\.1:8000"):
        Client(url)


def test_a_slash_at_the_end_does_no_harm(server: FakeServer) -> None:
    with Client(server.url + "/") as client:
        client.devices()
    assert server.asked[0].path == "/devices"


def test_no_server_gives_connection_failed_with_a_hint() -> None:
    with running() as server:
        url = server.url
    with Client(url) as client, pytest.raises(ConnectionFailed, match="modelpool serve") as caught:
        client.devices()
    assert caught.value.code == "connection_failed"


# --- refusals --------------------------------------------------------------------------------------------------------------------
def test_retry_after_is_waited_for_and_the_call_sent_again(server: FakeServer, client: Client, clock: Clock) -> None:
    server.script = [refusal("queue_full", 429, "0.5"), refusal("no_space", 503, "2"), Answer({"message": "loaded"})]
    assert client.load_model("m") == {"message": "loaded"}
    assert clock.slept == [0.5, 2.0]
    assert [asked.json for asked in server.asked] == [{"model_name": "m"}] * 3


def test_a_wait_beyond_the_time_limit_is_not_begun(server: FakeServer, client: Client, clock: Clock) -> None:
    server.script = [refusal("queue_full", retry_after_s="10")]
    with pytest.raises(errors.QueueFull, match="because of queue_full") as caught:
        client.load_model("m")
    assert clock.slept == []
    assert caught.value.retry_after_s == 10.0


def test_the_retries_are_bounded(server: FakeServer, client: Client, clock: Clock) -> None:
    server.respond = lambda asked: refusal("queue_full", retry_after_s="0")
    with pytest.raises(errors.QueueFull):
        client.load_model("m")
    assert len(server.asked) == 4
    assert clock.slept == [0.05] * 3


@pytest.mark.parametrize(
    "answer",
    [
        refusal("shutting_down", retry_after_s=None),
        refusal("instance_lost"),
        refusal("never_fits", 507),
        refusal("load_failed", 500),
    ],
)
def test_what_no_retry_can_mend_is_sent_once(server: FakeServer, client: Client, clock: Clock, answer: Answer) -> None:
    server.script = [answer]
    with pytest.raises(errors.ModelpoolError) as caught:
        client.load_model("m")
    assert caught.value.code == answer.content["code"]
    assert len(server.asked) == 1
    assert clock.slept == []


@pytest.mark.parametrize("code", sorted(set(errors.BY_CODE) - {"internal_error"}))
def test_every_code_of_the_server_comes_back_as_its_exception(code: str) -> None:
    error = error_from_reply(500, {}, f'{{"error": "so it is", "code": "{code}"}}'.encode())
    assert type(error) is errors.BY_CODE[code]
    assert error.message == "so it is"


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (409, b'{"message": "eject m1", "code": "model_cache_management_error", "type": "x", "link": null}', errors.NoSpace, "eject m1"),
        (400, b'{"message": "cut", "code": "bad_request", "modelpool_code": "load_failed"}', errors.LoadFailed, "cut"),
        (404, b'{"message": "gone", "code": "of_tomorrow"}', errors.NotFound, "gone"),
        (400, b"plain text", errors.InvalidRequest, "the server answered 400: plain text"),
        (502, b"", errors.ModelpoolError, "the server answered 502 without saying why"),
        (503, b"[1]", errors.Refused, "the server answered 503: [1]"),
    ],
)
def test_other_answers_are_mapped_by_status(status: int, body: bytes, kind: type[Exception], message: str) -> None:
    error = error_from_reply(status, {}, body)
    assert type(error) is kind
    assert error.message == message


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "-1"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Tue, 01 Dec 2026 10:00:07 GMT", "date": "Tue, 01 Dec 2026 10:00:00 GMT"}, 7.0),
        ({"retry-after": "Tue, 01 Dec 2026 10:00:07 GMT"}, None),
    ],
)
def test_retry_after_is_read_in_both_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


# --- time and connections --------------------------------------------------------------------------------------------------------
def test_an_answer_that_comes_too_late_is_a_timeout(server: FakeServer, client: Client, clock: Clock) -> None:
    def respond(_: object) -> Answer:
        clock.now += 11.0
        return Answer({"models": []})

    server.respond = respond
    with pytest.raises(errors.RequestTimeout, match="did not answer in time"):
        client.models()


def test_a_silent_server_is_given_up(server: FakeServer) -> None:
    released = []

    def respond(_: object) -> Answer:
        event = threading.Event()
        released.append(event)
        event.wait(30)
        return Answer(close=True)

    server.respond = respond
    with Client(server.url, timeout_s=0.1) as client, pytest.raises(errors.RequestTimeout):
        client.load_model("m")
    for event in released:
        event.set()


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
def test_a_time_limit_must_be_positive(client: Client, timeout_s: float) -> None:
    with pytest.raises(errors.SetupError, match="above 0 seconds"):
        client.models(timeout_s=timeout_s)


def test_a_look_is_repeated_once_after_a_broken_connection(server: FakeServer, client: Client) -> None:
    server.script = [Answer(close=True), Answer({"devices": []})]
    assert client.devices() == []
    server.script = [Answer(close=True), Answer(close=True)]
    with pytest.raises(ConnectionFailed, match="broke before the answer came"):
        client.devices()


def test_a_wish_is_not_repeated_after_a_broken_connection(server: FakeServer, client: Client) -> None:
    server.script = [Answer(close=True)]
    with pytest.raises(ConnectionFailed):
        client.load_model("m")
    assert len(server.asked) == 1


@pytest.mark.parametrize("content", [b"<html>", b"[]"])
def test_an_answer_of_another_server_is_noticed(server: FakeServer, client: Client, content: bytes) -> None:
    server.script = [Answer(content)]
    with pytest.raises(errors.ModelpoolError, match="really a modelpool server"):
        client.models()
