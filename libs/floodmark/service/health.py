"""The service port: /healthz (is the loop turning), /readyz (can it do its work) and /metrics (Prometheus)."""

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from floodmark.core.errors import Unavailable
from floodmark.core.ports import Clock

Check = Callable[[], str | None]
"""None when well, otherwise the reason."""


class Health:
    """What the service says of itself. The loop beats; adapters add the checks that readiness needs."""

    def __init__(self, clock: Clock, *, step_age_max_ms: int) -> None:
        self._clock = clock
        self._step_age_max_ms = step_age_max_ms
        self._last_step_ms = clock.monotonic_ms()
        self._checks: dict[str, Check] = {}

    def beat(self) -> None:
        self._last_step_ms = self._clock.monotonic_ms()

    def require(self, name: str, check: Check) -> None:
        self._checks[name] = check

    def live(self) -> dict[str, str]:
        age_ms = self._clock.monotonic_ms() - self._last_step_ms
        return {"loop": f"has not turned for {age_ms} ms"} if age_ms > self._step_age_max_ms else {}

    def ready(self) -> dict[str, str]:
        reasons = {name: reason for name, check in self._checks.items() if (reason := check())}
        return {**self.live(), **reasons}


BODY_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    kind: str
    body: bytes

    @classmethod
    def json(cls, status: int, value: object) -> "Answer":
        return cls(status, "application/json", json.dumps(value).encode())

    @classmethod
    def text(cls, status: int, text: str) -> "Answer":
        return cls(status, "text/plain", f"{text}\n".encode())


Page = Callable[[Mapping[str, str], bytes], Answer]
"""Given the parts of the path that the pattern names, and the body."""


class ServicePort:
    """A small HTTP server on its own threads. A service may serve pages of its own beside the three that all have."""

    def __init__(self, *, host: str, port: int, health: Health, metrics: CollectorRegistry) -> None:
        self._pages: list[tuple[str, str, re.Pattern[str], Page]] = []
        self.serve("GET", "/healthz", lambda _, __: _verdict(health.live()))
        self.serve("GET", "/readyz", lambda _, __: _verdict(health.ready()))
        self.serve("GET", "/metrics", lambda _, __: Answer(200, CONTENT_TYPE_LATEST, generate_latest(metrics)))
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(self._answer))
        except OSError as error:
            raise Unavailable(f"http port {host}:{port} cannot be opened: {error.strerror}") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_port

    def serve(self, method: str, pattern: str, page: Page) -> None:
        """Serve a page at a path such as `/v1/tables/{table}/segments`."""
        expression = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", pattern))
        self._pages.append((method, pattern, expression, page))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, method: str, path: str, body: bytes) -> Answer:
        found = [(m, page, match) for m, _, exp, page in self._pages if (match := exp.fullmatch(path))]
        for served, page, match in found:
            if served == method:
                return page(match.groupdict(), body)
        if found:
            return Answer.text(405, f"{path} takes {', '.join(m for m, _, _ in found)}")
        known = ", ".join(sorted(pattern for _, pattern, _, _ in self._pages))
        return Answer.text(404, f"no such page; there are {known}")


def _verdict(reasons: dict[str, str]) -> Answer:
    return Answer.json(503 if reasons else 200, {"status": "failing" if reasons else "ok", "reasons": reasons})


def _handler(answer: Callable[[str, str, bytes], Answer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # a client that sends nothing does not keep a thread

        def do_GET(self) -> None:
            self._send(answer("GET", self.path.partition("?")[0], b""))

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal():
                self._send(Answer.text(411, "a Content-Length is needed"))
            elif int(length) > BODY_BYTES_MAX:
                self._send(Answer.text(413, f"the body has {length} bytes, at most {BODY_BYTES_MAX} are taken"))
            else:
                self._send(answer("POST", self.path.partition("?")[0], self.rfile.read(int(length))))

        def _send(self, reply: Answer) -> None:
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.kind)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature of the base class
            """Probes come every few seconds; they are not events."""

    return Handler
