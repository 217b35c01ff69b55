"""A Python model's configuration: completed as models expect it, and read into ports and slots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from modelpool.errors import LoadFailed
from modelpool.protocol.messages import TensorMeta
from modelpool.runtimes import pb_utils
from modelpool.runtimes.pb_utils.types import protocol_name

_FREE_MAPS = ("parameters", "cc_model_filenames", "metric_tags")
_WIDE = ("dims", "shape", "versions", "priority_levels", "default_priority_level")
_PORT = {"format": "FORMAT_NONE", "is_shape_tensor": False, "allow_ragged_batch": False, "optional": False}


def completed(config: dict[str, Any], model: str, device: str) -> dict[str, Any]:
    """The configuration with defaults filled in and every number a number (protobuf's JSON spells 64-bit ones as text)."""
    whole: dict[str, Any] = {
        "name": model,
        "platform": "",
        "backend": "python",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0,
        "batch_input": [],
        "batch_output": [],
        "default_model_filename": "model.py",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
        **_numbers(config),
    }
    whole["name"] = model
    whole["input"] = [{**_PORT, "dims": [], **port} for port in whole.get("input", ())]
    whole["output"] = [{"dims": [], "label_filename": "", "is_shape_tensor": False, **port} for port in whole.get("output", ())]
    kind = "KIND_GPU" if device.startswith("cuda") else "KIND_CPU"
    whole["instance_group"] = [
        {"name": f"{model}_{index}", "kind": kind, **group, "count": int(group.get("count", 0)) or 1}
        for index, group in enumerate(whole.get("instance_group") or [{}])
    ]
    return whole


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: item if key in _FREE_MAPS else _whole(item) if key in _WIDE or key.endswith("_microseconds") else _numbers(item)
        for key, item in value.items()
    }


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value


def refuse_unknown_ways(config: dict[str, Any]) -> None:
    """Raise LoadFailed for a configuration that asks for what this version does not do."""
    name = config["name"]
    if pb_utils.using_decoupled_model_transaction_policy(config):
        raise LoadFailed(
            f"model {name!r} is decoupled (model_transaction_policy); decoupled answers come with a later version of modelpool"
        )
    if "sequence_batching" in config:
        raise LoadFailed(f"model {name!r} asks for sequence_batching; sequences of Python models come with a later version of modelpool")
    if not config["output"]:
        raise LoadFailed(f"model {name!r} declares no output; add `output` to its config.pbtxt or to its auto_complete_config")


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output as configured, without the batch dimension.

    dims: what clients see (-1: any size); reshape: what the model sees instead, None where it sees the same.
    """

    name: str
    data_type: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool = False
    reshape: tuple[int, ...] | None = None

    def meta(self, batched: bool) -> TensorMeta:
        """As metadata shows it, the batch dimension included."""
        return TensorMeta(self.name, self.datatype, (-1, *self.dims) if batched else self.dims)


def ports(config: dict[str, Any], kind: str) -> tuple[Port, ...]:
    """The `input` or `output` entries; raises LoadFailed for one that cannot be used."""
    found: dict[str, Port] = {}
    for entry in config[kind]:
        try:
            port = _port(entry)
        except (KeyError, TypeError, ValueError, pb_utils.TritonModelException) as error:
            raise LoadFailed(
                f"an {kind} of model {config['name']!r} needs name, data_type and dims that can be used: {entry} ({error})"
            ) from error
        if port.name in found:
            raise LoadFailed(f"model {config['name']!r} declares {kind} {port.name!r} twice")
        found[port.name] = port
    return tuple(found.values())


def _port(entry: dict[str, Any]) -> Port:
    reshape = entry.get("reshape")
    return Port(
        name=entry["name"],
        data_type=entry["data_type"],
        datatype=protocol_name(entry["data_type"]),
        dims=tuple(int(dim) for dim in entry["dims"]),
        optional=bool(entry.get("optional", False)),
        reshape=None if reshape is None else tuple(int(dim) for dim in reshape.get("shape", ())),
    )


def slot_names(config: dict[str, Any]) -> Iterator[str]:
    """The names of the slots that `instance_group` asks for."""
    for group in config["instance_group"]:
        for number in range(group["count"]):
            yield f"{group['name']}_{number}"


def max_delay_s(config: dict[str, Any]) -> float:
    """How long a run may wait for more requests."""
    return int(config.get("dynamic_batching", {}).get("max_queue_delay_microseconds", 0)) / 1e6
