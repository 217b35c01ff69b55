"""Structured logs on stderr: one line a record, as `name=value` for people or as JSON for programs.

Fields come from `extra=` of the logging call; a field `figures` is spread out.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any, Literal

from modelpool.protocol.visible import visible

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
_BARE = re.compile(r"[^\s\"=]+")


def set_up(log_format: Literal["text", "json"] = "text", level: str = "info") -> None:
    """Send all logs of this level and above to stderr in this format."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for noisy in ("asyncio", "httpx", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z info kind=load model=m "loading m on cpu" size_bytes=12`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        fields = _fields(record)
        leading = [f"{name}={_value(fields.pop(name))}" for name in ("kind", "model") if name in fields]
        rest = [f"{name}={_value(value)}" for name, value in fields.items()]
        return " ".join((_time(record), record.levelname.lower(), *leading, _quoted(record.getMessage()), *rest))


class JsonFormatter(logging.Formatter):
    """One JSON object: `time`, `level`, `logger`, `message` and the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        head = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        return visible(json.dumps(_fields(record) | head, default=str, ensure_ascii=False))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = {name: value for name, value in vars(record).items() if name not in _STANDARD and value != ""}
    figures = fields.pop("figures", None)
    if isinstance(figures, dict):
        fields.update(figures)
    if record.exc_info:
        fields["traceback"] = logging.Formatter().formatException(record.exc_info)
    return fields


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if text.isprintable() and _BARE.fullmatch(text) else _quoted(text)


def _quoted(text: str) -> str:
    return visible(json.dumps(text, ensure_ascii=False))


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
