"""Dispatch records, leadership and liveness, in memory and on a real ZooKeeper."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest

from floodmark.core.dispatch import Policy, Progress, Record, Refusal
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.ledger import paths
from floodmark.ledger.dispatch import Offer, Offered
from floodmark.ledger.leadership import Leadership, alive
from floodmark.ledger.store import Create, Node, Store
from tests.support.eventually import eventually
from tests.support.ledger_kit import HOUR_MS, VIEW, Kit, zookeeper_store
from tests.support.memory_store import Faulty, MemoryStore, Watched

POLICY = Policy(tries_max=2, backoff_first_ms=100, backoff_cap_ms=1_000, unclaimed_max_ms=5_000)
FAR = 300
"""An hour of another shard than hour 0."""


@dataclass
class Desk:
    """Short words for what scheduler and workers do."""

    kit: Kit

    def offer(self, *hours: int, task: str = "t1", alive: tuple[str, ...] = ("w1",)) -> dict[int, Record | Refusal]:
        offers = [Offer(h * HOUR_MS, task, "live") for h in hours]
        given = self.kit.ledger.dispatch.offer(self.kit.header, offers, alive=alive, policy=POLICY)
        return {start // HOUR_MS: result for start, result in given.items()}

    def claim(self, hour: int, task: str = "t1", worker: str = "w1") -> bool:
        return self.kit.ledger.dispatch.claim(self.kit.header, hour * HOUR_MS, task_id=task, worker=worker)

    def fail(self, hour: int, task: str = "t1", error: str = "boom") -> bool:
        view = self.kit.header
        return self.kit.ledger.dispatch.fail(view, hour * HOUR_MS, task_id=task, error=error, policy=POLICY)

    def finish(self, hour: int, task: str = "t1") -> bool:
        return self.kit.ledger.dispatch.finish(self.kit.header, hour * HOUR_MS, task_id=task)

    def release(self, hour: int) -> bool:
        return self.kit.ledger.dispatch.release(self.kit.header, hour * HOUR_MS)

    def progress(self, hour: int) -> tuple[str, int] | None:
        record = self.kit.ledger.dispatch.records(VIEW.name).get(hour * HOUR_MS)
        return None if record is None else (str(record.progress), record.tries)


@pytest.fixture
def desk(kit: Kit) -> Desk:
    return Desk(kit)


def test_offered_claimed_finished_leaves_no_record(desk: Desk) -> None:
    """The upper row of the diagram."""
    assert isinstance(desk.offer(0)[0], Record)
    assert desk.progress(0) == ("offered", 1)
    assert desk.claim(0)
    assert desk.progress(0) == ("claimed", 1)
    assert desk.finish(0)
    assert desk.progress(0) is None
    assert not desk.finish(0)


def test_what_is_finished_together_takes_no_other_tasks_record_along(desk: Desk) -> None:
    """The end of a superseded task may come after its successor was given out (INV-10)."""
    desk.offer(0, 1, 2)
    desk.offer(1, task="t2")
    desk.kit.ledger.dispatch.finish_all(desk.kit.header, {hour * HOUR_MS: "t1" for hour in (0, 1, 5)})
    assert [desk.progress(hour) for hour in range(3)] == [None, ("offered", 1), ("offered", 1)]


def test_failed_tries_back_off_and_end_in_quarantine_until_released(desk: Desk) -> None:
    """The lower row: a failing bucket is tried again later, then set aside with its error (INV-10, INV-14)."""
    desk.offer(0)
    desk.claim(0)
    assert desk.fail(0, error="no such file")
    assert desk.progress(0) == ("failed", 1)
    assert desk.offer(0)[0] is Refusal.BACKING_OFF
    desk.kit.clock.sleep_ms(100)
    assert isinstance(desk.offer(0)[0], Record)
    assert desk.progress(0) == ("offered", 2)
    assert desk.fail(0, error="still no such file")
    assert desk.progress(0) == ("quarantined", 2)
    desk.kit.clock.sleep_ms(10**9)
    assert desk.offer(0)[0] is Refusal.QUARANTINED
    assert not desk.claim(0)
    assert not desk.fail(0)
    assert desk.kit.ledger.dispatch.records(VIEW.name)[0].error == "still no such file"
    assert desk.release(0)
    assert desk.progress(0) is None
    assert isinstance(desk.offer(0)[0], Record)


def test_only_a_quarantined_bucket_can_be_released(desk: Desk) -> None:
    """Releasing work in flight would dispatch it twice."""
    desk.offer(0)
    assert not desk.release(0)
    assert not desk.release(1)
    assert desk.progress(0) == ("offered", 1)


def test_work_in_flight_is_not_given_out_again(desk: Desk) -> None:
    """Offered and not yet old, or claimed by a worker that lives, to whichever scheduler asks."""
    desk.offer(0)
    rival = Desk(Kit(desk.kit.store, clock=desk.kit.clock, seed=2))
    assert rival.offer(0)[0] is Refusal.IN_FLIGHT
    desk.claim(0)
    desk.kit.clock.sleep_ms(10**9)
    assert rival.offer(0)[0] is Refusal.IN_FLIGHT


def test_a_dead_workers_task_is_given_out_at_once(desk: Desk) -> None:
    """Its liveness node is gone, so nobody waits for it."""
    desk.offer(0)
    desk.claim(0, worker="w1")
    assert isinstance(desk.offer(0, alive=("w2",))[0], Record)
    assert desk.progress(0) == ("offered", 1)


def test_an_offer_nobody_took_is_made_again(desk: Desk) -> None:
    """Its message may be lost."""
    desk.offer(0)
    desk.kit.clock.sleep_ms(5_000)
    assert isinstance(desk.offer(0)[0], Record)


def test_a_new_task_of_a_bucket_replaces_the_old_ones_record(desk: Desk) -> None:
    """The source changed: the old task's reports no longer count, its quarantine neither."""
    desk.offer(0, task="t1")
    desk.fail(0, task="t1")
    assert isinstance(desk.offer(0, task="t2")[0], Record)
    assert not desk.claim(0, task="t1")
    assert not desk.fail(0, task="t1")
    assert not desk.finish(0, task="t1")
    assert desk.progress(0) == ("offered", 1)


def test_offers_of_one_shard_are_one_write_and_one_refusal_takes_no_other_down(store: Store) -> None:
    """Many at once, over two shards; the one in flight is refused alone (INV-14)."""
    watched = Watched(store)
    desk = Desk(Kit(watched))
    desk.kit.set_up()
    desk.offer(1)
    commits = len(watched.commits)
    given = desk.offer(0, 1, 2, FAR)
    assert len(watched.commits) == commits + 2
    assert given[1] is Refusal.IN_FLIGHT
    assert all(isinstance(given[hour], Record) for hour in (0, 2, FAR))
    assert {start // HOUR_MS for start in desk.kit.ledger.dispatch.records(VIEW.name)} == {0, 1, 2, FAR}


def offer_to_three(kit: Kit, hours: int = 1) -> list[Offered]:
    """The same task for the first hours of three views."""
    headers = [kit.header, *(kit.ledger.views.header(name) for name in ("second", "third"))]
    offers = [Offer(h * HOUR_MS, "t1", "live") for h in range(hours)]
    return kit.ledger.dispatch.offer_all([(header, offers) for header in headers], alive=("w1",), policy=POLICY)


def with_three_views(store: Store, **how: Any) -> Kit:
    kit = Kit(store, **how)
    kit.set_up()
    for name in ("second", "third"):
        kit.ledger.views.create(replace(VIEW, name=name), coverage_start_ms=0)
    return kit


def progress_in(kit: Kit) -> list[str]:
    views = [VIEW.name, "second", "third"]
    return [" ".join(str(r.progress) for r in kit.ledger.dispatch.records(view).values()) for view in views]


def test_offers_to_several_views_take_one_read_and_writes_under_way_together(store: Store) -> None:
    """However many views: the waits are those of one."""
    watched = Watched(store)
    kit = with_three_views(watched)
    reads, commits = watched.reads, len(watched.commits)
    offered = offer_to_three(kit, hours=2)
    assert [[type(a) for a in o.answers.values()] for o in offered] == [[Record, Record]] * 3
    assert watched.reads - reads == 3 + 1, "three of the headers, before, and one of all records"
    assert (len(watched.commits) - commits, watched.together) == (3, [3])


@pytest.mark.parametrize("word", ["lost", "gone"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_of_offers_to_several_views_one_lost_answer_changes_nothing(store: Store, place: int, word: str) -> None:
    """All are given out, each once."""
    faulty = Faulty(store)
    kit = with_three_views(faulty)
    faulty.script = iter([*["ok"] * place, word])
    assert [type(o.answers[0]) for o in offer_to_three(kit)] == [Record] * 3
    assert progress_in(kit) == ["offered"] * 3
    assert [type(o.answers[0]) for o in offer_to_three(kit)] == [Refusal] * 3


@pytest.mark.parametrize("place", [0, 1, 2])
def test_of_offers_to_several_views_one_trouble_stays_where_it_is(store: Store, place: int) -> None:
    """Damaged records, or a write that is not taken: the others are given out (INV-14)."""
    faulty = Faulty(store)
    kit = with_three_views(faulty)
    faulty.script = iter([*["ok"] * place, "away"])
    offered = offer_to_three(kit)
    assert [[type(t) for t in o.troubles] for o in offered] == [[Unavailable] if n == place else [] for n in range(3)]
    assert [len(o.answers) for o in offered] == [n != place for n in range(3)]
    assert progress_in(kit) == ["" if n == place else "offered" for n in range(3)]


def test_of_offers_to_several_views_damaged_records_trouble_only_their_own(store: Store) -> None:
    """Nothing is written over what is not understood (INV-14)."""
    kit = with_three_views(store)
    store.commit([Create(paths.dispatch_shard("second", 0), b"\xffgarbage")])
    offered = offer_to_three(kit)
    assert [[type(t) for t in o.troubles] for o in offered] == [[], [InvalidInput], []]
    assert store.read(paths.dispatch_shard("second", 0)) == Node(b"\xffgarbage", 0)
    assert [len(o.answers) for o in offered] == [1, 0, 1]


def test_of_two_schedulers_that_offer_to_several_views_each_task_is_given_out_once(store: Store) -> None:
    """A rival is quicker with one of them; that one is decided again, by itself."""
    watched = Watched(store)
    slow = with_three_views(watched)
    quick = Kit(store, clock=slow.clock, seed=2)
    second = slow.ledger.views.header("second")

    def overtake(_: int) -> None:
        watched.before_commit = lambda _: None
        slow.clock.sleep_ms(1)
        quick.ledger.dispatch.offer(second, [Offer(0, "t1", "live")], alive=("w1",), policy=POLICY)

    watched.before_commit = overtake
    offered = offer_to_three(slow)
    assert [type(o.answers[0]) for o in offered] == [Record, Refusal, Record]


@pytest.mark.parametrize("word", ["lost", "gone"])
def test_an_offer_whose_answer_was_lost_is_still_given_out(store: Store, word: str) -> None:
    """Taking our own record for a rival's would leave the task unsent until the offer is too old."""
    faulty = Faulty(store)
    desk = Desk(Kit(faulty))
    desk.kit.set_up()
    faulty.script = iter([word])
    assert isinstance(desk.offer(0)[0], Record)
    assert desk.progress(0) == ("offered", 1)


@pytest.mark.parametrize("word", ["lost", "gone"])
def test_a_failure_whose_answer_was_lost_counts_once(store: Store, word: str) -> None:
    """One failed try, whatever happened to its report."""
    faulty = Faulty(store)
    desk = Desk(Kit(faulty))
    desk.kit.set_up()
    desk.offer(0)
    desk.claim(0)
    faulty.script = iter([word])
    desk.fail(0)
    assert desk.progress(0) == ("failed", 1)


@pytest.mark.parametrize("recreated", [False, True])
def test_records_of_a_dropped_view_can_no_longer_be_written(desk: Desk, *, recreated: bool) -> None:
    """Nor is anything given out for it (INV-13)."""
    old, dispatch = desk.kit.header, desk.kit.ledger.dispatch
    desk.offer(0)
    desk.kit.ledger.views.drop(VIEW.name)
    if recreated:
        desk.kit.ledger.views.create(VIEW, coverage_start_ms=0)
    given = dispatch.offer(old, [Offer(HOUR_MS, "t1", "live")], alive=(), policy=POLICY)
    assert given == {HOUR_MS: Refusal.DROPPED}
    assert not dispatch.claim(old, 0, task_id="t1", worker="w1")
    assert not dispatch.fail(old, 0, task_id="t1", error="boom", policy=POLICY)
    assert not dispatch.finish(old, 0, task_id="t1")
    assert dispatch.records(VIEW.name) == {}


def test_two_schedulers_that_race_give_a_task_out_once(store: Store) -> None:
    """The second one's write loses, and its next look finds the task in flight."""
    watched = Watched(store)
    slow = Desk(Kit(watched))
    slow.kit.set_up()
    quick = Desk(Kit(store, clock=slow.kit.clock, seed=2))

    def overtake(_: int) -> None:
        watched.before_commit = lambda _: None
        slow.kit.clock.sleep_ms(1)
        assert isinstance(quick.offer(0)[0], Record)

    watched.before_commit = overtake
    assert slow.offer(0)[0] is Refusal.IN_FLIGHT


def test_progress_has_the_four_states_of_the_diagram() -> None:
    """A fifth would need arrows, and tests for them."""
    assert [str(p) for p in Progress] == ["offered", "claimed", "failed", "quarantined"]


# -- leadership and liveness ---------------------------------------------------------------------------------------


@dataclass
class Pair:
    """Two processes with a session each; the first one's can end."""

    first: Store
    second: Store
    end_first: Callable[[], None]


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.stack)])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    if request.param == "memory":
        store = MemoryStore()
        yield Pair(store, store, store.expire_session)
        return
    hosts = f"{request.getfixturevalue('zookeeper').hosts}/{uuid.uuid4().hex}"
    with ExitStack() as first, zookeeper_store(hosts) as second:
        yield Pair(first.enter_context(zookeeper_store(hosts)), second, first.close)


def test_one_of_two_candidates_leads(pair: Pair) -> None:
    """Whoever asks first; asking again changes nothing, and both see who it is."""
    first, second = Leadership(pair.first, "scheduler", "s1"), Leadership(pair.second, "scheduler", "s2")
    assert first.leader() is None
    assert first.hold()
    assert not second.hold()
    assert first.hold()
    assert first.leader() == second.leader() == "s1"


def test_roles_are_led_apart(pair: Pair) -> None:
    """The leader of one has no say in the other."""
    assert Leadership(pair.first, "scheduler", "s1").hold()
    assert Leadership(pair.second, "janitor", "j1").hold()


def test_who_resigns_is_followed_at_once_and_only_the_leader_can(pair: Pair) -> None:
    """No session has to run out for it."""
    first, second = Leadership(pair.first, "scheduler", "s1"), Leadership(pair.second, "scheduler", "s2")
    first.hold()
    second.resign()
    assert second.leader() == "s1"
    first.resign()
    first.resign()
    assert second.hold()
    assert not first.hold()


def test_the_lead_ends_with_the_session(pair: Pair) -> None:
    """However the process ended."""
    first, second = Leadership(pair.first, "scheduler", "s1"), Leadership(pair.second, "scheduler", "s2")
    assert first.hold()
    pair.end_first()
    eventually(second.hold, within_s=20, what="the second one leads")
    assert second.leader() == "s2"


def test_alive_are_those_whose_sessions_live(pair: Pair) -> None:
    """A worker that is gone is missing from the list; a service nobody ever started has none."""
    assert alive(pair.second, "worker") == set()
    pair.second.commit([Create(f"{paths.SERVICES}/worker", b"")])
    pair.first.commit([Create(f"{paths.SERVICES}/worker/w1", b"{}", ephemeral=True)])
    assert alive(pair.second, "worker") == {"w1"}
    pair.end_first()
    eventually(lambda: alive(pair.second, "worker") == set(), within_s=20)
