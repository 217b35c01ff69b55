from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from modelpool.cli.logging import JsonFormatter, TextFormatter, set_up


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.getLogger("modelpool.decisions").makeRecord(
        "modelpool.decisions", logging.INFO, "f", 1, "%s", (message,), None, extra=extra
    )
    made.created = 1767323045.678
    return made


def test_text_is_one_line_with_the_fields() -> None:
    made = record("loading m\non cpu", kind="load", model="my model", figures={"size_bytes": 12, "load_s": 0.123456789, "victims": ["a"]})
    assert TextFormatter().format(made) == (
        '2026-01-02T03:04:05.678Z info kind=load model="my model" "loading m\\non cpu" size_bytes=12 load_s=0.123457 victims="[\\"a\\"]"'
    )


def test_an_empty_field_is_left_out() -> None:
    assert TextFormatter().format(record("told to stop", kind="stop", model="")).endswith('info kind=stop "told to stop"')


def test_json_is_one_object() -> None:
    made = record("loading m", kind="load", model="m", figures={"size_bytes": 12})
    assert json.loads(JsonFormatter().format(made)) == {
        "time": "2026-01-02T03:04:05.678Z",
        "level": "info",
        "logger": "modelpool.decisions",
        "message": "loading m",
        "kind": "load",
        "model": "m",
        "size_bytes": 12,
    }


def test_a_figure_cannot_overwrite_the_message() -> None:
    assert json.loads(JsonFormatter().format(record("said", figures={"message": "other", "level": 3})))["message"] == "said"


HOSTILE = "a\u202eb\u2066c\x1b[2J\x7f\x9b\u2028\ufeff\U000e0041\ud800"


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_what_would_act_on_a_terminal_is_escaped(formatter: logging.Formatter) -> None:
    line = formatter.format(record(f"loading {HOSTILE}", model=HOSTILE, figures={"victims": [HOSTILE]}))
    assert line.isprintable()
    assert line.count("\\u202e") == 3
    if isinstance(formatter, JsonFormatter):
        assert json.loads(line)["model"] == HOSTILE


def test_letters_of_all_languages_stay() -> None:
    assert "model=größe-模型-שלום" in TextFormatter().format(record("loading", model="größe-模型-שלום"))


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_traceback_stays_on_the_line(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("oh")
    except ValueError as error:
        made = logging.getLogger("x").makeRecord("x", logging.ERROR, "f", 1, "failed", (), (ValueError, error, error.__traceback__))
    line = formatter.format(made)
    assert "\n" not in line
    assert "ValueError: oh" in line


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(("log_format", "begins"), [("text", "20"), ("json", "{")])
def test_set_up_sends_logs_to_stderr(root: logging.Logger, monkeypatch: pytest.MonkeyPatch, log_format, begins: str) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    set_up(log_format, "warning")
    logging.getLogger("modelpool.decisions").info("not this")
    logging.getLogger("modelpool.decisions").warning("but this")
    assert stderr.getvalue().startswith(begins)
    assert "but this" in stderr.getvalue()
    assert "not this" not in stderr.getvalue()
