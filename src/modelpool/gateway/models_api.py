"""The model API: Marqo's wire format in both dialects, and what we add to it.

An entry of `GET /models` carries both spellings (`model_name`, `modelName`). Names are exact; a name is never taken as a prefix.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import psutil
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from modelpool.controller.views import CopyView, ModelView
from modelpool.errors import InvalidRequest, NotCached, UnknownDevice, UnknownModel, Unsupported
from modelpool.gateway.dataplane import DataPlane
from modelpool.gateway.devices import cuda_devices
from modelpool.gateway.errors import marqo_form
from modelpool.gateway.requests import (
    controller_of,
    flag_of,
    json_response,
    marqo,
    queried_model,
    query_text,
    raw_query,
    read_json,
    text_of,
)

MARQO_VERSION = "2.24.0"
"""The version that the marqo client is told: new enough that it does not warn."""
_GB = 1e9
_MOST_DECISIONS = 10_000


@marqo
async def root(request: Request) -> Response:
    """Who we are; the marqo client looks at `version`."""
    controller = controller_of(request)
    return json_response({"message": "Welcome to modelpool", "version": MARQO_VERSION, "modelpool_version": controller.version})


def _entry(model: ModelView, copy: CopyView, *, detailed: bool) -> dict[str, Any]:
    properties = {**model.properties, "name": model.name, "type": model.properties.get("type", model.runtime)}
    entry: dict[str, Any] = {
        "model_name": model.name,
        "modelName": model.name,
        "model_device": copy.device,
        "model_properties": properties,
        "instance": copy.instance,
        "state": copy.state,
        "tier": model.tier,
        "size_bytes": copy.charge_bytes,
        "last_use_s": model.last_use_s,
        "pinned": model.pinned,
    }
    if detailed:
        entry["modelProperties"] = msgspec.json.encode(properties).decode()
    return entry


@marqo
async def list_models(request: Request) -> Response:
    """The models that are resident, one entry for each device (`all=true`: the whole catalogue)."""
    everything = flag_of(request, "all")
    detailed = flag_of(request, "detailed")
    models = controller_of(request).models(resident_only=not everything)
    if everything:
        return json_response({"models": models})
    resident = [(model, copy) for model in models for copy in model.copies if copy.state in ("READY", "DRAINING")]
    return json_response({"models": [_entry(model, copy, detailed=detailed) for model, copy in resident]})


@marqo
async def post_model(request: Request) -> Response:
    """Load a model on a device; with properties it is registered first, without them one that was forgotten is known again."""
    found = await read_json(request)
    if unknown := sorted(set(found) - {"model_name", "model_device", "model_properties"}):
        raise InvalidRequest(f"unknown field '{unknown[0]}'; known are model_name, model_device, model_properties")
    name = text_of(found, "model_name")
    if name is None:
        raise InvalidRequest('field \'model_name\' is missing; send for example {"model_name": "my-model"}')
    device = text_of(found, "model_device")
    properties = found.get("model_properties")
    controller = controller_of(request)
    if properties is None:
        controller.recall(name)
        devices = await controller.load(name, device)
    elif isinstance(properties, dict):
        devices = await controller.post_model(name, properties, device)
    else:
        raise InvalidRequest("field 'model_properties' must be an object")
    message = f"successfully loaded model `{name}` on device `{', '.join(devices)}`"
    return json_response({"result": "success", "message": message, "model_name": name, "model_device": devices[0] if devices else device})


@marqo
async def delete_model(request: Request) -> Response:
    """Eject a model from a device or from all; `forget=true` takes it out of the catalogue too."""
    name = queried_model(request)
    device = query_text(request, "model_device") or None
    controller = controller_of(request)
    forget = flag_of(request, "forget")
    if forget:
        controller.entry(name)
    devices: tuple[str, ...] = ()
    try:
        devices = await controller.eject(name, device)
    except NotCached:
        if not forget:
            _raise_if_forgotten(controller, name)
            raise
    message = f"successfully ejected model `{name}` from device `{', '.join(devices)}`" if devices else f"model `{name}` was not resident"
    if forget:
        await controller.forget(name)
        message += "; it is out of the catalogue until it is posted again"
    return json_response({"result": "success", "message": message})


def _raise_if_forgotten(controller: DataPlane, name: str) -> None:
    with contextlib.suppress(UnknownModel):
        controller.entry(name)


@marqo
async def cpu(request: Request) -> Response:
    """The machine's processor and memory, in Marqo's texts and as numbers."""
    memory = psutil.virtual_memory()
    percent = psutil.cpu_percent()
    return json_response(
        {
            "cpu_usage_percent": f"{percent:.1f} %",
            "memory_used_percent": f"{memory.percent:.1f} %",
            "memory_used_gb": f"{memory.used / _GB:.1f}",
            "utilization_percent": percent,
            "memory_used_bytes": memory.used,
            "total_memory_bytes": memory.total,
            "devices": [view for view in controller_of(request).devices() if view.device == "cpu"],
        }
    )


@marqo
async def cuda(request: Request) -> Response:
    """The GPUs; 400 where there is none."""
    found = await asyncio.to_thread(cuda_devices)
    if not found:
        _, content = marqo_form(UnknownDevice("CUDA is not available on this instance"))
        return json_response({**content, "code": "hardware_compatability_error"}, 400)
    return json_response({"cuda_devices": found})


@marqo
async def list_devices(request: Request) -> Response:
    """All devices with their ledgers."""
    return json_response({"devices": controller_of(request).devices()})


@marqo
async def view_model(request: Request) -> Response:
    """All that is known of one model."""
    return json_response(controller_of(request).model(queried_model(request)))


@marqo
async def explain_model(request: Request) -> Response:
    """Why a model is where it is."""
    return json_response(controller_of(request).explain(queried_model(request)))


@marqo
async def pin_model(request: Request) -> Response:
    """Pin a model: it is loaded and not evicted. 507 or 409 where it could not be kept."""
    name = queried_model(request)
    controller_of(request).pin(name)
    return json_response({"result": "success", "message": f"pinned model `{name}`"})


@marqo
async def unpin_model(request: Request) -> Response:
    """Unpin a model."""
    name = queried_model(request)
    controller_of(request).unpin(name)
    return json_response({"result": "success", "message": f"unpinned model `{name}`"})


@marqo
async def list_decisions(request: Request) -> Response:
    """The latest decisions, oldest first."""
    text = query_text(request, "limit") or "100"
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= _MOST_DECISIONS):
        raise InvalidRequest(f"query parameter 'limit' must be a number from 1 to {_MOST_DECISIONS}")
    name = queried_model(request) if raw_query(request, "model_name") else None
    return json_response({"decisions": controller_of(request).decisions(int(text), name)})


@marqo
async def not_here(request: Request) -> Response:
    """Marqo's search and indexes are not ours."""
    raise Unsupported("modelpool serves models, not indexes; of Marqo's API it has /, /models and /device/{cpu,cuda}")


def routes() -> list[BaseRoute]:
    """All routes of the model API."""
    return [
        Route("/", root, methods=["GET"]),
        Route("/models", list_models, methods=["GET"]),
        Route("/models", post_model, methods=["POST"]),
        Route("/models", delete_model, methods=["DELETE"]),
        Route("/models/view", view_model, methods=["GET"]),
        Route("/models/explain", explain_model, methods=["GET"]),
        Route("/models/pin", pin_model, methods=["POST"]),
        Route("/models/unpin", unpin_model, methods=["POST"]),
        Route("/decisions", list_decisions, methods=["GET"]),
        Route("/devices", list_devices, methods=["GET"]),
        Route("/device/cpu", cpu, methods=["GET"]),
        Route("/device/cuda", cuda, methods=["GET"]),
        Route("/indexes/{rest:path}", not_here, methods=["GET", "POST", "DELETE", "PUT", "PATCH"]),
    ]
