"""All settings of the server, each with its default and what it means."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from modelpool.errors import InvalidRequest
from modelpool.settings.triton import TritonAddress, parse_command, parse_triton
from modelpool.units import parse_bytes, parse_duration

_DEVICE = re.compile(r"([a-z]+[0-9]*/)?[a-z]+(:\d{1,3})?", re.ASCII)
_MIB = 1 << 20
OFF: Literal["off"] = "off"
"""What a server is set to that is not wanted."""

Budget = int | Literal["auto"]


def parse_device(text: str) -> tuple[str, Budget]:
    """A device and its budget in bytes from `cpu=200MiB` or `cuda:0=auto`. Raises InvalidRequest."""
    name, equals, size = text.partition("=")
    if not equals:
        raise InvalidRequest(f"{text!r:.80} names no budget; write for example cpu=200MiB or cuda:0=auto")
    return _device_name(name.strip()), _budget(size.strip())


def _device_name(name: str) -> str:
    if not _DEVICE.fullmatch(name):
        raise InvalidRequest(f"{name!r:.80} is not a device; write for example cpu=200MiB or cuda:0=auto")
    return name


def _budget(size: object) -> Budget:
    if size == "auto":
        return "auto"
    budget = parse_bytes(size)
    if budget == 0:
        raise InvalidRequest("a device's budget cannot be 0; write for example cpu=200MiB, or cpu=auto for 80 % of what is free")
    return budget


def _read(parse: Callable[[Any], Any]) -> BeforeValidator:
    """A parser of ours as pydantic wants it."""

    def validate(value: Any) -> Any:
        try:
            return parse(value)
        except InvalidRequest as error:
            raise ValueError(error.message) from error

    return BeforeValidator(validate)


def _devices(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_device_name(str(name)): _budget(size) for name, size in value.items()}
    devices: dict[str, Budget] = {}
    for item in _items(value):
        name, budget = parse_device(str(item))
        if name in devices:
            raise InvalidRequest(f"device {name} is given twice; give it once")
        devices[name] = budget
    return devices


def _items(value: Any) -> list[Any]:
    """A list, also from text with commas (as in an environment variable)."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    if isinstance(value, (list, tuple)):
        return list(value)
    raise InvalidRequest(f"{value!r:.80} is not a list; write for example a, b")


def _path(value: Any) -> Path:
    if not isinstance(value, (str, Path)) or not str(value) or "\0" in str(value):
        raise InvalidRequest(f"{value!r:.80} is not a path; write for example /srv/models")
    return Path(value).expanduser()


def _paths(value: Any) -> list[Path]:
    return [_path(item) for item in ([value] if isinstance(value, Path) else _items(value))]


def _names(value: Any) -> list[str]:
    return [str(item) for item in _items(value)]


def _lines(value: Any) -> list[str]:
    """A list, also from text with semicolons (as in an environment variable): its items have commas."""
    items = value.split(";") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise InvalidRequest(f"{value!r:.80} is not a list; write for example a; b")
    return [str(item).strip() for item in items if str(item).strip()]


def _tritons(value: Any) -> list[TritonAddress]:
    return [item if isinstance(item, TritonAddress) else parse_triton(item) for item in (value if _ready(value) else _lines(value))]


def _ready(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, TritonAddress) for item in value)


def _commands(value: Any) -> list[str]:
    return [parse_command(item) for item in _lines(value)]


def _default_state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "modelpool"


def _grpc_port(value: Any) -> Any:
    # YAML reads a bare off as false.
    if value is False or (isinstance(value, str) and value.strip().lower() == OFF):
        return OFF
    try:
        port = int(value)
    except (TypeError, ValueError):
        port = -1
    if isinstance(value, (bool, float)) or not 0 <= port <= 65535:
        raise InvalidRequest(f"{value!r:.80} is no port; give one from 0 to 65535, or off")
    return port


Seconds = Annotated[float, _read(parse_duration), Field(allow_inf_nan=False)]
SecondsOrInf = Annotated[float, _read(parse_duration)]
Bytes = Annotated[int, _read(parse_bytes)]
Paths = Annotated[tuple[Path, ...], _read(_paths)]
OnePath = Annotated[Path, _read(_path)]
Names = Annotated[tuple[str, ...], _read(_names)]
Tritons = Annotated[tuple[TritonAddress, ...], _read(_tritons)]
Commands = Annotated[tuple[str, ...], _read(_commands)]
GrpcPort = Annotated[int | Literal["off"], _read(_grpc_port)]
Devices = Annotated[dict[str, Budget], _read(_devices)]


def _setting(default: Any, description: str, example: str, **bounds: Any) -> Any:
    return Field(default, description=description, examples=[example], **bounds)


class Settings(BaseModel):
    """The server's settings; times in seconds, sizes in bytes.

    Users write the names without `_s` and `_bytes`, and values with units: `keep_alive: 5m`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    repositories: Paths = _setting((), "Folders that hold models; where two hold the same name, the first wins.", "/srv/models")
    host: str = _setting("127.0.0.1", "Address that the server listens on; the default takes connections of this machine only.", "0.0.0.0")
    http_port: int = _setting(8000, "Port of the HTTP server; 0 takes any free one.", "8000", ge=0, le=65535)
    grpc_port: GrpcPort = _setting(8001, "Port of the gRPC server; 0 takes any free one, `off` has none.", "8001")
    devices: Devices = _setting(
        {},
        "Memory budget of each device, what models may add; a device that is `auto` or not named gets 80 % of what is free. "
        "`triton0/cpu` and `local/cpu` are those of one instance.",
        "cpu=200MiB",
    )
    triton: Tritons = _setting(
        (),
        "Triton servers that run already, in explicit control mode over the same repositories: `HOST:GRPCPORT,HTTP=PORT`, and where "
        "known `METRICS=PORT`, `BACKENDS=NAME+NAME`; several are set apart by semicolons.",
        "127.0.0.1:8001,HTTP=8000,METRICS=8002",
    )
    triton_command: Commands = _setting(
        (),
        "Commands that start Triton servers of our own; ports, repositories and control mode are filled in. Several are set apart by "
        "semicolons.",
        "tritonserver --backend-directory=/opt/tritonserver/backends",
    )
    eviction: Literal["demand", "lru", "fifo", "none"] = _setting(
        "demand", "Which idle model makes room first; `none` refuses and says what to eject.", "lru"
    )
    preference: Literal["latency", "throughput"] = _setting(
        "latency", "Whether a resident model may be swapped out before its queue is worked off.", "throughput"
    )
    keep_alive_s: SecondsOrInf = _setting(300.0, "Idle time after which a model is unloaded; `inf` keeps it until space is needed.", "5m")
    state_dir: OnePath = Field(
        default_factory=_default_state_dir,
        description="Folder of the state that outlives a restart: learned sizes, posted models, the journal.",
        examples=["/var/lib/modelpool"],
    )
    allowed_roots: Paths = _setting((), "Folders that posted models may lie in; none given: the repositories.", "/srv/uploads")
    preload: Names = _setting((), "Models that are loaded at the start; one that fails never stops it.", "encoder, ranker")
    body_limit_bytes: Bytes = _setting(64 * _MIB, "Largest body of a request.", "64MiB", gt=0)
    queue_bound: int = _setting(1000, "Requests that may wait for one model; more are refused.", "1000", ge=1)
    queue_bytes: Bytes = _setting(
        512 * _MIB,
        "Bodies of all requests that may wait or run together; more are refused. A worker has those that run once more.",
        "512MiB",
        gt=0,
    )
    request_timeout_s: Seconds = _setting(120.0, "Longest time that a request waits before it starts.", "2m", gt=0)
    load_timeout_s: Seconds = _setting(600.0, "Longest time that a load may take before its process is recycled.", "10m", gt=0)
    verify_timeout_s: Seconds = _setting(10.0, "Time in which an unloaded model's memory must come back.", "10s", gt=0)
    verify_slack_bytes: Bytes = _setting(16 * _MIB, "Memory that an unload may leave behind unnoticed; at most 4 % of the budget.", "16MiB")
    unreturned_limit_bytes: Bytes = _setting(
        64 * _MIB, "Memory that did not come back above which a worker is drained and recycled.", "64MiB"
    )
    run_limit_s: Seconds = _setting(300.0, "Longest time that a request may run before its process is recycled.", "5m", gt=0)
    orphan_grace_s: Seconds = _setting(60.0, "Time that workers outlive a killed server, to be adopted by the next.", "60s")
    stop_limit_s: Seconds = _setting(30.0, "Longest time that a server told to stop works on what it accepted.", "30s")
    poll_interval_s: Seconds = _setting(2.0, "Time between two looks at the repositories for new, changed and removed models.", "2s", gt=0)
    idle_window_s: Seconds = _setting(60.0, "Idle time after which a model is evicted before all that are in use.", "60s")
    demand_window_factor: float = _setting(
        5.0,
        "The arrival rates of models are compared over so many load times of the model that needs room.",
        "5",
        gt=0,
        allow_inf_nan=False,
    )
    demand_window_min_s: Seconds = _setting(10.0, "Shortest time over which arrival rates are compared.", "10s", gt=0)
    starvation_s: Seconds = _setting(
        10.0, "Waiting time that makes a waiting request count double when models compete for a load.", "10s", gt=0
    )
    loads_at_once: int = _setting(1, "Loads that may go on at the same time on one instance.", "1", ge=1)
    max_in_flight: int = _setting(512, "Requests that are sent to one copy and not answered yet; more wait in the queue.", "512", ge=1)
    record: OnePath | None = _setting(None, "File that takes what the planner was told, for `modelpool simulate`.", "trace.jsonl")
    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "Least importance of what is logged.", "debug")
    log_format: Literal["text", "json"] = _setting("text", "Form of the log: lines for people, or one JSON object a line.", "json")
    journal_entries: int = _setting(100_000, "Decisions that the journal keeps; older ones are dropped.", "100000", ge=1)


def user_name(field: str) -> str:
    """What users type: the field's name without its unit, where that leaves a name that says what it is."""
    return field if field == "queue_bytes" else field.removesuffix("_bytes").removesuffix("_s")
