"""The Open Inference Protocol over HTTP, but for inference itself, and Triton's repository extension."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from modelpool.errors import InvalidRequest, LoadFailed, ModelpoolError, NotCached, NotFound, UnknownModel, Unsupported
from modelpool.gateway.requests import controller_of, json_response, oip, oip_error, read_body, read_json, version_of
from modelpool.ports import Call
from modelpool.protocol.messages import TensorMeta
from modelpool.repository.entry import Entry

EXTENSIONS = ["binary_tensor_data", "model_repository", "model_repository(unload_dependents)", "model_configuration", "statistics", "schedule_policy"]
"""Those of Triton's extensions that this version has."""


@oip
async def server_metadata(request: Request) -> Response:
    """Name, version, extensions."""
    controller = controller_of(request)
    return json_response({"name": "modelpool", "version": controller.version, "extensions": EXTENSIONS})


@oip
async def live(request: Request) -> Response:
    """Whether the process answers."""
    return Response(status_code=200 if controller_of(request).live() else 400)


@oip
async def ready(request: Request) -> Response:
    """Whether requests can be served."""
    return Response(status_code=200 if controller_of(request).ready() else 400)


def _tensors(metas: tuple[TensorMeta, ...] | None) -> list[dict[str, Any]]:
    return [{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in metas or ()]


def _served(request: Request) -> Entry:
    controller = controller_of(request)
    name: str = request.path_params["model"]
    controller.check_model(name, version_of(request))
    return controller.entry(name)


@oip
async def model_metadata(request: Request) -> Response:
    """Versions, inputs and outputs; loads nothing."""
    entry = _served(request)
    return json_response(
        {
            "name": entry.name,
            "versions": [str(one.version) for one in entry.versions],
            "platform": entry.platform,
            "inputs": _tensors(entry.inputs),
            "outputs": _tensors(entry.outputs),
        }
    )


@oip
async def model_config(request: Request) -> Response:
    """The configuration; loads nothing."""
    return json_response(_served(request).config)


@oip
async def model_ready(request: Request) -> Response:
    """200 where a request would be served, resident or loadable; else 400, as Triton does."""
    name: str = request.path_params["model"]
    controller = controller_of(request)
    if controller.model_ready(name, version_of(request)):
        return Response(status_code=200)
    try:
        controller.check_model(name, version_of(request))
    except ModelpoolError as error:
        return oip_error(error, 400)
    return json_response({"error": f"model '{name}' cannot be served now; see: modelpool explain {name}"}, 400)


@oip
async def model_stats(request: Request) -> Response:
    """Statistics of one model or of all; loads nothing. An unknown model is 400, as with Triton."""
    try:
        rows = controller_of(request).statistics(request.path_params.get("model"), version_of(request))
    except NotFound as error:
        return oip_error(error, 400)
    return json_response({"model_stats": rows})


@oip
async def index(request: Request) -> Response:
    """The repository index."""
    wanted = (await read_json(request)).get("ready", False)
    if not isinstance(wanted, bool):
        raise InvalidRequest("field 'ready' must be true or false")
    rows = controller_of(request).index(wanted)
    fields = ("name", "version", "state", "reason")
    return json_response([{field: getattr(row, field) for field in fields if field == "name" or getattr(row, field)} for row in rows])


@oip
async def load(request: Request) -> Response:
    """Load a model now. A model that is missing is 500, as with Triton; one that cannot be loaded 400."""
    name: str = request.path_params["model"]
    _parameters(await read_json(request), ())
    try:
        await controller_of(request).load(name)
    except UnknownModel:
        return oip_error(LoadFailed(f"failed to load '{name}', failed to poll from model repository: there is no such model"), 500)
    return Response(status_code=200)


@oip
async def unload(request: Request) -> Response:
    """Eject a model: a request loads it again. One that is unknown or not resident is no error, as with Triton."""
    name: str = request.path_params["model"]
    given = _parameters(await read_json(request), ("unload_dependents",))
    if not isinstance(given.get("unload_dependents", False), bool):
        raise InvalidRequest("parameter 'unload_dependents' must be true or false")
    try:
        await controller_of(request).eject(name)
    except NotCached:
        pass
    return Response(status_code=200)


def _parameters(found: dict[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    given = found.get("parameters", {})
    if not isinstance(given, dict):
        raise InvalidRequest("field 'parameters' must be an object")
    for name in given:
        if name == "config" or name.startswith("file:"):
            raise Unsupported(f"parameter '{name}': configurations and files sent with a load are not in this version; put them into the repository")
        if name not in known:
            raise InvalidRequest(f"unknown parameter '{name}'; known here: {', '.join(known) or 'none'}")
    return given


class _AwaitedCall(Call):
    """An inference whose answer is awaited, for requests that came in through ASGI."""

    __slots__ = ("done",)

    def __init__(self, model: str, version: int, body: bytes, json_bytes: int) -> None:
        super().__init__(model, version, body, json_bytes)
        self.done: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    def answer(self, json_bytes: int, body: bytes | bytearray | memoryview) -> None:
        if not self.done.done():
            self.done.set_result((json_bytes, bytes(body)))

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


@oip
async def infer(request: Request) -> Response:
    """Inference through ASGI (a test client, or a server in front of the application); the HTTP server takes the short way."""
    text = request.headers.get("inference-header-content-length")
    if text is not None and not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InvalidRequest("Inference-Header-Content-Length must be the number of bytes of the JSON part")
    controller = controller_of(request)
    body = await read_body(request)
    call = _AwaitedCall(request.path_params["model"], version_of(request), body, -1 if text is None else int(text))
    controller.submit(call)
    try:
        json_bytes, answer = await call.done
    except asyncio.CancelledError:
        controller.cancel(call)
        raise
    if json_bytes < 0:
        return Response(answer, media_type="application/json")
    return Response(answer, headers={"Inference-Header-Content-Length": str(json_bytes)}, media_type="application/octet-stream")


@oip
async def not_yet(request: Request) -> Response:
    """Parts of Triton's protocol that come later."""
    raise Unsupported(f"{request.url.path.rsplit('/', 1)[-1]} comes with a later version of modelpool")


def _model_routes(prefix: str) -> list[BaseRoute]:
    return [
        Route(f"{prefix}/infer", infer, methods=["POST"]),
        Route(f"{prefix}/ready", model_ready, methods=["GET"]),
        Route(f"{prefix}/config", model_config, methods=["GET"]),
        Route(f"{prefix}/stats", model_stats, methods=["GET"]),
        Route(f"{prefix}/generate", not_yet, methods=["POST"]),
        Route(f"{prefix}/generate_stream", not_yet, methods=["POST"]),
        Route(f"{prefix}/trace/setting", not_yet, methods=["GET", "POST"]),
        Route(prefix, model_metadata, methods=["GET"]),
    ]


def routes() -> list[BaseRoute]:
    """All routes below /v2."""
    return [
        Route("/v2", server_metadata, methods=["GET"]),
        Route("/v2/health/live", live, methods=["GET"]),
        Route("/v2/health/ready", ready, methods=["GET"]),
        Route("/v2/models/stats", model_stats, methods=["GET"]),
        Route("/v2/repository/index", index, methods=["POST"]),
        Route("/v2/repository/models/{model:path}/load", load, methods=["POST"]),
        Route("/v2/repository/models/{model:path}/unload", unload, methods=["POST"]),
        Route("/v2/logging", not_yet, methods=["GET", "POST"]),
        Route("/v2/trace/setting", not_yet, methods=["GET", "POST"]),
        Route("/v2/{kind}sharedmemory/{rest:path}", not_yet, methods=["GET", "POST"]),
        *_model_routes("/v2/models/{model:path}/versions/{version}"),
        *_model_routes("/v2/models/{model:path}"),
    ]
