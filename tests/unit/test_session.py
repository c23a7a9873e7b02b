"""The ZooKeeper session as the pump sees it: connected or not, and never again once lost."""

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
