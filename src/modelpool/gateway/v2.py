"""The Open Inference Protocol over HTTP, but for inference itself, and Triton's repository extension."""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from modelpool.errors import InvalidRequest, MalformedModel, ModelpoolError, NotCached, NotFound, UnknownModel, Unsupported
from modelpool.gateway.errors import status_of
from modelpool.gateway.overrides import is_override, read_overrides
from modelpool.gateway.paths import ModelPath, model_path
from modelpool.gateway.requests import Handler, controller_of, json_response, oip, oip_error, read_json
from modelpool.protocol.messages import TensorMeta
from modelpool.repository.entry import Entry

EXTENSIONS = (
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "statistics",
)
"""Those of Triton's extensions that this version has."""


# --- the server ------------------------------------------------------------------------------------------------------------------
@oip
async def server_metadata(request: Request) -> Response:
    """Name, version, extensions."""
    return json_response({"name": "modelpool", "version": controller_of(request).version, "extensions": EXTENSIONS})


@oip
async def live(request: Request) -> Response:
    """Whether the process answers."""
    return Response(status_code=200 if controller_of(request).live() else 400)


@oip
async def ready(request: Request) -> Response:
    """Whether requests can be served."""
    return Response(status_code=200 if controller_of(request).ready() else 400)


@oip
async def all_statistics(request: Request) -> Response:
    """Statistics of all models that were used."""
    return json_response({"model_stats": controller_of(request).statistics()})


# --- a model ---------------------------------------------------------------------------------------------------------------------
def _entry(request: Request, path: ModelPath) -> Entry:
    controller = controller_of(request)
    controller.check_model(path.model, path.version)
    return controller.entry(path.model)


def _tensors(metas: tuple[TensorMeta, ...] | None) -> list[dict[str, Any]]:
    return [{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in metas or ()]


def model_metadata(request: Request, path: ModelPath) -> Response:
    """Versions, inputs and outputs; loads nothing."""
    entry = _entry(request, path)
    return json_response(
        {
            "name": entry.name,
            "versions": [str(one.version) for one in entry.versions],
            "platform": entry.platform,
            "inputs": _tensors(entry.inputs),
            "outputs": _tensors(entry.outputs),
        }
    )


def model_config(request: Request, path: ModelPath) -> Response:
    """The configuration; loads nothing."""
    return json_response(_entry(request, path).config)


def model_ready(request: Request, path: ModelPath) -> Response:
    """200 where a request would be served, resident or loadable; else 400, as with Triton."""
    controller = controller_of(request)
    try:
        controller.check_model(path.model, path.version)
    except ModelpoolError as error:
        return oip_error(error, 400)
    if controller.model_ready(path.model, path.version):
        return Response(status_code=200)
    message = f"model '{path.model}' cannot be served now; `modelpool explain {path.model}` says why"
    return json_response({"error": message, "code": "model_not_ready"}, 400)


def model_statistics(request: Request, path: ModelPath) -> Response:
    """Statistics; loads nothing. An unknown model is 400, as with Triton."""
    try:
        rows = controller_of(request).statistics(path.model, path.version)
    except NotFound as error:
        return oip_error(error, 400)
    return json_response({"model_stats": rows})


def comes_later(request: Request, path: ModelPath) -> Response:
    """Parts of the protocol that this version does not have."""
    raise Unsupported(f"{path.action} comes with a later version of modelpool; use infer")


_ACTIONS = {
    "": (model_metadata, ("GET", "HEAD")),
    "config": (model_config, ("GET", "HEAD")),
    "ready": (model_ready, ("GET", "HEAD")),
    "stats": (model_statistics, ("GET", "HEAD")),
    "generate": (comes_later, ("POST",)),
    "generate_stream": (comes_later, ("POST",)),
    "trace/setting": (comes_later, ("GET", "HEAD", "POST")),
}


@oip
async def model(request: Request) -> Response:
    """Everything below /v2/models but inference, which never comes here by POST."""
    raw: bytes = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    path = model_path(raw)
    if path is None:
        raise HTTPException(404)
    answer, methods = _ACTIONS.get(path.action, (comes_later, ("POST",)))
    if request.method not in methods:
        raise HTTPException(405, headers={"Allow": ", ".join(methods)})
    try:
        return answer(request, path)
    except MalformedModel as error:
        return oip_error(error, status_of(error, serving=True))


# --- the repository --------------------------------------------------------------------------------------------------------------
@oip
async def index(request: Request) -> Response:
    """The repository index; a malformed model has no version."""
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
    overrides = read_overrides(await _parameters(request, (), inline=True))
    try:
        await controller_of(request).load(name, overrides=overrides)
    except UnknownModel as error:
        problem = UnknownModel(f"failed to load '{name}', failed to poll from model repository: {error.message}")
        return oip_error(problem, 500)
    return Response(status_code=200)


@oip
async def unload(request: Request) -> Response:
    """Eject a model: a request loads it again. One that is unknown or not resident is no error, as with Triton."""
    name: str = request.path_params["model"]
    given = await _parameters(request, ("unload_dependents",))
    if not isinstance(given.get("unload_dependents", False), bool):
        raise InvalidRequest("parameter 'unload_dependents' must be true or false")
    with contextlib.suppress(NotCached, UnknownModel):
        await controller_of(request).eject(name)
    controller_of(request).drop_overrides(name)
    return Response(status_code=200)


async def _parameters(request: Request, known: tuple[str, ...], *, inline: bool = False) -> dict[str, Any]:
    given = (await read_json(request)).get("parameters", {})
    if not isinstance(given, dict):
        raise InvalidRequest("field 'parameters' must be an object")
    for name in given:
        if name not in known and not (inline and is_override(name)):
            raise InvalidRequest(f"unknown parameter '{name}'; known here: {', '.join(known) or 'none'}")
    return given


@oip
async def not_yet(request: Request) -> Response:
    """Parts of Triton's protocol that this version does not have."""
    raise Unsupported(f"{request.url.path} comes with a later version of modelpool")


def routes() -> list[BaseRoute]:
    """All routes below /v2."""

    def route(path: str, handler: Handler, *methods: str) -> Route:
        return Route(path, handler, methods=methods)

    of_models = route("/v2/models/{rest:path}", model)
    of_models.methods = None  # what a path takes, its end says
    return [
        route("/v2", server_metadata, "GET"),
        route("/v2/health/live", live, "GET"),
        route("/v2/health/ready", ready, "GET"),
        route("/v2/models/stats", all_statistics, "GET"),
        of_models,
        route("/v2/repository/index", index, "POST"),
        route("/v2/repository/models/{model:path}/load", load, "POST"),
        route("/v2/repository/models/{model:path}/unload", unload, "POST"),
        route("/v2/logging", not_yet, "GET", "POST"),
        route("/v2/trace/setting", not_yet, "GET", "POST"),
        route("/v2/systemsharedmemory/{rest:path}", not_yet, "GET", "POST"),
        route("/v2/cudasharedmemory/{rest:path}", not_yet, "GET", "POST"),
    ]
