"""What every store promises, held by the store in memory and by ZooKeeper; and the traps of kazoo, each seen once."""

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
from kazoo.exceptions import BadVersionError, NoNodeError, RolledBackError, RuntimeInconsistency

from floodmark.core.errors import InvalidInput, OutcomeUnknown, Unavailable
from floodmark.core.ports import SystemClock
from floodmark.ledger.engine import Budget, Engine, Write
from floodmark.ledger.session import Session
from floodmark.ledger.store import (
    NODE_BYTES_MAX,
    WRITE_BYTES_MAX,
    Check,
    Committed,
    Conflicted,
    Create,
    Delete,
    Node,
    Op,
    Set,
    Store,
    WatchableStore,
    check_sizes,
)
from floodmark.ledger.zookeeper import ZooKeeperStore
from floodmark.local.zookeeper import ZooKeeperServer
from tests.simulation.hub import Hub
from tests.simulation.stepped import Stepped, stepped_store
from tests.simulation.store import ObservedStore
from tests.support.eventually import eventually
from tests.support.ledger_kit import zookeeper_store
from tests.support.memory_store import MemoryStore, Watched
from tests.support.proxy import Fault, TcpProxy, ZooKeeperProxy

A, B, C = "/floodmark/a", "/floodmark/b", "/floodmark/c"


@pytest.fixture(params=["memory", "simulated", pytest.param("zookeeper", marks=pytest.mark.stack)])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Beside those of every other test, the simulator's session over the store in memory."""
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "simulated":
        yield cast(Store, stepped_store())
    else:
        server = request.getfixturevalue("zookeeper")
        with zookeeper_store(f"{server.hosts}/{uuid.uuid4().hex}") as made:
            yield made


def having(store: Store, *nodes: str) -> None:
    assert isinstance(store.commit([Create(path, b"0") for path in nodes]), Committed)


def contents(store: Store, *nodes: str) -> list[Node | None]:
    store.sync()
    return store.read_many(nodes)


# -- versions ------------------------------------------------------------------------------------------------------


def test_a_node_begins_at_version_0_and_each_set_adds_one(store: Store) -> None:
    """The answer tells the new version, so that the next write needs no read."""
    assert store.commit([Create(A, b"x")]) == Committed((0,))
    assert store.read(A) == Node(b"x", 0)
    assert store.commit([Set(A, b"y", 0)]) == Committed((1,))
    assert store.commit([Set(A, b"y", 1)]) == Committed((2,)), "writing the same bytes counts too"
    assert store.read(A) == Node(b"y", 2)


@pytest.mark.parametrize("version", [0, 2, 7])
def test_a_set_at_another_version_changes_nothing(store: Store, version: int) -> None:
    """Compare and set, whether the writer is behind or ahead."""
    having(store, A)
    store.commit([Set(A, b"1", 0)])
    op = Set(A, b"mine", version)
    assert store.commit([op]) == Conflicted(op)
    assert store.read(A) == Node(b"1", 1)


def test_version_minus_1_means_any(store: Store) -> None:
    """For set, check and delete alike; the node must still exist."""
    having(store, A)
    assert store.commit([Check(A, -1), Set(A, b"1", -1), Set(A, b"2", -1)]) == Committed((None, 1, 2))
    assert store.commit([Delete(A, -1)]) == Committed((None,))
    for op in (Check(A, -1), Set(A, b"x", -1), Delete(A, -1)):
        assert store.commit([op]) == Conflicted(op)


def test_a_recreated_node_starts_again_at_version_0(store: Store) -> None:
    """Why slices are never deleted while their table lives: an old version would match a new node."""
    having(store, A)
    store.commit([Set(A, b"1", 0)])
    store.commit([Delete(A, 1)])
    assert store.read(A) is None
    having(store, A)
    assert store.read(A) == Node(b"0", 0)
    assert isinstance(store.commit([Check(A, 0)]), Committed)


def test_a_delete_may_demand_a_version(store: Store) -> None:
    """A renewal that came in between wins."""
    having(store, A)
    store.commit([Set(A, b"renewed", 0)])
    assert store.commit([Delete(A, 0)]) == Conflicted(Delete(A, 0))
    assert store.read(A) == Node(b"renewed", 1)
    assert isinstance(store.commit([Delete(A, 1)]), Committed)


# -- one write over several nodes ----------------------------------------------------------------------------------


FAILING: list[Op] = [
    Check(C, 5),
    Set(C, b"x", 5),
    Delete(C, 5),
    Create(C, b"x"),
    Check("/floodmark/absent", 0),
    Set("/floodmark/absent", b"x", 0),
    Delete("/floodmark/absent"),
    Create("/floodmark/absent/child", b"x"),
]


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("failing", FAILING, ids=str)
def test_one_failing_operation_undoes_all_and_is_named(store: Store, failing: Op, at: int) -> None:
    """Wherever it stands: nothing happened, and the answer names the very operation."""
    having(store, A, B, C, "/floodmark/old")
    ops: list[Op] = [Set(A, b"1", 0), Create("/floodmark/new", b""), Delete("/floodmark/old")]
    ops.insert(at, failing)
    assert store.commit(ops) == Conflicted(failing)
    assert contents(store, A, B, C, "/floodmark/new", "/floodmark/old") == [
        Node(b"0", 0), Node(b"0", 0), Node(b"0", 0), None, Node(b"0", 0),
    ]  # fmt: skip


def test_of_two_failing_operations_the_first_is_named(store: Store) -> None:
    """kazoo fills the places behind it with other errors; they are no reasons."""
    having(store, A, B)
    first, second = Set(A, b"x", 4), Set(B, b"x", 5)
    assert store.commit([first, second]) == Conflicted(first)
    assert store.commit([second, first]) == Conflicted(second)


def test_the_versions_of_an_answer_stand_where_their_operations_do(store: Store) -> None:
    """Set and Create tell a version, Check and Delete none."""
    having(store, A, B, C)
    ops: list[Op] = [Check(A, 0), Set(B, b"1", 0), Delete(C), Create("/floodmark/d", b""), Check(B, 1)]
    assert store.commit(ops) == Committed((None, 1, None, 0, None))


def test_operations_of_one_write_see_those_before_them(store: Store) -> None:
    """A parent and its child, two sets in a row, a delete after its child's."""
    ops: list[Op] = [Create(A, b""), Create(f"{A}/child", b""), Set(A, b"1", 0), Set(A, b"2", 1)]
    assert store.commit(ops) == Committed((0, 0, 1, 2))
    assert store.commit([Delete(f"{A}/child"), Delete(A, 2), Create(A, b"new")]) == Committed((None, None, 0))
    assert store.read(A) == Node(b"new", 0)


def test_a_check_beside_sets_guards_them(store: Store) -> None:
    """The heart of a commit: the source is checked in the write that relies on it."""
    having(store, A, B)
    assert store.commit([Check(A, 0), Set(B, b"1", 0)]) == Committed((None, 1))
    assert store.read(A) == Node(b"0", 0), "a check leaves no trace"
    store.commit([Set(A, b"moved", 0)])
    assert store.commit([Check(A, 0), Set(B, b"2", 1)]) == Conflicted(Check(A, 0))
    assert store.read(B) == Node(b"1", 1)


def test_absence_is_asserted_by_creating(store: Store) -> None:
    """A check cannot: it fails on an absent node at any version. A create in the write fails on a present one."""
    having(store, B)
    for version in (-1, 0):
        assert store.commit([Check(A, version), Set(B, b"1", 0)]) == Conflicted(Check(A, version))
    assert store.commit([Create(A, b""), Set(B, b"1", 0)]) == Committed((0, 1))
    assert store.commit([Create(A, b""), Set(B, b"2", 1)]) == Conflicted(Create(A, b""))
    assert store.read(B) == Node(b"1", 1)


def test_an_empty_write_succeeds(store: Store) -> None:
    """Nothing was asked for, so nothing stands against it."""
    assert store.commit([]) == Committed(())


# -- the tree ------------------------------------------------------------------------------------------------------


def test_a_create_needs_its_parent(store: Store) -> None:
    """Parents are never made in passing."""
    op = Create(f"{A}/b/c", b"")
    assert store.commit([op]) == Conflicted(op)
    assert store.commit([Create(A, b""), Create(f"{A}/b", b""), op]) == Committed((0, 0, 0))


def test_a_node_with_children_cannot_be_deleted(store: Store) -> None:
    """The subtree goes from below."""
    having(store, A, f"{A}/child")
    assert store.commit([Delete(A)]) == Conflicted(Delete(A))
    assert store.commit([Delete(f"{A}/child"), Delete(A)]) == Committed((None, None))


def test_a_node_may_go_with_all_its_children_and_come_again_in_one_write(store: Store) -> None:
    """So that one that nobody knew of makes the write fail, and nothing is left below it."""
    having(store, A, f"{A}/known", f"{A}/unknown")
    again = [Delete(A), Create(A, b"new")]
    assert store.commit([Delete(f"{A}/known"), *again]) == Conflicted(again[0])
    assert sorted(store.children(A)) == ["known", "unknown"]
    gone = [Delete(f"{A}/known"), Delete(f"{A}/unknown")]
    assert store.commit([*gone, *again]) == Committed((None, None, None, 0))
    assert (store.read(A), store.children(A)) == (Node(b"new", 0), [])


def test_children_are_the_names_directly_below(store: Store) -> None:
    """Neither deeper ones nor neighbours with the same beginning; of an absent node none."""
    having(store, A, f"{A}/x", f"{A}/x/deeper", f"{A}/y", "/floodmark/ab", "/floodmark/ab/z")
    assert sorted(store.children(A)) == ["x", "y"]
    assert store.children(f"{A}/y") == []
    assert store.children("/floodmark/absent") == []


def test_a_current_read_is_a_read_of_the_newest(store: Store) -> None:
    """And of nothing where there is nothing."""
    having(store, A)
    store.commit([Set(A, b"new", 0)])
    assert store.read_current(A) == Node(b"new", 1)
    assert store.read_current("/floodmark/absent") is None


def test_reads_come_in_the_order_asked_for_with_none_for_absent_nodes(store: Store) -> None:
    """Also when one is asked for twice."""
    having(store, A, B)
    store.commit([Set(B, b"1", 0)])
    a, b = Node(b"0", 0), Node(b"1", 1)
    assert store.read_many([B, "/floodmark/absent", A, B]) == [b, None, a, b]
    assert store.read_many([]) == []
    assert store.read("/floodmark/absent") is None


def test_a_node_may_be_empty_or_hold_any_bytes(store: Store) -> None:
    """Empty is not absent."""
    payload = bytes(range(256))
    store.commit([Create(A, b""), Create(B, payload)])
    assert store.read_many([A, B]) == [Node(b"", 0), Node(payload, 0)]


# -- sessions ------------------------------------------------------------------------------------------------------


@dataclass
class TwoSessions:
    mine: Store
    end_mine: Callable[[], None]
    theirs: Store


def _simulated_sessions() -> TwoSessions:
    hub, store = Hub("contract", 0), ObservedStore()
    mine, theirs = (stepped_store(name, hub=hub, store=store) for name in ("mine", "theirs"))
    return TwoSessions(cast(Store, mine), mine.port._session.expire, cast(Store, theirs))


@pytest.fixture(params=["memory", "simulated", pytest.param("zookeeper", marks=pytest.mark.stack)])
def sessions(request: pytest.FixtureRequest) -> Iterator[TwoSessions]:
    """The same nodes seen from two sessions."""
    if request.param == "memory":
        memory = MemoryStore()
        yield TwoSessions(memory, memory.expire_session, memory)
        return
    if request.param == "simulated":
        yield _simulated_sessions()
        return
    hosts = f"{request.getfixturevalue('zookeeper').hosts}/{uuid.uuid4().hex}"
    mine, theirs = (Session(hosts=hosts, timeout_ms=10_000, on_lost=lambda: None) for _ in range(2))
    for session in (mine, theirs):
        session.open(timeout_ms=30_000)
    ZooKeeperStore(mine).ensure_root()
    yield TwoSessions(ZooKeeperStore(mine), mine.close, ZooKeeperStore(theirs))
    for session in (mine, theirs):
        session.close()


def test_an_ephemeral_node_goes_with_its_session_and_others_stay(sessions: TwoSessions) -> None:
    """Liveness and leadership end with the process, however it ends."""
    ops = [Create(A, b"alive", ephemeral=True), Create(B, b"kept")]
    assert sessions.mine.commit(ops) == Committed((0, 0))
    assert contents(sessions.theirs, A, B) == [Node(b"alive", 0), Node(b"kept", 0)]
    sessions.end_mine()
    eventually(lambda: contents(sessions.theirs, A) == [None], what="the ephemeral node is gone")
    assert sessions.theirs.read(B) == Node(b"kept", 0)


def test_anyone_may_change_or_delete_an_ephemeral_node(sessions: TwoSessions) -> None:
    """It belongs to a session only in how long it lives."""
    sessions.mine.commit([Create(A, b"0", ephemeral=True)])
    assert sessions.theirs.commit([Set(A, b"1", 0)]) == Committed((1,))
    assert sessions.theirs.commit([Delete(A, 1)]) == Committed((None,))
    assert contents(sessions.mine, A) == [None]


def test_an_ephemeral_node_has_no_children(store: Store) -> None:
    """A create below one is a precondition that does not hold."""
    store.commit([Create(A, b"", ephemeral=True)])
    op = Create(f"{A}/child", b"")
    assert store.commit([op]) == Conflicted(op)


@pytest.mark.stack
def test_a_closed_session_is_unavailable_for_everything(zookeeper: ZooKeeperServer) -> None:
    """Nothing is queued for a connection that will not come."""
    session = Session(hosts=f"{zookeeper.hosts}/{uuid.uuid4().hex}", timeout_ms=10_000, on_lost=lambda: None)
    session.open(timeout_ms=30_000)
    store = ZooKeeperStore(session)
    store.ensure_root()
    session.close()
    acts: list[Callable[[], object]] = [
        lambda: store.read(A),
        lambda: store.children(A),
        lambda: store.commit([Create(A, b"")]),
        store.sync,
    ]
    for act in acts:
        with pytest.raises(Unavailable):
            act()


# -- watches -------------------------------------------------------------------------------------------------------


@pytest.fixture
def watchable(store: Store) -> WatchableStore:
    """Every store of the suite tells of changes."""
    assert isinstance(store, MemoryStore | ZooKeeperStore | Stepped)
    return cast(WatchableStore, store)


def test_a_watch_on_a_node_fires_once_with_its_path_and_carries_no_data(watchable: WatchableStore) -> None:
    """Whoever wants to hear more reads again; the read sees what fired the watch."""
    having(watchable, A, B)
    told: list[str] = []
    assert watchable.read_watched([A, B], told.append) == [Node(b"0", 0), Node(b"0", 0)]
    watchable.commit([Set(A, b"1", 0)])
    eventually(lambda: told == [A], what="the watch fired")
    assert watchable.read_watched([A], told.append) == [Node(b"1", 1)]
    watchable.commit([Delete(A)])
    watchable.commit([Delete(B)])
    eventually(lambda: told == [A, A, B], what="a delete fires too")


def test_a_watch_that_fired_is_used_up(watchable: WatchableStore) -> None:
    """A second change without a second read is not told."""
    having(watchable, A, B)
    told: list[str] = []
    watchable.read_watched([A, B], told.append)
    watchable.commit([Set(A, b"1", 0)])
    watchable.commit([Set(A, b"2", 1)])
    watchable.commit([Set(B, b"1", 0)])  # watches fire in order: once this is told, nothing of A is on its way
    eventually(lambda: B in told, what="the other watch fired")
    assert told == [A, B]


def test_a_watch_on_children_fires_when_one_comes_or_goes_but_not_when_one_changes(watchable: WatchableStore) -> None:
    """Its path is the parent's."""
    having(watchable, A)
    told: list[str] = []
    assert watchable.children_watched(A, told.append) == []
    watchable.commit([Create(f"{A}/child", b"")])
    eventually(lambda: told == [A], what="a child came")
    assert watchable.children_watched(A, told.append) == ["child"]
    watchable.commit([Set(f"{A}/child", b"1", 0)])
    watchable.commit([Delete(f"{A}/child")])
    eventually(lambda: told == [A, A], what="a child went")
    assert watchable.children_watched(A, told.append) == []


def test_what_does_not_exist_is_not_watched(watchable: WatchableStore) -> None:
    """Its parent's children are what to watch; a refused write fires nothing either."""
    having(watchable, B)
    told: list[str] = []
    assert watchable.read_watched([A, B], told.append) == [None, Node(b"0", 0)]
    assert watchable.children_watched(C, told.append) == []
    watchable.commit([Set(B, b"x", 7)])
    watchable.commit([Create(A, b""), Create(C, b""), Create(f"{C}/child", b"")])
    watchable.commit([Set(B, b"1", 0)])
    eventually(lambda: told == [B], what="the one watch fired")


@pytest.mark.stack
def test_a_broken_connection_fires_every_watch(zookeeper: ZooKeeperServer) -> None:
    """kazoo drops them all, though the session lives on: whoever is not told would wait for ever."""
    with TcpProxy(zookeeper.port) as proxy, zookeeper_store(f"{proxy.address}/{uuid.uuid4().hex}") as watched:
        having(watched, A, B)
        told: list[str] = []
        watched.read_watched([A], told.append)
        watched.children_watched(B, told.append)
        proxy.cut()
        eventually(lambda: sorted(told) == [A, B], what="both watches fired")
        proxy.heal()
        eventually(lambda: _reads(watched, A), within_s=20, what="the session goes on")


def _reads(store: Store, path: str) -> bool:
    try:
        return store.read(path) is not None
    except Unavailable:
        return False


# -- several writes under way together -----------------------------------------------------------------------------


def test_writes_under_way_together_are_answered_each_by_itself(store: Store) -> None:
    """One that loses takes no other down, and is itself undone whole."""
    having(store, A, B, C)
    lost = Set(B, b"x", 7)
    answers = store.commit_many(
        [[Set(A, b"1", 0)], [Set(C, b"1", 0), lost], [Check(A, 1), Create("/floodmark/n", b"")]]
    )
    assert answers == [Committed((1,)), Conflicted(lost), Committed((None, 0))]
    assert contents(store, A, B, C, "/floodmark/n") == [Node(b"1", 1), Node(b"0", 0), Node(b"0", 0), Node(b"", 0)]


def test_writes_under_way_together_happen_in_their_order(store: Store) -> None:
    """Each is decided on what those before it left."""
    having(store, A)
    writes = [[Set(A, str(n).encode(), n)] for n in range(20)]
    assert store.commit_many(writes) == [Committed((n + 1,)) for n in range(20)]
    assert store.commit_many(writes[:2]) == [Conflicted(ops[0]) for ops in writes[:2]]
    assert store.read(A) == Node(b"19", 20)
    assert store.commit_many([]) == []


@pytest.mark.stack
def test_writes_whose_answers_are_lost_say_so_each_in_its_place(zookeeper: ZooKeeperServer) -> None:
    """The connection breaks under them. Whether the second one arrived is not known either."""
    with ZooKeeperProxy(zookeeper.port) as proxy, zookeeper_store(f"{proxy.address}/{uuid.uuid4().hex}") as store:
        having(store, A, B)
        proxy.plan(Fault.ANSWER_LOST)
        answers = store.commit_many([[Set(A, b"1", 0)], [Set(B, b"1", 0)]])
        assert [type(answer) for answer in answers] == [OutcomeUnknown] * 2


def test_a_store_that_is_away_says_so_in_the_place_of_every_write() -> None:
    """Nothing was sent, and nothing is raised."""
    session = Session(hosts="127.0.0.1:1", timeout_ms=2_000, on_lost=lambda: None)
    answers = ZooKeeperStore(session).commit_many([[Set(A, b"1", 0)], [Set(B, b"1", 0)]])
    assert [type(answer) for answer in answers] == [Unavailable] * 2


# -- sizes ---------------------------------------------------------------------------------------------------------


TOO_LARGE: list[tuple[str, list[Op], str]] = [
    ("node-too-large", [Set(A, b"", 0), Set(B, b"x" * (NODE_BYTES_MAX + 1), 0)], B),
    ("node-too-large", [Create(C, b"x" * (NODE_BYTES_MAX + 1))], C),
    ("write-too-large", [Set(A, b"x" * 400_000, 0), Set(B, b"x" * 400_001, 0), Set(C, b"x" * 400_000, 0)], B),
    ("write-too-large", [Check(f"/floodmark/{'long' * 100}{n}", 0) for n in range(3_000)], "3000 operations"),
]


@pytest.mark.parametrize(("rule", "ops", "named"), TOO_LARGE, ids=["set", "create", "together", "many-small"])
def test_what_is_too_large_is_refused_by_name_before_it_is_sent(
    store: Store, rule: str, ops: list[Op], named: str
) -> None:
    """ZooKeeper would drop the connection instead of saying so."""
    watched = Watched(store)
    engine = Engine(watched, SystemClock(), random.Random(1))
    with pytest.raises(InvalidInput) as refusal:
        engine.run("too large", Budget("critical", 3, 0, 0), lambda: Write(ops, None))
    assert refusal.value.rule == rule
    assert named in str(refusal.value)
    assert watched.commits == []


def test_the_largest_write_that_is_allowed_is_accepted_by_the_store(store: Store) -> None:
    """The limits stay below what the store takes, with the longest paths and the most operations in mind."""
    half = b"x" * ((WRITE_BYTES_MAX - 2 * 100) // 2)
    ops: list[Op] = [Create(A, half), Create(B, half)]
    check_sizes(ops)
    assert store.commit(ops) == Committed((0, 0))
    long = [f"/floodmark/{'p' * 200}{n:04d}" for n in range(3_000)]
    many: list[Op] = [Create(path, b"x" * 50) for path in long]
    check_sizes(many)
    assert store.commit(many) == Committed((0,) * 3_000)
    assert len(store.read_many(long)) == 3_000


# -- kazoo, as it is -----------------------------------------------------------------------------------------------


@pytest.fixture
def client(zookeeper: ZooKeeperServer) -> Iterator[Any]:
    """A bare kazoo client, which ships no types."""
    session = Session(hosts=f"{zookeeper.hosts}/{uuid.uuid4().hex}", timeout_ms=10_000, on_lost=lambda: None)
    session.open(timeout_ms=30_000)
    session.client.ensure_path("/trap")
    yield session.client
    session.close()


@pytest.mark.stack
def test_kazoo_returns_the_errors_of_a_failed_multi_instead_of_raising_them(client: Any) -> None:
    """Whoever does not look at each result takes a failure for a success. The store looks: see Conflicted above."""
    transaction = client.transaction()
    transaction.set_data("/trap", b"x", 0)
    transaction.check("/trap", 7)
    transaction.create("/never")
    results = transaction.commit()
    assert [type(r) for r in results] == [RolledBackError, BadVersionError, RuntimeInconsistency]
    assert client.get("/trap")[0] == b""


@pytest.mark.stack
def test_the_with_form_of_a_kazoo_transaction_drops_its_errors(client: Any) -> None:
    """It ends without a word, and nothing was written."""
    with client.transaction() as transaction:
        transaction.check("/absent", 0)
        transaction.set_data("/trap", b"x")
    assert client.get("/trap")[0] == b""


@pytest.mark.stack
def test_a_zookeeper_check_cannot_assert_absence(client: Any) -> None:
    """NoNode at every version, also at the -1 that otherwise means any."""
    for version in (-1, 0):
        transaction = client.transaction()
        transaction.check("/absent", version)
        assert [type(r) for r in transaction.commit()] == [NoNodeError]


@pytest.mark.stack
def test_a_zookeeper_watch_tells_of_several_changes_once(client: Any) -> None:
    """A watch is a hint to look again, never a count of changes; nothing in the ledger relies on one."""
    events: list[object] = []
    told = threading.Event()

    def note(event: object) -> None:
        events.append(event)
        told.set()

    client.get("/trap", watch=note)
    for _ in range(3):
        client.set("/trap", b"x")
    assert told.wait(30)
    client.sync("/trap")
    assert len(events) == 1
