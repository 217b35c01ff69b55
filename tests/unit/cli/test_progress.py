from __future__ import annotations

import io
import threading
from typing import Any

import pytest

from modelpool.cli import progress
from modelpool.cli.progress import load_and_show, progress_text
from modelpool.client import Client
from modelpool.errors import LoadFailed
from tests.unit.client.fake_server import Answer, Asked, running


@pytest.mark.parametrize(
    ("view", "elapsed_s", "text"),
    [
        ({}, 0.0, "m: asking, 0s"),
        ({"state": "LOADING", "load_s": 3.0}, 1.2, "m: loading, 1.2s (took 3s before)"),
        ({"state": "LOADING", "load_s": None}, 1.2, "m: loading, 1.2s"),
        ({"state": "UNAVAILABLE", "load_s": 0.25}, 61.0, "m: waiting for room, 1m1s (took 250ms before)"),
    ],
)
def test_the_line_says_state_time_and_what_to_expect(view: dict[str, Any], elapsed_s: float, text: str) -> None:
    assert progress_text("m", view, elapsed_s) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_shown_the_state_until_the_load_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()

    def respond(asked: Asked) -> Answer:
        if asked.method == "GET":
            looked.set()
            return Answer({"state": "LOADING", "load_s": 2.0})
        looked.wait(10)
        return Answer({"message": "done"})

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(progress, "_POLL_S", 0.001)
    monkeypatch.setenv("TERM", "xterm")
    with running(respond) as server, Client(server.url) as client:
        assert load_and_show(client, "m", None) == {"message": "done"}
    assert "m: " in terminal.getvalue()


def test_a_failed_load_is_told_on_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    refusal = Answer({"error": "no", "code": "load_failed"}, 500)
    with running(lambda asked: refusal) as server, Client(server.url) as client, pytest.raises(LoadFailed, match="no"):
        load_and_show(client, "m", None)
