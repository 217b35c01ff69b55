"""TEMP until protocol.inference is there."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np

from modelpool.errors import InvalidRequest, UnknownVersion
from modelpool.runtimes.base import InferenceRequest, Tensor
from modelpool.worker.hosted import Hosted
from modelpool.worker.runs import Item

_TYPES = {"FP32": np.float32, "INT64": np.int64}


def decode_item(hosted: Hosted, link: object, call: int, json_bytes: int, version: int, body: Any, now: float) -> Item:
    version = version or hosted.spec.default_version
    if version not in hosted.versions:
        raise UnknownVersion(f"{hosted.spec.model} has no version {version}")
    try:
        raw = msgspec.json.decode(body)
        inputs = {t["name"]: Tensor(t["datatype"], np.array(t["data"], _TYPES[t["datatype"]]).reshape(t["shape"])) for t in raw["inputs"]}
    except Exception as error:
        raise InvalidRequest(f"bad: {error}") from error
    request = InferenceRequest(version, inputs, (), raw.get("parameters", {}), raw.get("id", ""))
    rows = next(iter(inputs.values())).array.shape[0] if hosted.model.max_batch and inputs else 1
    return Item(call, request, version, rows, len(body), now, link)


def encode_outcome(model: str, item: Item, outcome: dict[str, Tensor]) -> tuple[int, list[Any], int]:
    out = {
        "model_name": model,
        "model_version": str(item.version),
        "id": item.request.ident,
        "outputs": [
            {"name": n, "datatype": t.datatype, "shape": list(t.array.shape), "data": t.array.ravel().tolist()} for n, t in outcome.items()
        ],
    }
    body = msgspec.json.encode(out)
    return -1, [body], len(body)
