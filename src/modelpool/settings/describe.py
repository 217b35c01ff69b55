"""What documentation and `--help` say of the settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from modelpool.settings.load import env_name
from modelpool.settings.model import Settings, user_name
from modelpool.units import format_bytes, format_duration


class SettingInfo(NamedTuple):
    """One setting: the name that users type, its default as they would write it, what it means, its variable, an example."""

    name: str
    default: str
    description: str
    env: str
    example: str


def describe_settings() -> list[SettingInfo]:
    """All settings in the order of their definition."""
    return [
        SettingInfo(
            user_name(field),
            _text(field, info.default),
            info.description or "",
            env_name(user_name(field)),
            str((info.examples or [""])[0]),
        )
        for field, info in Settings.model_fields.items()
    ]


def _text(field: str, default: Any) -> str:
    if field == "state_dir":
        return str(Path("$XDG_STATE_HOME", "modelpool")) + " or " + os.path.join("~", ".local", "state", "modelpool")
    if default is None or default in ((), {}):
        return "(none)"
    if field.endswith("_bytes"):
        return format_bytes(default)
    if field.endswith("_s"):
        return format_duration(default)
    return f"{default:g}" if isinstance(default, float) else str(default)
