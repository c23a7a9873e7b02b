"""Which ports a stack uses, and what is said about those it cannot have."""

import os
import re
import socket
from collections.abc import Iterable

import pytest

from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.local.ports import LOOPBACK, choose_ports, is_free, pick_free_ports, require_free

DEFAULTS = {"zookeeper": 2181, "kafka": 9092}


def choose(
    *, remembered: dict[str, int] | None = None, asked: dict[str, int] | None = None, taken: Iterable[int] = ()
) -> dict[str, int]:
    return choose_ports(
        defaults=DEFAULTS,
        remembered=remembered or {},
        asked=asked or {},
        free=lambda port: port not in taken,
        pick=lambda avoid: max([29_999, *avoid]) + 1,
    )


@pytest.mark.parametrize(
    ("remembered", "asked", "expected"),
    [
        ({}, {}, 2181),
        ({"zookeeper": 2200}, {}, 2200),
        ({"zookeeper": 2200}, {"zookeeper": 2300}, 2300),
        ({}, {"zookeeper": 0}, 30_000),
        ({"zookeeper": 2200}, {"zookeeper": 0}, 2200),
    ],
)
def test_what_is_asked_for_wins_then_what_was_used_then_the_default(
    remembered: dict[str, int], asked: dict[str, int], expected: int
) -> None:
    """Zero means any, and the port used before is as good as any."""
    assert choose(remembered=remembered, asked=asked) == {"zookeeper": expected, "kafka": 9092}


def test_any_port_is_a_new_one_when_the_one_used_before_is_taken() -> None:
    """Nobody who asks for any port is told that a port is taken."""
    assert choose(remembered={"zookeeper": 2200}, asked={"zookeeper": 0}, taken=[2200])["zookeeper"] == 30_000


def test_ports_picked_together_differ() -> None:
    """Each pick avoids those before it."""
    assert len(set(choose(asked={"zookeeper": 0, "kafka": 0}).values())) == 2
    assert len(set(pick_free_ports(20))) == 20


def test_taken_port_is_reported_with_its_use_and_its_holder() -> None:
    """The message names the port, what it was for, and the process that has it."""
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        expected = re.escape(f"port {port} for ZooKeeper is taken by pid {os.getpid()} (")
        with pytest.raises(Unavailable, match=expected):
            require_free({"ZooKeeper": port})
    assert is_free(port)


def test_one_port_for_two_servers_is_refused() -> None:
    """Two flags with the same number are a mistake worth its own words."""
    with pytest.raises(InvalidInput, match="port 9092 is asked for both Kafka and ZooKeeper"):
        require_free({"Kafka": 9092, "ZooKeeper": 9092})
