"""The ASGI application: everything but inference on its short way."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from modelpool.gateway import metrics, models_api, v2
from modelpool.gateway.dataplane import DataPlane
from modelpool.gateway.requests import json_response, marqo_error, oip_error


async def _http_error(request: Request, error: Exception) -> Response:
    """A path or method that does not exist, in the form that the path's clients read."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        message = f"{request.method} is not allowed on {request.url.path}"
    elif error.status_code == 404:
        message = f"there is no {request.url.path}; see the documentation for the paths that are"
    else:
        message = str(error.detail)
    code = {404: "path_not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
    if request.url.path.startswith("/v2"):
        return json_response({"error": message, "code": code}, error.status_code, dict(error.headers or {}))
    content = {"message": message, "code": code, "type": "invalid_request", "link": None}
    return json_response(content, error.status_code, dict(error.headers or {}))


async def _server_error(request: Request, error: Exception) -> Response:
    return oip_error(error) if request.url.path.startswith("/v2") else marqo_error(error)


class _SingleSlashes:
    """A client whose base URL ends in a slash asks for `//models`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("//"):
            scope = {**scope, "path": "/" + scope["path"].lstrip("/")}
        await self._app(scope, receive, send)


def make_app(controller: DataPlane) -> ASGIApp:
    """The application of one controller."""
    app = Starlette(
        routes=[*v2.routes(), *metrics.routes(), *models_api.routes()],
        exception_handlers={HTTPException: _http_error, Exception: _server_error},
    )
    app.router.redirect_slashes = False
    app.state.controller = controller
    return _SingleSlashes(app)
