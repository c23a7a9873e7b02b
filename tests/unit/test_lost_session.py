"""A session that is over is not waited for."""

import random
from collections.abc import Sequence

import pytest
from kazoo.client import KazooState

from floodmark.core.errors import OutcomeUnknown, SessionLost, Unavailable
from floodmark.ledger.engine import CRITICAL, Done, Engine, Write
from floodmark.ledger.session import Session
from floodmark.ledger.store import Committed, Conflicted, Create, Op
from floodmark.ledger.zookeeper import ZooKeeperStore
from tests.support.bus_doubles import FrozenClock
from tests.support.memory_store import MemoryStore


class Ending(MemoryStore):
    """Loses the answer to every write, and then cannot be synced, for the reason given."""

    def __init__(self, reason: Unavailable) -> None:
        super().__init__()
        self.reason = reason
        self.syncs = 0

    def commit(self, ops: Sequence[Op]) -> Committed | Conflicted:
        raise OutcomeUnknown(f"no answer to a write of {ops[0].path}")

    def sync(self) -> None:
        self.syncs += 1
        raise self.reason


def syncs_until_unknown(reason: Unavailable) -> int:
    store = Ending(reason)
    engine = Engine(store, FrozenClock(0), random.Random(1))

    def attempt() -> Done[None] | Write[None]:
        return Write([Create("/floodmark/x", b"")], None)

    with pytest.raises(OutcomeUnknown, match="write x: may have been written, and cannot be looked up"):
        engine.run("write x", CRITICAL, attempt)
    return store.syncs


def test_a_lost_answer_of_a_lost_session_is_unknown_at_once() -> None:
    """It could be looked up only by another session, so nobody waits a whole budget for it."""
    assert syncs_until_unknown(SessionLost("over")) == 1


def test_a_lost_answer_of_a_suspended_session_is_looked_up_for_a_whole_budget() -> None:
    """The connection may come back, and with it the answer."""
    assert syncs_until_unknown(Unavailable("not connected")) == CRITICAL.tries_max


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], Unavailable),
        ([KazooState.CONNECTED, KazooState.SUSPENDED], Unavailable),
        ([KazooState.CONNECTED, KazooState.LOST], SessionLost),
        ([KazooState.CONNECTED, KazooState.LOST, KazooState.CONNECTED], SessionLost),
    ],
)
def test_the_store_says_whether_its_session_can_come_back(states: list[str], expected: type[Unavailable]) -> None:
    """Suspended is Unavailable; lost is SessionLost, although kazoo makes a new session by itself."""
    session = Session(hosts="127.0.0.1:1", timeout_ms=2_000, on_lost=lambda: None)
    for state in states:
        session._changed(state)  # as kazoo would
    with pytest.raises(Unavailable) as caught:
        ZooKeeperStore(session).sync()
    assert type(caught.value) is expected


def test_a_closed_session_is_over() -> None:
    """Whoever closed it will not open it again."""
    session = Session(hosts="127.0.0.1:1", timeout_ms=2_000, on_lost=lambda: None)
    session.close()
    with pytest.raises(SessionLost):
        ZooKeeperStore(session).sync()
