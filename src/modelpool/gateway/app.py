"""The ASGI application: everything but inference, which `http_protocol` takes out before."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from modelpool.errors import InvalidRequest
from modelpool.gateway import metrics, models_api, v2
from modelpool.gateway.dataplane import DataPlane
from modelpool.gateway.errors import MethodNotAllowed, PathNotFound
from modelpool.gateway.requests import marqo_error, oip_error


async def _http_error(request: Request, error: Exception) -> Response:
    """A path or a method that does not exist, in the form that the path's clients read."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    headers = dict(error.headers or {})
    known: InvalidRequest
    if error.status_code == 405:
        headers["Allow"] = allowed = _routed_methods(request) or headers.get("Allow", "")
        known = MethodNotAllowed(f"{request.method} is not allowed on {path}; use {allowed}")
    elif error.status_code == 404:
        known = PathNotFound(f"there is no {path}; see the documentation for the paths that are")
    else:
        known = InvalidRequest(str(error.detail))
    response = oip_error(known) if path.startswith("/v2") else marqo_error(known)
    response.headers.update(headers)
    return response


def _routed_methods(request: Request) -> str:
    """The methods of all routes of the path, as each route knows its own only; empty where one took the request and refused it itself."""
    found: set[str] = set()
    for route in request.app.routes:
        match, _ = route.matches(request.scope)
        if match is Match.FULL:
            return ""
        if match is Match.PARTIAL:
            found |= route.methods
    return ", ".join(sorted(found))


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
    routes = [*v2.routes(), *metrics.routes(), *models_api.routes()]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
    app.router.redirect_slashes = False
    app.state.controller = controller
    return _SingleSlashes(app)
