"""`config.pbtxt`: read, checked, and completed to what `GET /v2/models/m/config` answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modelpool.errors import MalformedModel
from modelpool.protocol.messages import TensorMeta
from modelpool.protocol.regular import open_regular

FILE_NAME = "config.pbtxt"
_MAX_BYTES = 4 * 1024 * 1024
_PLAIN_TYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16")
_DATATYPES = {f"TYPE_{name}": name for name in _PLAIN_TYPES} | {"TYPE_STRING": "BYTES"}
_CONFIG_TYPES = {datatype: name for name, datatype in _DATATYPES.items()}
_KINDS = {"KIND_CPU": ("cpu",), "KIND_GPU": ("cuda",)}
_ANY_KIND = ("cuda", "cpu")


def parse_config(path: Path) -> dict[str, Any]:
    """A config.pbtxt as JSON-like data with the proto's field names. Raises MalformedModel with the line of a syntax error."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    try:
        with open_regular(path) as file:
            raw = file.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise MalformedModel(f"{path.name} is larger than {_MAX_BYTES} bytes; that is no model configuration")
        message = text_format.Parse(raw.decode(), model_config_pb2.ModelConfig())
    except OSError as error:
        raise MalformedModel(f"{path.name} cannot be read: {error.strerror}; check its permissions") from error
    except UnicodeDecodeError as error:
        raise MalformedModel(f"{path.name} is not UTF-8 text (byte {error.start}); write it as text") from error
    except text_format.ParseError as error:
        raise MalformedModel(f"{path.name}: line {_line(error)}; correct it there") from error
    return _plain(message)


def _line(error: Any) -> str:
    """`3: what is wrong` from an error that begins with `3:14 : `."""
    text = str(error).partition(" : ")[2] or str(error)
    return f"{error.GetLine()}: {text.rstrip('.')[:300]}"


def _plain(message: Any) -> dict[str, Any]:
    """The fields that are set. Numbers stay numbers, which protobuf's own JSON does not promise for 64 bits."""
    plain: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            plain[field.name] = {str(key): _value(field.message_type.fields_by_name["value"], item) for key, item in value.items()}
        elif isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
            plain[field.name] = _value(field, value)
        else:
            plain[field.name] = [_value(field, item) for item in value]
    return plain


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else int(value)
    return value.decode("latin-1") if isinstance(value, bytes) else value


def runtime_of(config: dict[str, Any]) -> str | None:
    """`onnx` or `python`, None where the configuration leaves it to the files. Raises MalformedModel for what is not built yet."""
    platform, backend = config.get("platform", ""), config.get("backend", "")
    if platform == "ensemble" or "ensemble_scheduling" in config:
        raise MalformedModel("ensembles are not supported yet by this version; serve the steps as models of their own")
    if "sequence_batching" in config:
        raise MalformedModel("sequence_batching is not supported yet by this version; remove it if requests do not depend on each other")
    if backend == "onnxruntime" or (not backend and platform == "onnxruntime_onnx"):
        return "onnx"
    if backend == "python" or (not backend and platform == "python"):
        return "python"
    if backend or platform:
        what = f"backend {backend!r}" if backend else f"platform {platform!r}"
        raise MalformedModel(f"{what} is not supported yet by this version; it has onnxruntime and python")
    return None


def select_versions(config: dict[str, Any], present: list[int]) -> list[int]:
    """Those of the versions present (ascending) that the version policy asks for; by default the newest. Raises MalformedModel."""
    policy = config.get("version_policy", {})
    if "all" in policy:
        return present
    if "specific" in policy:
        wanted = policy["specific"].get("versions", [])
        chosen = [version for version in present if version in wanted]
        if not chosen:
            raise MalformedModel(f"version_policy asks for {_listed(wanted)}, and there is {_listed(present)}; correct one of them")
        return chosen
    count = policy.get("latest", {}).get("num_versions", 1)
    return present[-max(1, count) :]


def _listed(versions: list[int]) -> str:
    return "version " + ", ".join(map(str, versions[:20])) if versions else "no version"


def device_kinds(config: dict[str, Any]) -> tuple[str, ...]:
    """Kinds of devices in order of preference, from `instance_group`."""
    kinds: dict[str, None] = {}
    for group in config.get("instance_group", []):
        kinds.update(dict.fromkeys(_KINDS.get(group.get("kind", "KIND_AUTO"), _ANY_KIND)))
    return tuple(kinds) or _ANY_KIND


def tensors(config: dict[str, Any], side: str) -> tuple[TensorMeta, ...]:
    """The tensors under `input` or `output`, with the batch dimension in front where the model batches. Raises MalformedModel."""
    batch = (-1,) if config.get("max_batch_size", 0) > 0 else ()
    found: dict[str, TensorMeta] = {}
    for item in config.get(side, []):
        name, datatype, dims = item.get("name", ""), _DATATYPES.get(item.get("data_type", "")), item.get("dims", [])
        if not name:
            raise MalformedModel(f'an {side} has no name; write for example {side} [ {{ name: "x" data_type: TYPE_FP32 dims: [ 3 ] }} ]')
        if name in found:
            raise MalformedModel(f"{side} {name!r} is there twice; remove one")
        if datatype is None:
            raise MalformedModel(f"{side} {name!r} has no usable data_type; write for example TYPE_FP32")
        if any(size == 0 or size < -1 for size in dims):
            raise MalformedModel(f"{side} {name!r} has dims {dims}; sizes are 1 or more, or -1 for any")
        found[name] = TensorMeta(name, datatype, (*batch, *dims))
    return tuple(found.values())


def check_batch_size(config: dict[str, Any]) -> None:
    """Raises MalformedModel for a negative max_batch_size."""
    if config.get("max_batch_size", 0) < 0:
        raise MalformedModel(f"max_batch_size is {config['max_batch_size']}; write 0 (no batching) or more")


def check_against(meta: tuple[TensorMeta, ...], real: tuple[TensorMeta, ...], side: str) -> None:
    """What the configuration declares must be in the model file, with the same type. Raises MalformedModel."""
    types = {tensor.name: tensor.datatype for tensor in real}
    for tensor in meta:
        told = f"config.pbtxt declares {side} {tensor.name!r}"
        if tensor.name not in types:
            raise MalformedModel(f"{told}, and the model file has {', '.join(map(repr, types)) or 'none'}; correct the name")
        if tensor.datatype != types[tensor.name]:
            raise MalformedModel(f"{told} as {tensor.datatype}, and the model file has {types[tensor.name]}; correct data_type")


def complete_config(
    config: dict[str, Any],
    *,
    name: str,
    runtime: str,
    file_name: str,
    inputs: tuple[TensorMeta, ...] | None,
    outputs: tuple[TensorMeta, ...] | None,
) -> dict[str, Any]:
    """The configuration with what it left out filled in, as Triton does when it completes one."""
    max_batch_size = config.get("max_batch_size", 0)
    group = {"count": 1}
    groups = [{"name": f"{name}_{index}", **group, **given} for index, given in enumerate(config.get("instance_group") or [group])]
    return {
        **config,
        "name": name,
        "platform": "onnxruntime_onnx" if runtime == "onnx" else config.get("platform", "") if runtime != "python" else "",
        "backend": {"onnx": "onnxruntime", "ensemble": ""}.get(runtime, runtime),
        "version_policy": config.get("version_policy") or {"latest": {"num_versions": 1}},
        "max_batch_size": max_batch_size,
        "input": config.get("input") or _declared(inputs, max_batch_size),
        "output": config.get("output") or _declared(outputs, max_batch_size),
        "instance_group": groups,
        "default_model_filename": file_name,
    }


def _declared(tensors_: tuple[TensorMeta, ...] | None, max_batch_size: int) -> list[dict[str, Any]]:
    skip = 1 if max_batch_size > 0 else 0
    return [
        {"name": tensor.name, "data_type": _CONFIG_TYPES[tensor.datatype], "dims": list(tensor.shape[skip:])} for tensor in tensors_ or ()
    ]
