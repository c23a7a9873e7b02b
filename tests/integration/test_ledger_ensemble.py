"""The ledger on three ZooKeepers: members die and come back, lag behind, and answer different clients."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from floodmark.core.buckets import State
from floodmark.core.transitions import AlreadyTrue, Build, Changed, Mode, Reason, Rejected
from floodmark.ledger.engine import Budget, Budgets
from floodmark.ledger.store import Node, Store
from floodmark.local.ports import LOOPBACK, pick_free_ports
from floodmark.local.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, four_letter_word
from tests.support.eventually import eventually
from tests.support.ledger_kit import Kit, segment, zookeeper_store
from tests.support.ledger_workers import LockstepWorker, WaitingClock, insisting, run_in_lockstep, worker_process
from tests.support.memory_store import LaggingStore, MemoryStore, Watched
from tests.support.proxy import TcpProxy

PATIENT = Budgets(critical=Budget("critical", 512, 10, 20))
TASKS = 200
MODES = [Mode.APPEND, Mode.OVERWRITE, Mode.DELETE]


def mode_of(server: ZooKeeperServer) -> str:
    """`leader` or `follower`; empty when it serves nobody."""
    answer = four_letter_word(server.port, "srvr")
    return answer.partition("\nMode: ")[2].partition("\n")[0]


@dataclass
class Outage:
    """Kills one member at one step of a run and starts it again at a later one."""

    ensemble: ZooKeeperEnsemble
    victim: str
    kill_at: int
    restart_at: int
    _killed: ZooKeeperServer | None = None
    over: bool = False

    def step(self, number: int) -> None:
        if number == self.kill_at:
            self._killed = next(s for s in self.ensemble.servers if mode_of(s) == self.victim)
            self._killed.kill()
        elif number == self.restart_at and self._killed is not None:
            self._killed.start()
            self.over = True


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Three ZooKeepers for this module; each test leaves all three running."""
    first, second, third = pick_free_ports(3)
    made = ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble"), (first, second, third))
    made.start()
    yield made
    made.kill()


@pytest.fixture
def root() -> str:
    return uuid.uuid4().hex


@contextmanager
def kit_on(hosts: str, *, seed: int = 1) -> Iterator[tuple[Kit, Watched]]:
    with zookeeper_store(hosts) as store:
        watched = Watched(store)
        yield Kit(watched, clock=WaitingClock(), seed=seed, budgets=PATIENT), watched


# -- one member dies during the run --------------------------------------------------------------------------------


@pytest.mark.stack
@pytest.mark.scenario("L1")
@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_every_append_moves_the_watermark_while_a_member_dies_and_returns(
    ensemble: ZooKeeperEnsemble, root: str, victim: str
) -> None:
    """Appends at the frontier, one after the other: each a success, entry and watermark in one write."""
    outage = Outage(ensemble, victim, kill_at=20, restart_at=60)
    with kit_on(f"{ensemble.hosts}/{root}") as (kit, _):
        header = kit.set_up()
        kit.put(segment("a", 0, 100))
        for hour in range(100):
            outage.step(hour)
            build = insisting(partial(kit.build, hour, Mode.APPEND, f"a{hour}"))
            decision = insisting(partial(kit.commit_one, build, header.incarnation))
            assert isinstance(decision, Changed | AlreadyTrue)
            kit.store.sync()
            assert kit.watermark_hour == hour + 1
        assert kit.states() == dict.fromkeys(range(100), "VALID")
    assert outage.over


@pytest.mark.stack
@pytest.mark.scenario("L9")
@pytest.mark.parametrize("mode", MODES)
def test_a_late_segment_supersedes_while_a_member_dies_and_returns(
    ensemble: ZooKeeperEnsemble, root: str, mode: Mode
) -> None:
    """Between every check and commit a peer on other connections registers a segment: never VALID with old content."""
    outage = Outage(ensemble, "leader", kill_at=5, restart_at=12)
    hosts = f"{ensemble.hosts}/{root}"
    with kit_on(hosts) as (kit, watched), kit_on(hosts, seed=2) as (peer, _):
        incarnation = kit.set_up().incarnation
        kit.put(segment("z", 30, 31))
        for hour in range(16):
            build = _ready_for(kit, hour, mode)
            outage.step(hour)
            watched.before_commit = _Once(partial(_register_late, peer, hour))
            decision = insisting(partial(kit.commit_one, build, incarnation))
            watched.before_commit = lambda _: None
            assert isinstance(decision, Rejected)
            assert decision.reason in (Reason.SUPERSEDED, Reason.SOURCE_NOT_EMPTY)
            kit.store.sync()
            assert kit.state(hour) is (None if mode is Mode.APPEND else State.STALE)
        assert kit.source_differs() == []
    assert outage.over


def _ready_for(kit: Kit, hour: int, mode: Mode) -> Build:
    """The bucket in the state this mode needs, and a build of it."""
    kit.put(segment(f"a{hour}", hour, hour + 1))
    if mode is not Mode.APPEND:
        kit.append(hour, f"first{hour}")
        kit.mark(hour)
    if mode is Mode.DELETE:
        kit.remove(f"a{hour}")
    return kit.build(hour, mode, f"mine{hour}")


def _register_late(peer: Kit, hour: int) -> None:
    insisting(partial(peer.put, segment(f"late{hour}", hour + 0.5, hour + 1)))


@dataclass
class _Once:
    """Acts before the first commit only."""

    act: Callable[[], None]
    done: bool = False

    def __call__(self, _: int) -> None:
        if not self.done:
            self.done = True
            self.act()


@pytest.mark.stack
@pytest.mark.scenario("L14")
def test_two_workers_in_lockstep_make_each_transition_once_while_a_member_dies_and_returns(
    ensemble: ZooKeeperEnsemble, root: str, tmp_path: Path
) -> None:
    """The leader goes in the middle of the run; attempts whose answer was lost with it are still counted once."""
    outage = Outage(ensemble, "leader", kill_at=60, restart_at=130)
    hosts = f"{ensemble.hosts}/{root}"
    with ExitStack() as stack:
        kit, _ = stack.enter_context(kit_on(hosts))
        kit.set_up()
        kit.put(*(segment(f"s{h}", h, h + 1) for h in range(TASKS)))
        workers = [
            LockstepWorker(stack.enter_context(worker_process(hosts, "lockstep", n, tmp_path / f"w{n}.jsonl")), f"w{n}")
            for n in (1, 2)
        ]
        tally = run_in_lockstep(workers, range(TASKS), between=lambda number, _: outage.step(number))
        assert tally.outcomes == {"committed": TASKS, "covered": TASKS}
        assert tally.outcomes.total() == tally.attempts
        eventually(lambda: kit.watermark_hour == TASKS, what="the watermark at the end")
        assert kit.states() == dict.fromkeys(range(TASKS), "VALID")
        assert kit.source_differs() == []
    assert outage.over


# -- a member that lags --------------------------------------------------------------------------------------------


@dataclass
class Unsynced(Watched):
    """The control: a store whose sync does nothing, also when it comes with a read."""

    def sync(self) -> None: ...

    def read_current(self, path: str) -> Node | None:
        return self.read(path)


@pytest.mark.parametrize("synced", [True, False])
def test_a_mark_on_a_lagging_member_is_never_lost_because_it_syncs_first(*, synced: bool) -> None:
    """A bucket became VALID and its source changed where this member has not looked yet. The control shows the loss."""
    leader = MemoryStore()
    writer = Kit(leader)
    writer.set_up()
    writer.put(segment("a", 0, 2))
    behind = LaggingStore(leader)
    store: Store = behind if synced else Unsynced(behind)
    _commit_and_change(writer)
    Kit(store, seed=2).mark(0, event_id="late")
    assert writer.source_differs() == ([] if synced else [0])


def _commit_and_change(writer: Kit) -> None:
    writer.append(0)
    writer.put(segment("late", 0.5, 1))


@dataclass
class LaggingEnsemble:
    """Two members that agree with each other, and a third that hears of it through a proxy."""

    ahead: ZooKeeperServer
    behind: ZooKeeperServer
    wire: TcpProxy


@pytest.fixture
def lagging(tmp_path: Path) -> Iterator[LaggingEnsemble]:
    """The leader's words to member 1 can be held up; member 1 votes and serves its clients as ever."""
    clients, quorum, election = (pick_free_ports(3) for _ in range(3))
    with ExitStack() as stack:
        # Member 3 leads: among equals the highest id wins, and member 1 comes later.
        wire = stack.enter_context(TcpProxy(quorum[2]))

        def member(number: int, leader_port: int) -> ZooKeeperServer:
            lines = zip((1, 2, 3), (quorum[0], quorum[1], leader_port), election, strict=True)
            members = "".join(f"server.{n}={LOOPBACK}:{q}:{e}\n" for n, q, e in lines)
            server = ZooKeeperServer(
                tmp_path,
                clients[number - 1],
                name=f"zookeeper-{number}",
                member_id=number,
                more=f"initLimit=10\nsyncLimit=20\n{members}",
            )
            server.spawn()
            stack.callback(server.kill)
            return server

        second, third = member(2, quorum[2]), member(3, quorum[2])
        for server in (second, third):
            server.await_ready()
        assert mode_of(third) == "leader"
        first = member(1, wire.port)
        first.await_ready()
        yield LaggingEnsemble(third, first, wire)


@pytest.mark.stack
@pytest.mark.parametrize("synced", [True, False])
def test_a_mark_through_a_real_member_that_lags_is_never_lost(
    lagging: LaggingEnsemble, root: str, *, synced: bool
) -> None:
    """Commit and registration go through the leader while its words to another member wait; the mark goes there."""
    with (
        zookeeper_store(f"{lagging.ahead.hosts}/{root}") as ahead,
        zookeeper_store(f"{lagging.behind.hosts}/{root}") as behind,
    ):
        writer, marker = Kit(ahead), Kit(behind if synced else Unsynced(behind), seed=2)
        writer.set_up()
        writer.put(segment("a", 0, 2))
        behind.sync()
        lagging.wire.hold_answers()
        _commit_and_change(writer)
        assert marker.states() == {}, "the member lags"
        marking = threading.Thread(target=lambda: marker.mark(0, event_id="late"), daemon=True)
        marking.start()
        marking.join(1)
        assert marking.is_alive() is synced, "a sync waits for what the leader has to say; without it there is no wait"
        lagging.wire.thaw()
        marking.join(30)
        assert not marking.is_alive()
        ahead.sync()
        assert writer.source_differs() == ([] if synced else [0])


@pytest.mark.stack
@pytest.mark.scenario("Q6")
@pytest.mark.parametrize("synced", [True, False])
def test_a_registry_read_through_a_real_member_that_lags_has_every_change(
    lagging: LaggingEnsemble, root: str, *, synced: bool
) -> None:
    """A change was acknowledged to its writer; a strict query begins at another member. The control shows the loss."""
    with (
        zookeeper_store(f"{lagging.ahead.hosts}/{root}") as ahead,
        zookeeper_store(f"{lagging.behind.hosts}/{root}") as behind,
    ):
        writer, reader = Kit(ahead), Kit(behind, seed=2)
        writer.set_up()
        writer.put(segment("a", 0, 2))
        behind.sync()
        assert set(reader.ledger.registry.snapshot("rides").by_name) == {"a"}
        lagging.wire.hold_answers()
        writer.put(segment("late", 0, 1))
        found: list[set[str]] = []
        registry = reader.ledger.registry
        reading = threading.Thread(
            target=lambda: found.append(set(registry.snapshot("rides", synced=synced).by_name)), daemon=True
        )
        reading.start()
        reading.join(1)
        assert reading.is_alive() is synced, "a sync waits for what the leader has to say"
        lagging.wire.thaw()
        reading.join(30)
        assert found == [{"a", "late"} if synced else {"a"}]


@pytest.mark.stack
def test_clients_of_different_members_see_each_others_writes_in_time(ensemble: ZooKeeperEnsemble, root: str) -> None:
    """Registered through one, built through the next, marked through the third, over and over: no mark is lost."""
    with ExitStack() as stack:
        kits = [
            stack.enter_context(kit_on(f"{server.hosts}/{root}", seed=n))[0]
            for n, server in enumerate(ensemble.servers)
        ]
        kits[0].set_up()
        kits[0].put(segment("a", 0, 41))
        for kit in kits:
            kit.store.sync()
        for hour in range(40):
            registrar, worker, marker = (kits[(hour + n) % 3] for n in range(3))
            worker.store.sync()
            assert isinstance(worker.append(hour, f"a{hour}"), Changed)
            registrar.put(segment(f"late{hour}", hour, hour + 1))
            marker.mark(hour, event_id=f"late{hour}")
        kits[0].store.sync()
        assert kits[0].states() == dict.fromkeys(range(40), "STALE")
        assert kits[0].source_differs() == []
