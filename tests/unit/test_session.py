"""The ZooKeeper session as the pump sees it: connected or not, and never again once lost."""

import pytest
from kazoo.client import KazooState

from floodmark.ledger.session import Session


def new_session(lost: list[str]) -> Session:
    return Session(hosts="127.0.0.1:1", timeout_ms=2_000, on_lost=lambda: lost.append("lost"))


def test_a_suspended_session_is_not_connected_and_may_come_back() -> None:
    """Whether it lives is unknown while it is suspended, so nothing may proceed on it."""
    lost: list[str] = []
    session = new_session(lost)
    seen = []
    for state in (KazooState.CONNECTED, KazooState.SUSPENDED, KazooState.CONNECTED):
        session._changed(state)
        seen.append(session.connected)
    assert (seen, lost) == ([True, False, True], [])


def test_a_lost_session_stays_lost_although_the_client_connects_again() -> None:
    """kazoo makes a new session by itself; work of the old one must not be committed under it."""
    lost: list[str] = []
    session = new_session(lost)
    for state in (KazooState.CONNECTED, KazooState.SUSPENDED, KazooState.LOST, KazooState.CONNECTED):
        session._changed(state)
    assert not session.connected
    assert lost == ["lost"]


@pytest.mark.parametrize("timeout_ms", [1_000, 2_000, 10_000, 60_000])
def test_the_longest_wait_between_two_tries_to_connect_is_short_against_the_session(timeout_ms: int) -> None:
    """A server that was away gives a session its full time again; whoever comes once in that time may come too late."""
    retry = Session(hosts="127.0.0.1:1", timeout_ms=timeout_ms, on_lost=lambda: None).client._conn_retry
    longest_s = retry.max_delay * (1 + retry.max_jitter)
    assert longest_s <= timeout_ms / 3_000
