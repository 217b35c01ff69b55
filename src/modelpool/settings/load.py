"""Where settings come from: command line over `MODELPOOL_*` variables over a YAML file over defaults."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from modelpool.errors import SetupError, UnknownSetting
from modelpool.settings.model import Settings, user_name

ENV_PREFIX = "MODELPOOL_"
OTHER_VARIABLES = frozenset({"MODELPOOL_URL", "MODELPOOL_CONFIG", "MODELPOOL_JSON"})
"""Variables that are no settings of the server: they tell clients and the command line."""

_FIELDS = {user_name(field): field for field in Settings.model_fields}
_PATH_FIELDS = ("repositories", "allowed_roots", "state_dir", "record")


def load_settings(
    config: Path | None = None, overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """The settings in force.

    config: a YAML file (None: the one that MODELPOOL_CONFIG names, if any); relative paths in it start at its folder. overrides: from the
    command line, by a setting's name with or without its unit; None and () mean not given. environ: os.environ by default.
    Raises UnknownSetting, and SetupError that names the setting, where its value came from, and an example.
    """
    environ = os.environ if environ is None else environ
    if config is None and environ.get("MODELPOOL_CONFIG"):
        config = Path(environ["MODELPOOL_CONFIG"])
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, found in (
        ("", _from_file(config) if config is not None else {}),
        ("", _from_environ(environ)),
        ("the command line", dict(overrides or {})),
    ):
        for key, (value, where) in _known(found, origin).items():
            values[key], origins[key] = value, where
    try:
        return Settings(**values)
    except ValidationError as error:
        raise _explained(error, origins) from error


def _known(found: Mapping[str, Any], origin: str) -> dict[str, tuple[Any, str]]:
    """By field: value and where it came from. Raises UnknownSetting."""
    known: dict[str, tuple[Any, str]] = {}
    for name, value in found.items():
        value, where = value if not origin else (value, origin)
        field = _FIELDS.get(name) or (name if origin and name in Settings.model_fields else None)
        if field is None:
            raise UnknownSetting(f"unknown setting {name[:80]!r} in {where}; did you mean {nearest(name)!r}?")
        if value is not None and value != ():
            known[field] = (value, where)
    return known


def nearest(name: str) -> str:
    """The known setting whose name is most like this one."""
    return difflib.get_close_matches(name.lower().replace("-", "_"), _FIELDS, n=1, cutoff=0.0)[0]


def _from_file(path: Path) -> dict[str, tuple[Any, str]]:
    where = f"the file {path}"
    try:
        loaded = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise SetupError(f"{where} cannot be read: {error.strerror}; correct its path or permissions") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark is not None else ""
        raise SetupError(f"{where} is not YAML{line}; write lines such as `keep_alive: 5m`") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise SetupError(f"{where} must hold lines of `setting: value`, such as `keep_alive: 5m`")
    return {str(name): (_from_folder(str(name), value, path.parent), where) for name, value in loaded.items()}


def _from_folder(name: str, value: Any, folder: Path) -> Any:
    """Paths in a file start at the file's folder, wherever the server was started."""
    if name not in _PATH_FIELDS or not value:
        return value
    items = value if isinstance(value, list) else str(value).split(",") if name in _PATH_FIELDS[:2] else [value]
    if not all(isinstance(item, str) for item in items):
        return value
    paths = [folder / Path(item.strip()).expanduser() for item in items]
    return paths if isinstance(value, list) or name in _PATH_FIELDS[:2] else paths[0]


def _from_environ(environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}
    for variable, value in environ.items():
        if variable.startswith(ENV_PREFIX) and variable not in OTHER_VARIABLES:
            name = variable.removeprefix(ENV_PREFIX)
            if name.lower() not in _FIELDS or name != name.upper():
                raise UnknownSetting(f"the environment has {variable}, which is no setting; did you mean {env_name(nearest(name))}?")
            found[name.lower()] = (value, f"the variable {variable}")
    return found


def env_name(name: str) -> str:
    """The environment variable of a setting."""
    return ENV_PREFIX + name.upper()


def _explained(error: ValidationError, origins: Mapping[str, str]) -> SetupError:
    """The first thing wrong, as a sentence with an example."""
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][0])
    example = (Settings.model_fields[field].examples or [""])[0]
    reason = first["msg"].removeprefix("Value error, ")
    return SetupError(
        f"setting {user_name(field)!r} in {origins.get(field, 'the defaults')}: {first['input']!r:.100} is no value for it ({reason}); "
        f"write for example {example}"
    )
