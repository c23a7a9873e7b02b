"""The service port: a small HTTP server on its own threads, with the pages that every service has and those it adds."""

import json
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from floodmark.core.errors import Unavailable
from floodmark.service.health import Health

log = structlog.get_logger()

BODY_BYTES_MAX = 1024 * 1024
BACKLOG_MAX = 1_024
"""Connections that the system keeps for us until we accept them. Python asks for five, and those beyond are reset."""
TURNED_AWAY_AT_ONCE_MAX = 64
FORGOTTEN_WITHIN_S = 10
"""How long a client may go on sending a body that was refused."""
_FORGET_BYTES = 64 * 1024
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks."""

    method: str
    path: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    """The parts of the path that the pattern names."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case."""
    body: bytes = b""
    has_gone: Callable[[], bool] = lambda: False
    """Whether the client has hung up: nobody waits for the answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    kind: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, status: int, value: object, headers: Mapping[str, str] | None = None) -> "Answer":
        return cls(status, "application/json", json.dumps(value).encode(), headers or {})

    @classmethod
    def text(cls, status: int, text: str, headers: Mapping[str, str] | None = None) -> "Answer":
        return cls(status, "text/plain", f"{text}\n".encode(), headers or {})


Page = Callable[[Request], Answer]


@dataclass(frozen=True, slots=True)
class _Served:
    method: str
    pattern: str
    expression: re.Pattern[str]
    page: Page


class ServicePort:
    """Serves /healthz (is the loop turning), /readyz (can it do its work), /metrics, and what a service adds."""

    def __init__(
        self, *, host: str, port: int, health: Health, metrics: CollectorRegistry, connections_max: int = 512
    ) -> None:
        self._pages: list[_Served] = []
        self._health = health
        self.serve("GET", "/healthz", lambda _: _verdict(health.live()))
        self.serve("GET", "/readyz", lambda _: _verdict(health.ready()))
        self.serve("GET", "/metrics", lambda _: Answer(200, CONTENT_TYPE_LATEST, generate_latest(metrics)))
        try:
            self._server = _Server((host, port), _handler(self._answer), connections_max)
        except OSError as error:
            raise Unavailable(f"http port {host}:{port} cannot be opened: {error.strerror}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_port

    def serve(self, method: str, pattern: str, page: Page) -> None:
        """Serve a page at a path such as `/v1/tables/{table}/segments`."""
        expression = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", pattern))
        self._pages.append(_Served(method, pattern, expression, page))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: Request) -> Answer:
        found = [(served, match) for served in self._pages if (match := served.expression.fullmatch(request.path))]
        wanted = "GET" if request.method == "HEAD" else request.method
        for served, match in found:
            if served.method == wanted:
                parameters = {name: unquote(value) for name, value in match.groupdict().items()}
                return _answered(served, replace(request, parameters=parameters))
        if found:
            methods = ", ".join(served.method for served, _ in found)
            return Answer.text(405, f"{request.path} takes {methods}", {"Allow": methods})
        if starting := self._health.starting():
            # The page may come with the service. Who took a 404 for an answer would not try again.
            return Answer.json(503, {"rule": "starting", "reason": starting})
        known = ", ".join(sorted(served.pattern for served in self._pages))
        return Answer.text(404, f"no such page; there are {known}")


def _answered(served: _Served, request: Request) -> Answer:
    """A page that raises has a bug. Its client is told so, rather than to wonder why the connection was closed."""
    try:
        return served.page(request)
    except Exception:
        log.exception("request_failed", method=request.method, page=served.pattern)
        return Answer.json(500, {"rule": "internal", "reason": "this is a bug of the service; its log has the details"})


class _Server(ThreadingHTTPServer):
    """A thread for each connection, up to a bound. Those beyond it are told so; nobody's connection is reset."""

    daemon_threads = True
    request_queue_size = BACKLOG_MAX

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], connections_max: int) -> None:
        super().__init__(address, handler)
        self._places = threading.BoundedSemaphore(connections_max)
        self._turned_away = threading.BoundedSemaphore(TURNED_AWAY_AT_ONCE_MAX)
        self._busy = f"{connections_max} connections are open, which is all that http.connections_max allows"

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            self._run(self._serve, self._places, request, client_address)
        else:
            self._turned_away.acquire()  # until then, who comes waits in the backlog
            self._run(self._turn_away, self._turned_away, request, client_address)

    def _run(self, work: Callable[[Any, Any], None], place: threading.BoundedSemaphore, *of: Any) -> None:
        def run() -> None:
            try:
                work(*of)
            finally:
                place.release()

        threading.Thread(target=run, name="http request", daemon=True).start()

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        self.process_request_thread(request, client_address)

    def _turn_away(self, request: socket.socket, _: Any) -> None:
        reply = Answer.json(503, {"rule": "busy", "reason": f"{self._busy}; try again"})
        about = f"Content-Type: {reply.kind}\r\nContent-Length: {len(reply.body)}\r\nRetry-After: 1\r\n"
        head = f"HTTP/1.1 503 Service Unavailable\r\n{about}Connection: close\r\n\r\n"
        try:
            request.settimeout(FORGOTTEN_WITHIN_S)
            request.sendall(head.encode() + reply.body)
            _forget_the_rest(request)
        except OSError:
            pass  # it has gone already
        finally:
            self.shutdown_request(request)


def _verdict(reasons: dict[str, str]) -> Answer:
    return Answer.json(503 if reasons else 200, {"status": "failing" if reasons else "ok", "reasons": reasons})


def _handler(answer: Callable[[Request], Answer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # a client that sends nothing does not keep a thread
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            length = self._length()
            if isinstance(length, Answer):
                self._refuse(length)
            else:
                headers = {name.lower(): value for name, value in self.headers.items()}
                path, body = self.path.partition("?")[0], self.rfile.read(length)
                self._send(answer(Request(self.command, path, {}, headers, body, lambda: _has_gone(self.connection))))

        def handle_expect_100(self) -> bool:
            """Who asks whether to send its body is told no before it has sent any of it."""
            length = self._length()
            if isinstance(length, Answer):
                self._refuse(length)
                return False
            return super().handle_expect_100()

        def _length(self) -> int | Answer:
            """Of the body, or why it is not taken."""
            length = self.headers.get("Content-Length", "0" if self.command != "POST" else "")
            if not (length.isascii() and length.isdecimal()) or "Transfer-Encoding" in self.headers:
                return Answer.text(411, "a Content-Length is needed")
            if len(length) > 18 or int(length) > BODY_BYTES_MAX:
                return Answer.text(413, f"the body is too long, at most {BODY_BYTES_MAX} bytes are taken")
            return int(length)

        def _refuse(self, reply: Answer) -> None:
            """The body is not used, so what follows on this connection cannot be told apart from it."""
            self.close_connection = True
            self._send(reply)
            _forget_the_rest(self.connection)

        def _send(self, reply: Answer) -> None:
            try:
                self._write(reply)
            except ConnectionError:
                self.close_connection = True  # the client has gone, and takes no answer

        def _write(self, reply: Answer) -> None:
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.kind)
            self.send_header("Content-Length", str(len(reply.body)))
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)

        def version_string(self) -> str:
            return "floodmark"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature of the base class
            """Probes come every few seconds; they are not events."""

    for method in _METHODS:
        setattr(Handler, f"do_{method}", Handler.respond)
    return Handler


def _forget_the_rest(connection: socket.socket) -> None:
    """Read what the client still sends, until it has heard and closes.

    SUBTLE: a connection that is closed with something unread in it is reset. A client that is still sending then sees a
    broken pipe, and one that has just been answered may lose the answer.
    """
    until_s = time.monotonic() + FORGOTTEN_WITHIN_S
    with suppress(OSError):  # it has gone, or its time is up
        connection.shutdown(socket.SHUT_WR)
        while (left_s := until_s - time.monotonic()) > 0:
            connection.settimeout(left_s)
            if not connection.recv(_FORGET_BYTES):
                return


def _has_gone(connection: socket.socket) -> bool:
    """Whether the other side has closed. What it may have sent already is left for whoever reads next."""
    poll = select.poll()
    try:
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(0)) and connection.recv(1, socket.MSG_PEEK) == b""
    except (OSError, ValueError):
        return True
