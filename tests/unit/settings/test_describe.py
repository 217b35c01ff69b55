from __future__ import annotations

import pytest

from modelpool.core.settings import CoreSettings
from modelpool.errors import InvalidRequest
from modelpool.settings import Settings, describe_settings, load_settings, parse_device


def test_every_setting_is_described_in_a_sentence() -> None:
    described = describe_settings()
    assert len(described) == len(Settings.model_fields)
    assert len({info.name for info in described}) == len(described)
    for info in described:
        assert info.description.endswith("."), info.name
        assert info.env == f"MODELPOOL_{info.name.upper()}"
        assert info.default


def test_examples_are_values_that_work() -> None:
    for info in describe_settings():
        load_settings(None, {info.name: info.example}, {})


def test_shown_defaults_can_be_typed() -> None:
    plain = load_settings(None, {}, {})
    for info in describe_settings():
        if info.default != "(none)" and info.name != "state_dir":
            assert load_settings(None, {info.name: info.default}, {}) == plain, info.name


def test_defaults_as_people_write_them() -> None:
    shown = {info.name: info.default for info in describe_settings()}
    assert shown["keep_alive"] == "5m"
    assert shown["body_limit"] == "64 MiB"
    assert shown["devices"] == shown["record"] == shown["preload"] == "(none)"
    assert shown["demand_window_factor"] == "5"


def test_the_planners_defaults_are_the_same() -> None:
    settings, core = load_settings(None, {}, {}), CoreSettings()
    shared = set(Settings.model_fields) & set(CoreSettings.__slots__)
    assert len(shared) > 10
    assert {name: getattr(settings, name) for name in shared} == {name: getattr(core, name) for name in shared}


def test_parse_device() -> None:
    assert parse_device("cpu=200MiB") == ("cpu", 200 << 20)
    assert parse_device(" cuda:0 = auto ") == ("cuda:0", "auto")
    for text in ("", "cpu", "=1", "cpu=", "cpu=x", "cpu=0", "c p u=1"):
        with pytest.raises(InvalidRequest, match="write for example"):
            parse_device(text)
