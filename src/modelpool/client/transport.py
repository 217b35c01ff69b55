"""How the client talks to the server: time limits, waiting as told by `Retry-After`, errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from modelpool.client.errors import ConnectionFailed, error_from_reply
from modelpool.errors import InstanceLost, ModelpoolError, RequestTimeout, SetupError

_LEAST_WAIT_S = 0.05  # a server that asks for no wait at all must not be hammered
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is no error."""

    headers: Mapping[str, str]
    body: bytes | bytearray

    def json(self) -> dict[str, Any]:
        """The body as a JSON object."""
        try:
            content = msgspec.json.decode(self.body) if self.body else {}
        except msgspec.DecodeError as error:
            raise ModelpoolError(f"the server's answer is not JSON ({error}); is this address really a modelpool server?") from error
        if not isinstance(content, dict):
            raise ModelpoolError("the server's answer is no JSON object; is this address really a modelpool server?")
        return content


class Transport:
    """A pool of connections to one server; may be used from many threads.

    timeout_s: time for a call as a whole, waits included; retries: how often a call that the server refused for now is sent again.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        retries: int,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = checked_url(url)
        self._timeout_s = timeout_s
        self._retries = retries
        self._sleep = sleep
        self._monotonic = monotonic
        # A proxy of the environment can rarely reach this machine's own loopback.
        trust_env = httpx.URL(self.url).host not in _LOOPBACK
        # Any number of threads may wait for loads at the same time: connections are not bounded, only those that are kept.
        self._http = httpx.Client(base_url=self.url, trust_env=trust_env, limits=httpx.Limits(max_keepalive_connections=100))

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def deadline(self, timeout_s: float | None) -> float:
        """The time (of this transport's clock) at which a call that starts now must have ended."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        if not limit_s > 0:
            raise SetupError(f"a time limit must be above 0 seconds, not {limit_s}")
        return self._monotonic() + limit_s

    def left_s(self, deadline: float) -> float:
        """Seconds until `deadline`; raises RequestTimeout where none are left."""
        left_s = deadline - self._monotonic()
        if left_s <= 0:
            raise self._too_late()
        return left_s

    def call(
        self,
        method: str,
        path: str,
        *,
        deadline: float,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request and wait for its answer.

        A refusal with `Retry-After` (429, 503) is sent again after that time, if the time limit allows; the server did not begin it,
        so this is safe for every method. A lost connection is tried again only for GET. Raises ModelpoolError.
        """
        for attempt in range(self._retries + 1):
            try:
                return self._once(method, path, deadline, params, content, headers)
            except ModelpoolError as error:
                wait_s = self._wait_before_retry(error, method, attempt)
                if wait_s is None or attempt == self._retries or self._monotonic() + wait_s >= deadline:
                    raise
            self._sleep(wait_s)
        raise AssertionError("unreachable")

    def _wait_before_retry(self, error: ModelpoolError, method: str, attempt: int) -> float | None:
        """Seconds after which the call may be sent again; None where it must not be."""
        if isinstance(error, ConnectionFailed):
            broke = isinstance(error.__cause__, httpx.TransportError) and not isinstance(error.__cause__, httpx.ConnectError)
            return 0.0 if broke and method == "GET" and attempt == 0 else None
        if isinstance(error, InstanceLost) or error.retry_after_s is None:
            return None  # a request that was lost may have taken effect: its sender decides
        return max(_LEAST_WAIT_S, error.retry_after_s)

    def _once(
        self,
        method: str,
        path: str,
        deadline: float,
        params: Mapping[str, str] | None,
        content: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> Reply:
        timeout_s = self.left_s(deadline)
        body = bytearray()
        try:
            with self._http.stream(method, path, params=params, content=content, headers=headers, timeout=timeout_s) as response:
                for chunk in response.iter_bytes():
                    self.left_s(deadline)  # httpx limits each read, not their sum
                    body += chunk
        except httpx.TimeoutException as error:
            raise self._too_late() from error
        except httpx.ConnectError as error:
            hint = "start one with `modelpool serve`, or give the address of another (url=, --url, MODELPOOL_URL)"
            raise ConnectionFailed(f"no server answers at {self.url} ({error}); {hint}") from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise ConnectionFailed(f"the connection to {self.url} broke before the answer came: {error or type(error).__name__}") from error
        except httpx.InvalidURL as error:
            raise SetupError(f"{path!r} cannot be asked of {self.url}: {error}") from error
        if response.is_success:
            return Reply(response.headers, body)
        failure = error_from_reply(response.status_code, response.headers, bytes(body))
        if response.status_code not in (429, 503):
            failure.retry_after_s = None
        raise failure

    def _too_late(self) -> RequestTimeout:
        return RequestTimeout(f"{self.url} did not answer in time; raise timeout_s, or see `modelpool models` for what it is busy with")


def checked_url(url: str) -> str:
    """`url` without a slash at its end; raises SetupError where it is not the http address of a server."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise SetupError(f"{url!r} is not the address of a server ({error}); write it like http://127.0.0.1:8000") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise SetupError(f"{url!r} is not the address of a server; write it with http:// or https://, like http://127.0.0.1:8000")
    return url.rstrip("/")
