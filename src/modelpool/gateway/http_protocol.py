"""uvicorn's HTTP protocol, with inference requests taken out before any ASGI cycle: no task, no future, no scope for them.

Requests of a connection are answered one by one in the order they came, of whichever kind they are. `running` is the one whose turn it is
(an Exchange, or a cycle of uvicorn's), `cycle` the one that is being received, `pipeline` holds those that were received ahead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from modelpool.errors import InvalidRequest, ModelpoolError
from modelpool.gateway.bodies import encoding_problem, too_large
from modelpool.gateway.dataplane import DataPlane
from modelpool.gateway.errors import HeadTooLarge
from modelpool.gateway.exchange import Exchange
from modelpool.gateway.heads import END, KnownHeads, head_problem
from modelpool.gateway.paths import Target, infer_target

HEAD_LIMIT_BYTES = 65536
"""Largest head of a request, beyond what came in one packet."""
AHEAD_LIMIT = 16
"""Requests that are received ahead of their turn; then the connection is not read until one was answered."""
LINGER_S = 2.0
"""After a refusal what the client still sends is dropped for so long, so that it comes to read the answer."""

_READ = frozenset({b"inference-header-content-length", b"content-length", b"content-encoding", b"connection"})
"""Headers that matter to an inference."""


class InferenceProtocol(HttpToolsProtocol):
    """One connection; `bind` gives the class its controller."""

    controller: DataPlane
    body_limit_bytes: int
    heads: KnownHeads
    cycle: Any
    pipeline: deque[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.running: Any = None
        self.heard_s = self.loop.time()
        self._between = True  # the parser is at the beginning of a request
        self._fresh = b""  # what came in one piece from there on
        self._in_head = False
        self._head_bytes = 0
        self._advanced = False  # a head ended, or a piece of a body came, with the bytes that are being parsed
        self._upgrades = False
        self._deaf = False
        self._eof = False
        self._lost: asyncio.Future[None] | None = None

    # --- bytes come in ----------------------------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        """Parse; what comes after a request that ends the connection is dropped."""
        self.heard_s = self.loop.time()
        if self._deaf:
            return
        if self._between:
            if self.running is None and self._take_known(data):
                return
            self._fresh = data
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not self._deaf:
                self._refuse_all(InvalidRequest(f"the request is not valid HTTP/1.1: {error}"))
        self._fresh = b""
        if not self._between:
            self._count_head(data)

    def _count_head(self, data: bytes) -> None:
        """Bound what a request brings besides its body: its head, and the trailers after a chunked body, which nobody reads."""
        if self._advanced:
            self._advanced = False
            self._head_bytes = 0
            return
        if self._head_bytes > HEAD_LIMIT_BYTES and not self._deaf:
            what = "head of the request exceeds" if self._in_head else "trailers of the request exceed"
            self._refuse_all(HeadTooLarge(f"the {what} {HEAD_LIMIT_BYTES} bytes; send shorter headers"))
        self._head_bytes += len(data)

    def _take_known(self, data: bytes) -> bool:
        """Take a request without the parser, where its head is known and its body is all of the rest."""
        end = data.find(END) + len(END)
        known = self.heads.get(data[:end])
        if known is None or len(data) - end != known.body_bytes or self.pipeline or self.flow.write_paused:
            return False
        self.cycle = self.running = exchange = Exchange(self, known.model, known.version, data[end:], known.json_bytes)
        exchange.begin_whole()
        return True

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more, which one that is gone does too. What runs is still answered; what waits for a model is given up."""
        self._eof = self._deaf = True
        cycle, running = self.cycle, self.running
        if isinstance(cycle, Exchange) and cycle.more_body:
            cycle.refuse(InvalidRequest(f"the body ends early, after {len(cycle.body)} bytes"), hang_up=True)
            running = self.running
        if running is None or self.transport.is_closing():
            return False
        return not running.waits if isinstance(running, Exchange) else not running.more_body

    def _refuse_all(self, problem: ModelpoolError) -> None:
        """What comes in cannot be read any further: say so when all before it is answered, and hang up."""
        self._deaf = True
        self._in_head = False
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.more_body:
            cycle = self._take(Exchange(self))
        if isinstance(cycle, Exchange):
            cycle.refuse(problem, hang_up=True)
        elif cycle.response_started:
            self.transport.close()  # in the middle of an answer
        else:
            self._take_over(cycle).refuse(problem, hang_up=True)

    def _take_over(self, cycle: Any) -> Exchange:
        """An exchange in place of a cycle of the application, which finds its client gone."""
        exchange = self.cycle = Exchange(self)
        if self.running is cycle:
            self.running = exchange
            cycle.disconnected = True
            cycle.message_event.set()
        else:
            self.pipeline[0] = (exchange, None)  # the one that was received last
        return exchange

    # --- the parser's callbacks -------------------------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        """Unlike uvicorn's, this makes no scope."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._between = False
        self._in_head = True
        self._advanced = False
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers are no headers: a client could say there what a proxy in front of us took out."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Tell inferences from all else."""
        self._in_head = False
        self._advanced = True
        fresh, self._fresh = self._fresh, b""
        if self._deaf:
            return
        if self.parser.should_upgrade():
            self._upgrades = True
            return
        if (problem := head_problem(self.url, self.headers)) is not None:
            self._take(Exchange(self)).refuse(problem, hang_up=True)
            self._deaf = True
            return
        target = infer_target(self.url) if self.parser.get_method() == b"POST" else None
        if target is not None:
            exchange = self._exchange(target)
            if fresh:
                self.heads.learn(fresh, self.headers, exchange)
            self._take(exchange)
            return
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()  # makes the scope
        self.url, self.headers, self.expect_100_continue = url, headers, expects
        self.scope["headers"] = headers
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._advanced = True
        if self._deaf:
            return
        cycle = self.cycle
        if not isinstance(cycle, Exchange):
            super().on_body(body)
        elif not cycle.response_complete:
            cycle.feed(body)
            if cycle is not self.running and len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """The request is there."""
        if self._upgrades or self._deaf:
            return
        self._between = True
        cycle = self.cycle
        if isinstance(cycle, Exchange):
            cycle.complete()
        else:
            super().on_message_complete()
        if not cycle.keep_alive:
            self._deaf = True

    def _exchange(self, target: Target) -> Exchange:
        exchange = Exchange(self, target.model, target.version)
        exchange.keep_alive = self.parser.should_keep_alive()
        for name, value in self.headers:
            if name in _READ:
                self._read_header(exchange, name, value)
        if target.problem is not None:
            exchange.refuse(target.problem)
        if self.expect_100_continue:
            exchange.expects_continue = True
            if exchange.problem is not None:
                exchange.refuse(exchange.problem, hang_up=True)  # the client waits for this word before it sends the body
        return exchange

    def _read_header(self, exchange: Exchange, name: bytes, value: bytes) -> None:
        if name == b"content-length":
            if int(value) > self.body_limit_bytes:
                exchange.refuse(too_large(self.body_limit_bytes), hang_up=True)
        elif name == b"connection":
            exchange.keep_alive = exchange.keep_alive and self.parser.get_http_version() != "1.0"
        elif name == b"inference-header-content-length":
            if value.isdigit() and len(value) < 16:
                exchange.json_bytes = int(value)
            else:
                exchange.refuse(InvalidRequest("Inference-Header-Content-Length must be the number of bytes of the body's JSON part"))
        elif (encoding := value.lower()) != b"identity":
            exchange.encoding = encoding
            if (problem := encoding_problem(encoding)) is not None:
                exchange.refuse(problem)

    # --- whose turn it is -------------------------------------------------------------------------------------------------------
    def _take(self, exchange: Exchange) -> Exchange:
        self.cycle = exchange
        if self.running is None and not self.pipeline and not self.flow.write_paused:
            self.running = exchange
            if exchange.problem is not None or exchange.expects_continue:
                exchange.begin()
        else:
            self.pipeline.appendleft((exchange, None))
            if len(self.pipeline) >= AHEAD_LIMIT:
                self.flow.pause_reading()
        if exchange.hang_up:
            self._deaf = True
        return exchange

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """The one whose turn it was is answered; the next one starts in a turn of the loop of its own, so that calls do not nest."""
        running, self.running = self.running, None
        if not running.keep_alive:
            self._hang_up(running)
        elif self.pipeline:
            self.loop.call_soon(self._start_next)
        elif self._eof:
            self.transport.close()
        elif self.flow.read_paused:
            self.flow.resume_reading()

    def _start_next(self) -> None:
        if self.running is not None or not self.pipeline or self.flow.write_paused or self.transport.is_closing():
            return
        cycle, app = self.pipeline.pop()
        self.flow.resume_reading()
        if isinstance(cycle, Exchange):
            self.running = cycle
            cycle.begin()
        else:
            self._start_asgi_task(cycle, app)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._start_next()

    # --- upgrades are declined --------------------------------------------------------------------------------------------------
    def _without_upgrade(self, rest: bytes) -> None:
        """Serve a request that offers an upgrade (Java's client offers h2c) as plain HTTP/1.1. The parser drops its body: read it anew."""
        self._upgrades = False
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse_all(InvalidRequest("CONNECT is for proxies, which this server is not"))
            return
        version = self.parser.get_http_version().encode()
        kept = [(name, value) for name, value in self.headers if name not in (b"upgrade", b"connection", b"http2-settings")]
        lines = [b"%b %b HTTP/%b" % (method, self.url, version), *(b"%b: %b" % header for header in kept), b"", rest]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.data_received(b"\r\n".join(lines))

    # --- the end ----------------------------------------------------------------------------------------------------------------
    def _hang_up(self, last: Any) -> None:
        """Close. Where the client may still be sending, first our side only, and all when it closes its own or LINGER_S is over:
        a reset at once could lose it our answer.
        """
        if self._eof or not last.more_body or not isinstance(last, Exchange):
            self.transport.close()
            return
        self._deaf = True
        self.flow.resume_reading()
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.abort)

    def shutdown(self) -> None:
        """Close when what was accepted is answered."""
        if self.running is None and not self.pipeline:
            self.transport.close()
        else:
            self.cycle.keep_alive = False
            self._deaf = self._deaf or not self.cycle.more_body

    def shut(self) -> asyncio.Future[None]:
        """`shutdown`; the result comes when the connection is closed."""
        if self._lost is None:
            self._lost = self.loop.create_future()
        self.shutdown()
        return self._lost

    def close_if_idle(self, since_s: float) -> None:
        """Close where nothing was heard since then, and nothing of ours is due."""
        running = self.running
        if self.heard_s < since_s and (running is None or running.more_body):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, or we closed."""
        self.pipeline.clear()
        running, self.running = self.running, None
        if isinstance(running, Exchange):
            running.gone()
        elif running is not None:
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)


def bind(controller: DataPlane, body_limit_bytes: int) -> type[InferenceProtocol]:
    """The protocol class for one controller."""
    members = {"controller": controller, "body_limit_bytes": body_limit_bytes, "heads": KnownHeads()}
    return cast(type[InferenceProtocol], type("BoundInferenceProtocol", (InferenceProtocol,), members))
