"""What a service says of itself, as values and over HTTP."""

import http.client
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import CollectorRegistry, Counter
from structlog.testing import capture_logs

from floodmark.core.errors import Unavailable
from floodmark.service.health import START, Health
from floodmark.service.port import BODY_BYTES_MAX, Answer, Request, ServicePort
from tests.support.bus_doubles import FrozenClock
from tests.support.eventually import ANSWERED_WITHIN_S, eventually


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def health(clock: FrozenClock) -> Health:
    return Health(clock, step_age_max_ms=1_000)


@pytest.fixture
def port(health: Health) -> Iterator[ServicePort]:
    metrics = CollectorRegistry()
    Counter("floodmark_things", "Things", registry=metrics).inc(3)
    made = ServicePort(host="127.0.0.1", port=0, health=health, metrics=metrics)
    yield made
    made.close()


def get(port: ServicePort, page: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port.port, timeout=ANSWERED_WITHIN_S)
    connection.request("GET", page)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_a_loop_is_alive_until_it_has_stood_still_too_long(health: Health, clock: FrozenClock) -> None:
    """Exactly the allowed age is well, one more is not, and the next turn makes it well again."""
    clock.ms += 1_000
    assert health.live() == {}
    clock.ms += 1
    assert health.live() == {"loop": "has not turned for 1001 ms"}
    health.beat()
    assert health.live() == {}


def test_ready_needs_every_check_and_names_each_that_fails(health: Health, clock: FrozenClock) -> None:
    """Reasons carry the name of what is wrong; a check asked for again replaces the one before."""
    health.require("zookeeper", lambda: "not connected")
    health.require("start", lambda: "still starting")
    health.require("kafka", lambda: None)
    assert health.ready() == {"zookeeper": "not connected", "start": "still starting"}
    health.require("start", lambda: None)
    clock.ms += 2_000
    assert health.ready() == {"loop": "has not turned for 2000 ms", "zookeeper": "not connected"}


def test_pages_answer_200_when_well_and_503_with_the_reasons(port: ServicePort, health: Health) -> None:
    """A service that is alive but not ready fails one page and not the other."""
    assert get(port, "/readyz") == (200, '{"status": "ok", "reasons": {}}')
    health.require("zookeeper", lambda: "not connected")
    status, text = get(port, "/readyz?verbose")
    assert (status, json.loads(text)["reasons"]) == (503, {"zookeeper": "not connected"})
    assert get(port, "/healthz")[0] == 200


def test_metrics_are_in_the_prometheus_text_form(port: ServicePort) -> None:
    """Only this service's own registry is shown."""
    status, text = get(port, "/metrics")
    assert status == 200
    assert "floodmark_things_total 3.0" in text
    assert "python_info" not in text


def test_an_unknown_page_tells_which_there_are(port: ServicePort) -> None:
    """404 with the list."""
    assert get(port, "/") == (404, "no such page; there are /healthz, /metrics, /readyz\n")


def test_a_page_that_is_not_there_yet_is_no_unknown_page(port: ServicePort, health: Health) -> None:
    """While the service starts its pages are missing: 503, try again. A 404 would be taken for an answer."""
    health.require(START, lambda: "still starting")
    status, text = get(port, "/v1/sql")
    assert (status, json.loads(text)) == (503, {"rule": "starting", "reason": "still starting"})
    health.require(START, lambda: None)
    assert get(port, "/v1/sql")[0] == 404


def test_a_taken_port_is_named(health: Health) -> None:
    """The error says which port and what the system says about it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"http port 127.0.0.1:{number} cannot be opened: Address already in use"):
            ServicePort(host="127.0.0.1", port=number, health=health, metrics=CollectorRegistry())


def test_a_page_takes_its_methods_and_says_which(port: ServicePort) -> None:
    """HEAD is GET without the body; whatever else is 405 with the list, never an error of the server."""
    port.serve("POST", "/v1/{name}", lambda request: Answer.json(200, dict(request.parameters)))
    for method, status in (("HEAD", 200), ("POST", 405), ("PUT", 405), ("TRACE", 405), ("OPTIONS", 405)):
        connection = http.client.HTTPConnection("127.0.0.1", port.port, timeout=ANSWERED_WITHIN_S)
        connection.request(method, "/healthz", headers={"Content-Length": "0"})
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("Allow")) == (status, None if status == 200 else "GET")
        assert method != "HEAD" or answer.read() == b""
        connection.close()


def test_a_page_gets_the_parts_of_its_path_and_the_body(port: ServicePort) -> None:
    """Unquoted, and a slash that was quoted does not make another part."""
    port.serve(
        "POST", "/v1/{name}/x", lambda r: Answer.json(200, [r.parameters["name"], r.body.decode(), r.headers["x-a"]])
    )
    connection = http.client.HTTPConnection("127.0.0.1", port.port, timeout=ANSWERED_WITHIN_S)
    connection.request("POST", "/v1/a%2Fb%20c/x?q", b"body", {"X-A": "1"})
    assert json.loads(connection.getresponse().read()) == ["a/b c", "body", "1"]


def test_a_client_that_hangs_up_is_noticed_while_its_page_works(port: ServicePort) -> None:
    """One that waits is not taken for gone."""
    seen: list[bool] = []
    noticed = threading.Event()

    def page(request: Request) -> Answer:
        seen.append(request.has_gone())
        deadline_s = time.monotonic() + 20
        while not request.has_gone() and time.monotonic() < deadline_s:
            noticed.wait(0.01)
        seen.append(request.has_gone())
        noticed.set()
        return Answer.text(200, "nobody reads this")

    port.serve("GET", "/slow", page)
    with socket.create_connection(("127.0.0.1", port.port)) as client:
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        while not seen:
            noticed.wait(0.01)
    assert noticed.wait(20)
    assert seen == [False, True]
    assert get(port, "/healthz")[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Content-Length": "x"}, 411), ({"Content-Length": "9" * 30}, 413), ({"Transfer-Encoding": "chunked"}, 411)],
)
def test_a_body_of_unknown_or_immense_length_is_refused(
    port: ServicePort, headers: dict[str, str], status: int
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port.port, timeout=ANSWERED_WITHIN_S)
    connection.putrequest("POST", "/healthz")
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Connection")) == (status, "close")


# -- clients whose body is refused -------------------------------------------------------------------------------------

PIECE = bytes(64 * 1024)
MORE_THAN_ANY_BUFFER = 64 * 1024 * 1024


def sending(port: ServicePort, length: int, *headers: str) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port.port), timeout=ANSWERED_WITHIN_S)
    lines = ["POST /healthz HTTP/1.1", "Host: x", f"Content-Length: {length}", *headers, "", ""]
    client.sendall("\r\n".join(lines).encode())
    return client


def test_a_page_that_raises_is_answered_with_500_and_logged(port: ServicePort) -> None:
    """Not with a closed connection, after which nobody knows whether to try again."""

    def page(_: Request) -> Answer:
        raise ZeroDivisionError("a bug")

    port.serve("GET", "/broken/{thing}", page)
    with capture_logs() as logs:
        status, text = get(port, "/broken/one")
    assert (status, json.loads(text)["rule"]) == (500, "internal")
    assert [(line["event"], line["page"]) for line in logs] == [("request_failed", "/broken/{thing}")]


def test_a_client_that_sends_all_of_a_body_that_is_refused_reads_why(
    port: ServicePort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may look for an answer only when it has sent everything, and must not meet a broken pipe instead."""
    monkeypatch.setattr("floodmark.service.port.FORGOTTEN_WITHIN_S", ANSWERED_WITHIN_S)
    with sending(port, MORE_THAN_ANY_BUFFER) as client:
        for _ in range(MORE_THAN_ANY_BUFFER // len(PIECE)):
            client.sendall(PIECE)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert (answer.status, answer.read()) == (413, b"the body is too long, at most 1048576 bytes are taken\n")


def test_a_client_that_asks_first_is_told_no_before_it_has_sent_anything(port: ServicePort) -> None:
    """As curl asks. One whose body is taken is told to go on."""
    with sending(port, BODY_BYTES_MAX + 1, "Expect: 100-continue") as client:
        assert client.makefile("rb").readline().startswith(b"HTTP/1.1 413 ")
    with sending(port, BODY_BYTES_MAX, "Expect: 100-continue") as client:
        assert client.makefile("rb").readline().startswith(b"HTTP/1.1 100 ")


def test_a_client_that_never_ends_a_body_that_is_refused_is_cut_off(
    port: ServicePort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.service.port.FORGOTTEN_WITHIN_S", 0.3)
    with sending(port, 10**17) as client:

        def is_cut_off() -> bool:
            try:
                client.sendall(PIECE)
            except ConnectionError:
                return True
            return False

        eventually(is_cut_off, within_s=ANSWERED_WITHIN_S, what="the end of the connection")


# -- many at once --------------------------------------------------------------------------------------------------


def crowd(port: ServicePort, count: int) -> list[tuple[int, str]]:
    """What each of so many clients gets, who come in the same moment. A reset raises."""
    together = threading.Barrier(count)

    def ask(_: int) -> tuple[int, str]:
        together.wait()
        return get(port, "/slow")

    with ThreadPoolExecutor(count) as clients:
        return list(clients.map(ask, range(count)))


def test_clients_that_come_at_once_are_all_answered(port: ServicePort) -> None:
    """Sixty-four, each of whom keeps its thread busy for a moment."""
    everybody = threading.Barrier(64)
    port.serve("GET", "/slow", lambda _: Answer.text(200, str(everybody.wait(ANSWERED_WITHIN_S) >= 0)))
    assert crowd(port, 64) == [(200, "True\n")] * 64


def test_the_system_keeps_those_who_wait_to_be_accepted(port: ServicePort) -> None:
    """Nobody accepts while they come. With Python's own backlog of five, the others are reset or wait for seconds."""
    accepting = threading.Event()
    real = port._server.get_request
    port._server.get_request = lambda: (accepting.wait(ANSWERED_WITHIN_S), real())[1]  # type: ignore[method-assign]
    clients = []
    try:
        for _ in range(200):
            clients.append(socket.create_connection(("127.0.0.1", port.port), timeout=ANSWERED_WITHIN_S))
            clients[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        accepting.set()
        assert [client.recv(12) for client in clients] == [b"HTTP/1.1 200"] * 200
    finally:
        accepting.set()
        for client in clients:
            client.close()


def test_more_clients_than_may_be_at_once_are_told_503_and_none_is_reset(health: Health) -> None:
    """Eight are served; the others hear at once that they should come again, and then can."""
    port = ServicePort(host="127.0.0.1", port=0, health=health, metrics=CollectorRegistry(), connections_max=8)
    turned_away, all_told = itertools.count(1), threading.Event()

    def slow(_: Request) -> Answer:
        assert all_told.wait(ANSWERED_WITHIN_S), "the others were told"
        return Answer.text(200, "done")

    def ask(_: int) -> tuple[int, str]:
        answer = get(port, "/slow")
        if answer[0] == 503 and next(turned_away) == 56:
            all_told.set()
        return answer

    try:
        port.serve("GET", "/slow", slow)
        with ThreadPoolExecutor(64) as clients:
            answers = list(clients.map(ask, range(64)))
        told = {status: [text for s, text in answers if s == status] for status, _ in answers}
        assert {status: len(texts) for status, texts in told.items()} == {200: 8, 503: 56}
        assert {json.loads(text)["rule"] for text in told[503]} == {"busy"}
        eventually(lambda: get(port, "/healthz")[0] == 200, what="a place")
    finally:
        port.close()
