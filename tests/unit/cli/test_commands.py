from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from modelpool.cli.app import modelpool as command
from tests.unit.client.fake_server import Answer, Asked, FakeServer, running


def model(name: str, **changes: Any) -> dict[str, Any]:
    view = {
        "name": name,
        "runtime": "onnx",
        "source": "repository",
        "versions": [1],
        "state": "UNAVAILABLE",
        "reason": "not resident",
        "tier": "DISK",
        "pinned": False,
        "size_bytes": 3 << 20,
        "size_from": "estimate",
        "load_s": None,
        "queue": 0,
        "in_flight": 0,
        "last_use_s": None,
        "copies": [],
        "properties": {},
    }
    return view | changes


def resident(name: str, **changes: Any) -> dict[str, Any]:
    copy = {
        "instance": "local",
        "device": "cpu",
        "state": "READY",
        "charge_bytes": 1 << 20,
        "leases": 0,
        "idle_s": 1.0,
        "loaded_s": 9.0,
    }
    return model(name, **({"state": "READY", "reason": "", "tier": "DEVICE", "copies": [copy], "size_from": "measured"} | changes))


MODELS = [
    model("zebra"),
    resident("owl", last_use_s=61.2, pinned=True),
    resident("ant", last_use_s=0.4, queue=2, in_flight=1),
    model("broken", reason="model.onnx is cut short"),
    model("yak", state="LOADING", reason="", queue=5),
]

ANSWERS: dict[tuple[str, str], Any] = {
    ("GET", "/models"): {"models": MODELS},
    ("GET", "/devices"): {
        "devices": [
            {
                "instance": "local",
                "device": "cpu",
                "up": True,
                "budget_bytes": 200 << 20,
                "resident_bytes": 150 << 20,
                "loading_bytes": 1 << 20,
                "unreturned_bytes": 0,
                "scratch_bytes": 512,
                "free_bytes": 49 << 20,
                "models": ["ant", "owl"],
                "pid": 12,
            }
        ]
    },
    ("GET", "/models/explain"): {
        "model": "ant",
        "state": "READY",
        "now": ["ant is on cpu."],
        "to_load": ["Nothing: it is loaded."],
        "history": [{"at": 1796000000.0, "kind": "load", "model": "ant", "text": "loading ant on cpu", "figures": {}}],
    },
    ("GET", "/decisions"): {
        "decisions": [
            {"at": 1796000002.0, "kind": "evict", "model": "bee", "text": "evicting bee\nfor ant", "figures": {"freed_bytes": 1}},
            {"at": 1796000001.0, "kind": "load", "model": "ant", "text": "loading ant on cpu", "figures": {}},
        ]
    },
    ("POST", "/models"): {"result": "success", "message": "successfully loaded model `ant` on device `cpu`"},
    ("DELETE", "/models"): {"result": "success", "message": "successfully ejected model `ant` from device `cpu`"},
    ("POST", "/models/pin"): {},
    ("POST", "/models/unpin"): {},
}


@pytest.fixture
def server() -> Iterator[FakeServer]:
    def respond(asked: Asked) -> Answer:
        return Answer(ANSWERS[asked.method, asked.path])

    with running(respond) as server:
        yield server


@pytest.fixture
def run(server: FakeServer):  # type: ignore[no-untyped-def]
    def run(*args: str) -> Result:
        return CliRunner().invoke(command, args, env={"MODELPOOL_URL": server.url})

    return run


# --- tables and JSON -------------------------------------------------------------------------------------------------------------
def test_models_lists_what_is_loaded_first_ready_then_by_name(run) -> None:
    result = run("models")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["MODEL", "STATE", "DEVICE", "SIZE", "QUEUE", "RUNNING", "USED", "NOTE"],
        ["ant", "READY", "cpu", "3", "MiB", "2", "1", "0s", "ago"],
        ["owl", "READY", "cpu", "3", "MiB", "0", "0", "1m1s", "ago", "pinned"],
        ["yak", "LOADING", "-", "~3", "MiB", "5", "0", "never"],
    ]
    assert result.stderr == "2 of 5 models loaded; --all lists the others too\n"


def test_models_all_lists_the_rest_with_the_reason(run) -> None:
    result = run("models", "--all")
    names = [line.split()[0] for line in result.stdout.splitlines()]
    assert names == ["MODEL", "ant", "owl", "yak", "broken", "zebra"]
    assert "model.onnx is cut short" in result.stdout
    assert result.stderr == "2 of 5 models loaded\n"


def test_a_piped_table_is_never_cut(run, server: FakeServer) -> None:
    name = "n" * 300
    server.script = [Answer({"models": [resident(name)]})]
    assert name in run("models").stdout.splitlines()[1]


def test_devices(run) -> None:
    lines = run("devices").stdout.splitlines()
    assert lines[0].split() == ["DEVICE", "INSTANCE", "UP", "BUDGET", "MODELS", "RESIDENT", "LOADING", "RUNS", "UNRETURNED", "FREE"]
    assert " ".join(lines[1].split()) == "cpu local yes 200 MiB 2 150 MiB 1 MiB 512 B 0 B 49 MiB"


def test_explain_prints_sentences(run, server: FakeServer) -> None:
    result = run("explain", "ant")
    assert result.stdout.startswith("ant: READY\n\nNow:\n  ant is on cpu.\n\nTo load it:\n  Nothing: it is loaded.\n\nHistory:\n  20")
    assert "loading ant on cpu" in result.stdout
    assert server.asked[0].params == {"model_name": "ant"}


def test_decisions_are_one_line_each_the_newest_last(run, server: FakeServer) -> None:
    lines = run("decisions", "ant", "--limit", "7").stdout.splitlines()
    assert [line.split("  ")[-1] for line in lines[1:]] == ["loading ant on cpu", "evicting bee for ant"]
    assert server.asked[0].params == {"limit": "7", "model_name": "ant"}


@pytest.mark.parametrize(
    ("args", "check"),
    [
        (("models",), lambda content: [view["name"] for view in content] == ["ant", "owl", "yak"]),
        (("models", "--all"), lambda content: len(content) == 5 and content[0]["copies"][0]["device"] == "cpu"),
        (("devices",), lambda content: content[0]["budget_bytes"] == 200 << 20),
        (("explain", "ant"), lambda content: content["history"][0]["kind"] == "load"),
        (("decisions",), lambda content: [view["model"] for view in content] == ["ant", "bee"]),
        (("load", "ant"), lambda content: content["result"] == "success"),
        (("eject", "ant"), lambda content: content["result"] == "success"),
        (("forget", "ant"), lambda content: content["result"] == "success"),
        (("pin", "ant"), lambda content: content == {}),
        (("unpin", "ant"), lambda content: content == {}),
        (("version",), lambda content: content["version"]),
    ],
)
def test_every_command_has_json(run, args: tuple[str, ...], check) -> None:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert check(json.loads(result.stdout))


@pytest.mark.parametrize(("value", "as_json"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_a_variable_is_as_good_as_the_option(run, monkeypatch: pytest.MonkeyPatch, value: str, as_json: bool) -> None:
    monkeypatch.setenv("MODELPOOL_JSON", value)
    assert run("version").stdout.startswith("{") == as_json
    assert run("pin", "ant").stdout.startswith("{") == as_json
    assert "MODELPOOL_JSON" in run("serve", "--help").stdout


# --- wishes ----------------------------------------------------------------------------------------------------------------------
def test_load_asks_for_the_device_and_says_what_the_server_says(run, server: FakeServer) -> None:
    result = run("load", "ant", "--device", "cpu")
    assert result.stdout == "successfully loaded model `ant` on device `cpu`\n"
    assert server.asked[0].json == {"model_name": "ant", "model_device": "cpu"}


@pytest.mark.parametrize(
    ("args", "method", "path", "params", "said"),
    [
        (("eject", "ant"), "DELETE", "/models", {}, "successfully ejected model `ant` from device `cpu`"),
        (("eject", "ant", "--device", "cpu"), "DELETE", "/models", {"model_device": "cpu"}, "successfully ejected"),
        (("forget", "ant"), "DELETE", "/models", {"forget": "true"}, "successfully"),
        (("pin", "ant"), "POST", "/models/pin", {}, "ant is pinned"),
        (("unpin", "ant"), "POST", "/models/unpin", {}, "ant is no longer pinned"),
    ],
)
def test_wishes(run, server: FakeServer, args, method: str, path: str, params: dict[str, str], said: str) -> None:
    result = run(*args)
    assert said in result.stdout
    assert [(asked.method, asked.path, asked.params) for asked in server.asked] == [(method, path, {"model_name": "ant"} | params)]


# --- exit codes ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (409, "no_space", 1),
        (507, "never_fits", 1),
        (400, "load_failed", 1),
        (403, "forbidden", 1),
        (404, "model_not_found", 4),
        (404, "model_forgotten", 4),
        (404, "model_not_in_cache", 4),
        (404, "device_not_found", 4),
    ],
)
def test_an_error_is_one_line_on_stderr_and_an_exit_code(run, server: FakeServer, status: int, code: str, exit_code: int) -> None:
    server.respond = lambda asked: Answer({"error": "eject owl first", "code": code}, status)
    result = run("load", "ant")
    assert (result.stdout, result.stderr, result.exit_code) == ("", "modelpool: eject owl first\n", exit_code)
    result = run("load", "ant", "--json")
    assert (result.stdout, result.exit_code) == ("", exit_code)
    assert json.loads(result.stderr) == {"error": "eject owl first", "code": code}


def test_no_server_is_exit_code_3() -> None:
    with running() as server:
        url = server.url
    result = CliRunner().invoke(command, ["models", "--url", url])
    assert result.exit_code == 3
    assert "modelpool serve" in result.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("models", "--url", "localhost:8000"), "not the address of a server"),
        (("models", "--timeout", "soon"), "is not a duration"),
        (("models", "--timeout", "0"), "above 0 seconds"),
        (("nonsense",), "No such command"),
        (("load",), "Missing argument"),
        (("decisions", "--limit", "0"), "--limit"),
    ],
)
def test_wrong_usage_is_exit_code_2(args: tuple[str, ...], says: str) -> None:
    result = CliRunner().invoke(command, args)
    assert result.exit_code == 2
    assert says in result.stderr


def test_an_answer_of_another_shape_is_an_error_not_a_traceback(run, server: FakeServer) -> None:
    server.respond = lambda asked: Answer({"models": [{"name": "ant"}]})
    result = run("models")
    assert result.exit_code == 1
    assert "of one version" in result.stderr


def test_the_help_lists_the_exit_codes() -> None:
    result = CliRunner().invoke(command, ["--help"])
    assert "3  no server answers at the address" in result.stdout


def test_version() -> None:
    from modelpool import __version__

    assert CliRunner().invoke(command, ["version"]).stdout == f"modelpool {__version__}\n"
