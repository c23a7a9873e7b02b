"""What a service says of itself, as values and over HTTP."""

import http.client
import json
import socket
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from floodmark.core.errors import Unavailable
from floodmark.service.health import Health
from floodmark.service.port import ServicePort
from tests.support.bus_doubles import FrozenClock


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
    connection = http.client.HTTPConnection("127.0.0.1", port.port, timeout=10)
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


def test_a_taken_port_is_named(health: Health) -> None:
    """The error says which port and what the system says about it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"http port 127.0.0.1:{number} cannot be opened: Address already in use"):
            ServicePort(host="127.0.0.1", port=number, health=health, metrics=CollectorRegistry())
