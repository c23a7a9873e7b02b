"""The ledger over connections that break: a proxy between kazoo and a real ZooKeeper loses requests and answers."""

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import pytest
from kazoo.exceptions import BadVersionError, ConnectionLoss

from floodmark.core.buckets import State
from floodmark.core.errors import InvalidInput, OutcomeUnknown, Unavailable
from floodmark.core.transitions import AlreadyTrue, Build, Changed, Mode
from floodmark.ledger import paths
from floodmark.ledger.engine import Budget, Budgets
from floodmark.ledger.leadership import alive
from floodmark.ledger.session import Session
from floodmark.ledger.store import Create
from floodmark.ledger.zookeeper import ZooKeeperStore
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.eventually import eventually
from tests.support.ledger_kit import Kit, segment, zookeeper_store
from tests.support.ledger_workers import WaitingClock
from tests.support.memory_store import Watched
from tests.support.proxy import Fault, ZooKeeperProxy

pytestmark = pytest.mark.stack
MODES = [Mode.APPEND, Mode.OVERWRITE, Mode.DELETE]
# Short waits, and enough of them to outlast a reconnection.
PATIENT = Budgets(critical=Budget("critical", 128, 10, 20))
SESSION_MS = 2_000
"""The shortest that the server grants."""


@dataclass
class Bench:
    """One client behind a proxy and a peer with a connection of its own, on the same ledger."""

    proxy: ZooKeeperProxy
    session: Session
    watched: Watched
    kit: Kit
    peer: Kit
    lost: threading.Event

    @property
    def connected(self) -> bool:
        return self.session.connected


@contextmanager
def bench_on(server: ZooKeeperServer, *, session_ms: int = 10_000) -> Iterator[Bench]:
    root, lost = uuid.uuid4().hex, threading.Event()
    with ExitStack() as stack:
        proxy = stack.enter_context(ZooKeeperProxy(server.port))
        peer = Kit(stack.enter_context(zookeeper_store(f"{server.hosts}/{root}")), seed=2)
        session = Session(hosts=f"{proxy.address}/{root}", timeout_ms=session_ms, on_lost=lost.set)
        session.open(timeout_ms=30_000)
        stack.callback(session.close)
        stack.callback(proxy.thaw)
        stack.callback(proxy.heal)
        watched = Watched(ZooKeeperStore(session))
        peer.set_up()
        yield Bench(proxy, session, watched, Kit(watched, clock=WaitingClock(), budgets=PATIENT), peer, lost)


@pytest.fixture
def bench(zookeeper: ZooKeeperServer) -> Iterator[Bench]:
    with bench_on(zookeeper) as made:
        yield made


def ready_for(bench: Bench, mode: Mode) -> Build:
    """Bucket 0 in the state this mode needs, and a build of it by the client behind the proxy."""
    peer = bench.peer
    peer.put(segment("a", 0, 1), segment("z", 5, 6))
    if mode is not Mode.APPEND:
        peer.append(0, "first")
        peer.put(segment("a", 0, 1, crc=2))
        peer.mark(0)
    if mode is Mode.DELETE:
        peer.remove("a")
    return bench.kit.build(0, mode, "mine")


def shard_version(bench: Bench) -> int:
    """Counts the writes to the only shard; -1 before the first."""
    node = bench.peer.store.read(paths.shard("rides_hourly", 0))
    return -1 if node is None else node.version


# -- one answer or one request lost --------------------------------------------------------------------------------


@pytest.mark.scenario("L4")
@pytest.mark.parametrize("mode", MODES)
def test_a_commit_that_landed_is_a_success_although_its_answer_was_lost(bench: Bench, mode: Mode) -> None:
    """The connection breaks after the server answered: found by attempt id, one transition, files kept."""
    build = ready_for(bench, mode)
    before = shard_version(bench)
    bench.proxy.plan(Fault.ANSWER_LOST)
    assert isinstance(bench.kit.commit_one(build), AlreadyTrue)
    entry = bench.peer.entry(0)
    assert entry is not None
    assert (entry.state, entry.attempt_id, entry.files) == (State.VALID, "mine", build.files)
    assert shard_version(bench) == before + 1
    assert bench.kit.outcomes[-1][1].unknowns == 1
    assert bench.proxy.planned == 0


@pytest.mark.scenario("L5")
@pytest.mark.parametrize("mode", MODES)
def test_a_commit_that_never_arrived_is_made_again(bench: Bench, mode: Mode) -> None:
    """Two connections in a row break before the request arrives: retried, one transition."""
    build = ready_for(bench, mode)
    before = shard_version(bench)
    bench.proxy.plan(Fault.REQUEST_LOST, Fault.REQUEST_LOST)
    assert isinstance(bench.kit.commit_one(build), Changed)
    assert shard_version(bench) == before + 1
    assert bench.kit.outcomes[-1][1].unknowns == 2
    assert bench.peer.state(0) is State.VALID


@pytest.mark.scenario("L6")
@pytest.mark.parametrize("mode", MODES)
def test_a_landed_commit_is_ours_although_a_peer_marked_the_bucket_before_the_look(bench: Bench, mode: Mode) -> None:
    """A change is registered and marked after the write and before its author has reconnected."""
    build = ready_for(bench, mode)

    def change() -> None:
        bench.peer.put(segment("late", 0.5, 1))
        bench.peer.mark(0, event_id="late")

    bench.proxy.after_loss = change
    bench.proxy.plan(Fault.ANSWER_LOST)
    assert isinstance(bench.kit.commit_one(build), AlreadyTrue)
    entry = bench.peer.entry(0)
    assert entry is not None
    assert (entry.state, entry.attempt_id, entry.files) == (State.STALE, "mine", build.files)


@pytest.mark.scenario("L4")
def test_a_lost_answer_takes_no_bucket_of_a_group_with_it(bench: Bench) -> None:
    """Four buckets in one write: all four are found, and the watermark moved once over all of them."""
    bench.peer.put(segment("a", 0, 4))
    builds = [bench.kit.build(hour, attempt=f"g{hour}") for hour in range(4)]
    bench.proxy.plan(Fault.ANSWER_LOST)
    decisions = bench.kit.commit(*builds)
    assert [type(d) for d in decisions.values()] == [AlreadyTrue] * 4
    assert shard_version(bench) == 0
    assert bench.peer.watermark_hour == 4


@pytest.mark.scenario("L4")
@pytest.mark.scenario("L5")
@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.REQUEST_LOST])
def test_a_registry_change_happens_once_whatever_is_lost(bench: Bench, fault: Fault) -> None:
    """One version, one event in the outbox, the segment registered."""
    before = bench.peer.ledger.registry.header("rides").version
    bench.proxy.plan(fault)
    bench.kit.put(segment("a", 0, 1))
    registry = bench.peer.ledger.registry
    assert registry.header("rides").version == before + 1
    assert [c.name for event in registry.outbox("rides") for c in event.changes] == ["a"]
    assert set(registry.snapshot("rides").by_name) == {"a"}
    assert bench.proxy.planned == 0


@pytest.mark.scenario("L4")
@pytest.mark.scenario("L5")
@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.REQUEST_LOST])
def test_a_mark_happens_once_whatever_is_lost(bench: Bench, fault: Fault) -> None:
    """STALE with its cause, by one write."""
    bench.peer.put(segment("a", 0, 1))
    bench.peer.append(0)
    before = shard_version(bench)
    bench.proxy.plan(fault)
    bench.kit.mark(0, event_id="the one")
    entry = bench.peer.entry(0)
    assert entry is not None
    assert entry.cause is not None
    assert (entry.state, entry.cause.event_id) == (State.STALE, "the one")
    assert shard_version(bench) == before + 1
    assert bench.proxy.planned == 0


def test_an_answer_lost_at_the_commit_and_then_a_source_that_moved_is_still_a_success(bench: Bench) -> None:
    """What happened, happened: the files are named by the entry, so reporting SUPERSEDED would delete them."""
    build = ready_for(bench, Mode.APPEND)
    bench.proxy.after_loss = lambda: bench.peer.put(segment("late", 0.5, 1))
    bench.proxy.plan(Fault.ANSWER_LOST)
    assert isinstance(bench.kit.commit_one(build), AlreadyTrue)


def test_a_slow_network_costs_time_and_nothing_else(bench: Bench) -> None:
    """Writes that arrive late arrive once."""
    build = ready_for(bench, Mode.APPEND)
    bench.proxy.delay_ms = 300
    assert isinstance(bench.kit.commit_one(build), Changed)
    outcome = bench.kit.outcomes[-1][1]
    assert (outcome.tries, outcome.unknowns) == (1, 0)
    assert bench.lost.is_set() is False


# -- no connection at all ------------------------------------------------------------------------------------------


def test_nothing_is_attempted_without_a_connection_and_everything_works_after_it_is_back(bench: Bench) -> None:
    """While cut: reads, commits, marks and registrations are Unavailable at once, and nothing was written."""
    build = ready_for(bench, Mode.APPEND)
    bench.proxy.cut()
    eventually(lambda: not bench.connected, what="the session is suspended")
    acts: list[Callable[[], object]] = [
        bench.kit.states,
        lambda: bench.kit.ledger.views.commit("rides_hourly", bench.peer.header.incarnation, [build]),
        lambda: bench.kit.mark(0),
        lambda: bench.kit.put(segment("b", 1, 2)),
    ]
    for act in acts:
        with pytest.raises(Unavailable):
            act()
    assert bench.peer.states() == {}
    bench.proxy.heal()
    eventually(lambda: bench.connected, what="the session is back")
    assert isinstance(bench.kit.commit_one(build), Changed)
    assert bench.peer.state(0) is State.VALID
    assert not bench.lost.is_set()


@pytest.mark.parametrize("mode", MODES)
def test_a_commit_cut_off_between_its_decision_and_its_write_never_claims_success(bench: Bench, mode: Mode) -> None:
    """Unavailable or OutcomeUnknown; and the same attempt, tried again later, succeeds once."""
    build = ready_for(bench, mode)
    incarnation, before = bench.peer.header.incarnation, bench.peer.entry(0)
    bench.watched.before_commit = lambda _: bench.proxy.cut()
    with pytest.raises((Unavailable, OutcomeUnknown)):
        bench.kit.commit_one(build, incarnation)
    assert bench.peer.entry(0) == before
    bench.watched.before_commit = lambda _: None
    bench.proxy.heal()
    eventually(lambda: bench.connected, what="the session is back")
    assert isinstance(bench.kit.commit_one(build, incarnation), Changed)


def test_a_landed_commit_that_cannot_be_looked_up_is_unknown_and_keeps_its_files(bench: Bench) -> None:
    """The answer is lost and the connection stays away: neither success nor failure is claimed."""
    build = ready_for(bench, Mode.APPEND)
    incarnation = bench.peer.header.incarnation
    bench.proxy.after_loss = bench.proxy.cut
    bench.proxy.plan(Fault.ANSWER_LOST)
    with pytest.raises(OutcomeUnknown, match=r"APPEND of rides_hourly bucket 0: may have been written"):
        bench.kit.commit_one(build, incarnation)
    assert bench.peer.state(0) is State.VALID
    bench.proxy.heal()
    eventually(lambda: bench.connected, what="the session is back")
    assert isinstance(bench.kit.commit_one(build, incarnation), AlreadyTrue)


def test_a_session_that_ends_is_reported_and_its_liveness_node_goes(zookeeper: ZooKeeperServer) -> None:
    """Cut for longer than the session timeout: others take the process for dead, and it learns that it is."""
    with bench_on(zookeeper, session_ms=SESSION_MS) as bench:
        bench.session.announce("worker", "w1", {"pid": 1})
        assert alive(bench.peer.store, "worker") == {"w1"}
        bench.proxy.cut()
        eventually(lambda: not alive(bench.peer.store, "worker"), what="the liveness node is gone")
        assert not bench.lost.is_set(), "nobody could have told it yet"
        bench.proxy.heal()
        assert bench.lost.wait(30), "the session's end is reported"
        with pytest.raises(Unavailable):
            bench.kit.put(segment("zombie", 0, 1))
        assert not bench.peer.ledger.registry.snapshot("rides").by_name


@pytest.mark.parametrize("mode", MODES)
def test_the_late_write_of_a_frozen_client_does_not_land(zookeeper: ZooKeeperServer, mode: Mode) -> None:
    """Its commit was under way when everything froze. Its session ended meanwhile; then the commit goes on its way."""
    with bench_on(zookeeper, session_ms=SESSION_MS) as bench:
        build = ready_for(bench, mode)
        incarnation, before = bench.peer.header.incarnation, bench.peer.entry(0)
        bench.session.announce("worker", "w1", {"pid": 1})
        bench.watched.before_commit = lambda _: bench.proxy.freeze()
        errors: list[Exception] = []

        def commit() -> None:
            try:
                bench.kit.commit_one(build, incarnation)
            except (Unavailable, OutcomeUnknown) as error:
                errors.append(error)

        zombie = threading.Thread(target=commit, daemon=True)
        zombie.start()
        eventually(lambda: not alive(bench.peer.store, "worker"), what="the session ended")
        bench.proxy.thaw()
        assert bench.lost.wait(30), "the session's end is reported"
        zombie.join(30)
        assert [type(e) for e in errors] == [OutcomeUnknown]
        bench.peer.store.sync()
        assert bench.peer.entry(0) == before


# -- what kazoo and ZooKeeper do by themselves ---------------------------------------------------------------------


def test_kazoos_own_retry_reports_bad_version_for_a_write_that_landed(bench: Bench) -> None:
    """A documented trap, and the reason for the attempt id: kazoo repeats the write it had already made."""
    client, path = bench.session.client, "/trap"
    client.create(path, b"before")
    bench.proxy.plan(Fault.ANSWER_LOST)
    with pytest.raises(BadVersionError):
        client.retry(client.set, path, b"mine", version=0)
    assert client.get(path)[0] == b"mine"


def test_a_request_above_a_megabyte_is_refused_by_name_and_the_connection_stays(bench: Bench) -> None:
    """The engine says which node is too large; ZooKeeper itself would only drop the connection."""
    connections = bench.proxy.connections
    writes = bench.proxy.writes
    randomness = random.Random(1)  # compression must not make it small
    huge = replace(segment("huge", 0, 1), path=randomness.randbytes(1_200_000).hex())
    with pytest.raises(InvalidInput, match=r"^node-too-large: /floodmark/tables/rides/slices/0 would have \d+ bytes"):
        bench.kit.put(huge)
    assert bench.connected
    assert bench.proxy.connections == connections
    assert bench.proxy.writes == writes, "nothing was sent"


def test_zookeeper_answers_a_request_above_a_megabyte_by_dropping_the_connection(bench: Bench) -> None:
    """A documented trap: it shows as ConnectionLoss, which tells nothing of the size and ends nothing of the cause."""
    connections = bench.proxy.connections
    with pytest.raises(ConnectionLoss):
        bench.session.client.create("/large", b"x" * 1_048_576)
    eventually(lambda: bench.proxy.connections > connections, what="kazoo connected again")
    eventually(lambda: bench.connected)
    with pytest.raises(OutcomeUnknown):
        bench.watched.inner.commit([Create("/large", b"x" * 1_048_576)])
    assert bench.peer.store.read("/large") is None
