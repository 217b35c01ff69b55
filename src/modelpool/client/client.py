"""`Client`: what a program asks of a modelpool server, one method a wish."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import msgspec

from modelpool.client.transport import Reply, Transport
from modelpool.errors import InvalidRequest, ModelpoolError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

DEFAULT_URL = "http://127.0.0.1:8000"
JSON_BYTES = "Inference-Header-Content-Length"

_NAMES = ("model_name", "modelName", "model_device", "model_properties", "modelProperties")

Json = dict[str, Any]


class Client:
    """A client of one server; a context manager, and safe to share between threads.

    url: the server's address; timeout_s: time limit of a call as a whole, which most methods also take for one call; retries: how often a
    call is sent again when the server refuses it for now and says when to return (`Retry-After`), always within the time limit.

    Every method raises the exceptions of `modelpool.errors`, with the server's code and message, and `ConnectionFailed` where no server
    answers. `sleep` and `monotonic` are for tests.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        timeout_s: float = 60.0,
        retries: int = 10,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = Transport(url, timeout_s=timeout_s, retries=retries, sleep=sleep, monotonic=monotonic)

    @property
    def url(self) -> str:
        """The server's address."""
        return self._transport.url

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- models: load, eject, look ---------------------------------------------------------------------------------------------------
    def load_model(
        self, name: str, device: str | None = None, properties: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> Json:
        """Load a model (on `device`, or wherever there is room) and return what the server says of it, once it is ready.

        properties make it a generic model that the catalogue then keeps: `url` (a file or folder that the server may read), `type`
        (`onnx`), and what else is to be known of it, like `dimensions` and `note`. A model of a repository that was forgotten needs
        none to be known again.
        """
        wish: Json = {"model_name": name}
        if device is not None:
            wish["model_device"] = device
        if properties is not None:
            wish["model_properties"] = dict(properties)
        return self._send_json("POST", "/models", wish, timeout_s)

    def eject_model(self, name: str, device: str | None = None, *, timeout_s: float | None = None) -> Json:
        """Unload a model from `device` (or from all) once the requests that it runs have ended; a later request loads it again.

        Raises NotCached where it is not loaded there.
        """
        return self._ask("DELETE", "/models", {"model_name": name, "model_device": device}, timeout_s)

    def forget_model(self, name: str, *, timeout_s: float | None = None) -> Json:
        """Unload a model and take it out of the catalogue, until `load_model` brings it back."""
        return self._ask("DELETE", "/models", {"model_name": name, "forget": "true"}, timeout_s)

    def get_loaded_models(self, device: str | None = None, *, timeout_s: float | None = None) -> dict[str, dict[str, Json]]:
        """The loaded models as `{device: {name: info}}`, with each model's properties and what it takes in `info`.

        device: only this one, or this kind (`cuda` means every `cuda:N`).
        """
        found: dict[str, dict[str, Json]] = {}
        for entry in self._ask("GET", "/models", {}, timeout_s).get("models", ()):
            where = str(entry["model_device"])
            if device is None or where == device or where.partition(":")[0] == device:
                found.setdefault(where, {})[str(entry["model_name"])] = _info(entry)
        return found

    def models(self, *, timeout_s: float | None = None) -> list[Json]:
        """All models of the catalogue, loaded or not."""
        return list(self._ask("GET", "/models", {"all": "true"}, timeout_s).get("models", ()))

    def model(self, name: str, *, timeout_s: float | None = None) -> Json:
        """One model of the catalogue; raises UnknownModel or ForgottenModel."""
        return self._ask("GET", "/models/view", {"model_name": name}, timeout_s)

    def pin(self, name: str, *, timeout_s: float | None = None) -> Json:
        """Load a model and keep it: it is not evicted until it is unpinned."""
        return self._ask("POST", "/models/pin", {"model_name": name}, timeout_s)

    def unpin(self, name: str, *, timeout_s: float | None = None) -> Json:
        """Let a pinned model be evicted again."""
        return self._ask("POST", "/models/unpin", {"model_name": name}, timeout_s)

    # --- why and where ---------------------------------------------------------------------------------------------------------------
    def explain(self, name: str, *, timeout_s: float | None = None) -> Json:
        """Why a model is where it is, and what it would take to bring it in: `now`, `to_load` and `history`."""
        return self._ask("GET", "/models/explain", {"model_name": name}, timeout_s)

    def decisions(self, name: str | None = None, *, limit: int = 50, timeout_s: float | None = None) -> list[Json]:
        """The server's latest decisions (about one model, or all), with their reasons."""
        return list(self._ask("GET", "/decisions", {"limit": str(limit), "model_name": name}, timeout_s).get("decisions", ()))

    def devices(self, *, timeout_s: float | None = None) -> list[Json]:
        """All devices: their budgets and how they are filled, in bytes."""
        return list(self._ask("GET", "/devices", {}, timeout_s).get("devices", ()))

    def get_device_info(self, device: str, *, timeout_s: float | None = None) -> Json:
        """The load of the machine's processor and memory (`cpu`) or of its graphics cards (`cuda`)."""
        return self._ask("GET", f"/device/{_segment(device)}", {}, timeout_s)

    # --- inference -------------------------------------------------------------------------------------------------------------------
    def infer(
        self,
        name: str,
        inputs: Mapping[str, ArrayLike],
        *,
        version: int | None = None,
        outputs: Iterable[str] = (),
        parameters: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Run a model, which the server loads first if it has to.

        inputs: arrays by input name, of the shapes and types that the model declares; text as arrays of `str` or `bytes`.
        version: a version of the model (None: its default); outputs: the ones wanted (none given: all); parameters: of the request, like
        `keep_alive`. Returns arrays by output name; text comes as object arrays of `bytes`. What still waits at the time limit is not run
        any more.
        """
        from modelpool.protocol.inference import decode_response, encode_request

        deadline = self._transport.deadline(timeout_s)
        timeout_us = max(1, int(self._transport.left_s(deadline) * 1e6))
        body = encode_request(inputs, outputs, {"timeout": timeout_us, **(parameters or {})})
        path = f"/v2/models/{_segment(name)}" + ("" if version is None else f"/versions/{version}") + "/infer"
        headers = {"content-type": "application/octet-stream", JSON_BYTES: str(body.json_bytes)}
        reply = self._transport.call("POST", path, deadline=deadline, content=body.joined(), headers=headers)
        try:
            answer = decode_response(reply.body, int(reply.headers.get(JSON_BYTES, "-1")))
        except (InvalidRequest, ValueError) as error:
            raise ModelpoolError(f"{self.url} did not answer as the Open Inference Protocol has it: {error}") from error
        return {name: tensor.array for name, tensor in answer.outputs.items()}

    # --- the wire --------------------------------------------------------------------------------------------------------------------
    def _ask(self, method: str, path: str, params: Mapping[str, str | None], timeout_s: float | None) -> Json:
        given = {key: value for key, value in params.items() if value is not None}
        return self._transport.call(method, path, deadline=self._transport.deadline(timeout_s), params=given).json()

    def _send_json(self, method: str, path: str, content: Json, timeout_s: float | None) -> Json:
        reply: Reply = self._transport.call(
            method,
            path,
            deadline=self._transport.deadline(timeout_s),
            content=msgspec.json.encode(content),
            headers={"content-type": "application/json"},
        )
        return reply.json()


def _segment(name: str) -> str:
    """A name as one segment of a path, also where it is `..`, so that the server sees it and can say what is wrong with it."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def _info(entry: Json) -> Json:
    """What a user wants to know of a loaded model: its properties, and the server's facts, without the names that led here."""
    facts = {key: value for key, value in entry.items() if key not in _NAMES}
    return dict(entry.get("model_properties") or {}) | facts
