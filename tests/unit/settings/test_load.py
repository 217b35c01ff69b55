from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from modelpool.errors import SetupError, UnknownSetting
from modelpool.settings import Settings, load_settings
from modelpool.settings.load import OTHER_VARIABLES


def load(config: Path | None = None, environ: dict[str, str] | None = None, **overrides: Any) -> Settings:
    return load_settings(config, overrides, environ or {})


def yaml(folder: Path, text: str) -> Path:
    path = folder / "modelpool.yaml"
    path.write_text(text)
    return path


def test_defaults() -> None:
    settings = load()
    assert (settings.host, settings.http_port, settings.eviction) == ("127.0.0.1", 8000, "demand")
    assert (settings.keep_alive_s, settings.body_limit_bytes, settings.queue_bound) == (300.0, 64 << 20, 1000)
    assert settings.devices == {}
    assert settings.record is None


def test_command_line_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    config = yaml(tmp_path, "keep_alive: 1m\nqueue_bound: 1\nhost: a\n")
    environ = {"MODELPOOL_KEEP_ALIVE": "2m", "MODELPOOL_QUEUE_BOUND": "2", "PATH": "x"}
    settings = load(config, environ, keep_alive="3m", host=None, repositories=())
    assert (settings.keep_alive_s, settings.queue_bound, settings.host) == (180.0, 2, "a")


def test_values_with_units_from_everywhere(tmp_path: Path) -> None:
    config = yaml(tmp_path, "body_limit: 1.5MiB\nkeep_alive: inf\nload_timeout: 90\ndevices: {cpu: 200MiB, 'cuda:0': auto}\n")
    settings = load(config, {"MODELPOOL_VERIFY_SLACK": "1KiB", "MODELPOOL_QUEUE_BYTES": "1GiB"}, request_timeout_s="250ms")
    assert settings.body_limit_bytes == 3 << 19
    assert settings.keep_alive_s == math.inf
    assert settings.load_timeout_s == 90.0
    assert settings.verify_slack_bytes == 1024
    assert settings.queue_bytes == 1 << 30
    assert settings.request_timeout_s == 0.25
    assert settings.devices == {"cpu": 200 << 20, "cuda:0": "auto"}


@pytest.mark.parametrize(
    "devices", [["cpu=1KiB", "cuda:0=auto"], ("cpu=1KiB", "cuda:0=auto"), "cpu=1KiB, cuda:0=auto", {"cpu": 1024, "cuda:0": "auto"}]
)
def test_devices_in_every_shape(devices: object) -> None:
    assert load(devices=devices).devices == {"cpu": 1024, "cuda:0": "auto"}


def test_lists() -> None:
    settings = load(environ={"MODELPOOL_PRELOAD": "a, hf/b,", "MODELPOOL_REPOSITORIES": "/x,/y"})
    assert settings.preload == ("a", "hf/b")
    assert settings.repositories == (Path("/x"), Path("/y"))
    assert load(repositories=[Path("/x")], preload=["a"]).repositories == (Path("/x"),)


def test_paths_in_a_file_start_at_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    config = yaml(tmp_path, "repositories: [models, /abs, ~/m]\nallowed_roots: up, /b\nstate_dir: state\nrecord: r.jsonl\n")
    settings = load(config)
    assert settings.repositories == (tmp_path / "models", Path("/abs"), Path("/home/someone/m"))
    assert settings.allowed_roots == (tmp_path / "up", Path("/b"))
    assert (settings.state_dir, settings.record) == (tmp_path / "state", tmp_path / "r.jsonl")
    assert load(repositories=["models"]).repositories == (Path("models"),)


@pytest.mark.parametrize(("text", "port"), [("8001", 8001), ("0", 0), ("off", "off"), ("OFF", "off")])
def test_the_port_of_grpc(tmp_path: Path, text: str, port: object) -> None:
    assert load(environ={"MODELPOOL_GRPC_PORT": text}).grpc_port == port
    assert load(yaml(tmp_path, f"grpc_port: {text}\n")).grpc_port == port
    assert load().grpc_port == 8001


def test_state_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert load().state_dir == Path("/var/state/modelpool")
    monkeypatch.setenv("XDG_STATE_HOME", "relative is to be ignored")
    monkeypatch.setenv("HOME", "/home/someone")
    assert load().state_dir == Path("/home/someone/.local/state/modelpool")


def test_the_file_that_the_environment_names(tmp_path: Path) -> None:
    config = yaml(tmp_path, "host: here\n")
    assert load(environ={"MODELPOOL_CONFIG": str(config)}).host == "here"
    assert load(yaml(tmp_path, ""), {"MODELPOOL_CONFIG": "/no/such/file"}).host == "127.0.0.1"


def test_variables_of_clients_are_no_settings() -> None:
    assert load(environ=dict.fromkeys(OTHER_VARIABLES - {"MODELPOOL_CONFIG"}, "x")) == load()


@pytest.mark.parametrize(
    ("key", "near"),
    [("keep_alvie", "keep_alive"), ("keep-alive", "keep_alive"), ("keep_alive_s", "keep_alive"), ("evictoin", "eviction"), ("zzz", "")],
)
def test_an_unknown_setting_names_the_nearest(tmp_path: Path, key: str, near: str) -> None:
    with pytest.raises(UnknownSetting, match=f"unknown setting '{key}' in the file .*modelpool.yaml; did you mean '{near}"):
        load(yaml(tmp_path, f"{key}: 1"))


def test_unknown_names_elsewhere() -> None:
    with pytest.raises(UnknownSetting, match="MODELPOOL_KEEP_ALIV, which is no setting; did you mean MODELPOOL_KEEP_ALIVE"):
        load(environ={"MODELPOOL_KEEP_ALIV": "5m"})
    with pytest.raises(UnknownSetting, match="did you mean MODELPOOL_HOST"):
        load(environ={"MODELPOOL_host": "x"})
    with pytest.raises(UnknownSetting, match="unknown setting 'hots' in the command line; did you mean 'host'"):
        load(hots="x")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("keep_alive", "soon", r"'soon' is not a duration; .*for example 5m"),
        ("keep_alive", "-1", "not a duration"),
        ("request_timeout", "inf", "finite number"),
        ("poll_interval", "0", "greater than 0"),
        ("body_limit", "big", r"'big' is not a size"),
        ("http_port", "70000", "70000.* less than or equal to 65535"),
        ("http_port", "web", "'web' .*valid integer"),
        ("grpc_port", "70000", "'70000' is no port.*or off"),
        ("grpc_port", "on", "'on' is no port"),
        ("queue_bound", "0", "greater than or equal to 1"),
        ("eviction", "random", "'demand', 'lru', 'fifo' or 'none'"),
        ("preference", "both", "'latency' or 'throughput'"),
        ("demand_window_factor", "nan", "finite"),
        ("devices", "cpu", "names no budget"),
        ("devices", "cpu=0", "cannot be 0"),
        ("devices", "CPU!=1", "is not a device"),
        ("devices", "cpu=1,cpu=2", "given twice"),
        ("state_dir", "a\0b", "not a path"),
        ("record", "", "not a path"),
    ],
)
def test_a_bad_value_names_setting_origin_and_an_example(name: str, value: str, told: str) -> None:
    variable = f"MODELPOOL_{name.upper()}"
    with pytest.raises(SetupError, match=told) as caught:
        load(environ={variable: value})
    assert f"setting {name!r} in the variable {variable}" in caught.value.message
    assert "write for example " in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"), [("devices", 3), ("preload", {"a": 1}), ("repositories", 5), ("host", ["a"]), ("repositories", [3])]
)
def test_values_of_the_wrong_kind(name: str, value: object) -> None:
    with pytest.raises(SetupError, match=f"setting '{name}' in the command line"):
        load(**{name: value})


def test_files_that_are_no_settings(tmp_path: Path) -> None:
    for text, told in (
        ("a: [", "is not YAML"),
        ("- a", "lines of `setting: value`"),
        ("x: 'a", r"\(line 1\)"),
        ("3: x", "unknown setting '3'"),
    ):
        with pytest.raises(SetupError, match=told):
            load(yaml(tmp_path, text))
    with pytest.raises(SetupError, match="cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(SetupError, match="cannot be read: Is a directory"):
        load(tmp_path)
