"""The scheduler as a process: what it gives out, again to whom, and what it holds back. The test plays the others."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from floodmark.contracts.messages import BuildBucket
from floodmark.core.buckets import Cause, Entry, Mark, State
from floodmark.core.dispatch import Policy, Progress, Record
from floodmark.core.fingerprint import fingerprint
from floodmark.core.intervals import Interval, IntervalSet
from floodmark.core.registry import Put, Remove
from floodmark.core.scheduling import task_id
from floodmark.core.segments import Segment
from floodmark.core.tables import ViewDefinition, ViewHeader, ViewStatus
from floodmark.core.transitions import Changed, Mode
from floodmark.ledger.dispatch import Offer
from floodmark.ledger.session import Session
from floodmark.local.kafka import KafkaServer
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.eventually import eventually
from tests.support.ledger_kit import HOUR_MS, segment
from tests.support.pipeline import Pipeline, pipeline_on
from tests.support.proxy import TcpProxy
from tests.support.service_process import ServiceUnderTest, new_table
from tests.support.task_reader import TaskReader

pytestmark = pytest.mark.stack

SESSION_TIMEOUT_S, TICK_S, BUSY_S = 2.0, 1.0, 5.0
BACKOFF_MS = 300
WORKERS_POLICY = Policy(tries_max=2, backoff_first_ms=BACKOFF_MS, backoff_cap_ms=BACKOFF_MS)
SETTINGS = {
    "FLOODMARK_SCHEDULER__DEATHS_MAX": "3",
    "FLOODMARK_SCHEDULER__UNCLAIMED_MAX_MS": "600000",  # however slow a test is, what comes twice comes for its reason
    "FLOODMARK_SCHEDULER__LIVE_QUOTA": "8",
    "FLOODMARK_SCHEDULER__REPAIR_QUOTA": "100",
    "FLOODMARK_SCHEDULER__BACKFILL_QUOTA": "20",
}


@dataclass
class Floor:
    """One table and one view, by hour, and short words for what a test does to them."""

    pipeline: Pipeline
    reader: TaskReader
    table: str
    view: str = ""

    def put(self, *segments: Segment) -> None:
        self.pipeline.ledger.registry.apply(self.table, [Put(s) for s in segments])

    def remove(self, *names: str) -> None:
        self.pipeline.ledger.registry.apply(self.table, [Remove(n) for n in names])

    def mark(self, *hours: int) -> None:
        """All at once, the first one with the oldest cause."""
        windows = [Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS) for hour in hours]
        causes = [Cause("event", f"e{n}", 1_000 + n) for n in range(len(hours))]
        marks = [Mark(IntervalSet.of([w]), cause) for w, cause in zip(windows, causes, strict=True)]
        self.pipeline.ledger.views.mark(self.view, marks)

    def open_view(self, **changed: str) -> None:
        self.view = new_table()
        self.pipeline.view(self.view, self.table, **changed)

    def built(self, hours: range) -> None:
        """A segment for each hour, and a view that appears already built from them."""
        self.put(*(segment(f"s{h}", h, h + 1) for h in hours))
        windows = [Interval(h * HOUR_MS, (h + 1) * HOUR_MS) for h in hours]
        sources = self.pipeline.ledger.registry.read_windows(self.table, windows)
        self.view = new_table()
        definition = ViewDefinition(self.view, self.table, "SELECT 1", "h1", HOUR_MS, f"/lake/{self.view}")
        entries = {
            read.window.start_ms: Entry(
                State.VALID,
                ever_valid=True,
                fingerprint=read.source.fingerprint,
                slice_versions=read.source.slice_versions,
                definition_hash=definition.hash,
            )
            for read in sources
        }
        self.pipeline.ledger.views.restore(ViewHeader(definition, "", 0, 0, len(hours) * HOUR_MS), entries)

    @property
    def header(self) -> ViewHeader:
        return self.pipeline.ledger.views.header(self.view)

    def states(self) -> dict[int, str]:
        return self.pipeline.states(self.view)

    def record(self, hour: int) -> Record | None:
        return self.pipeline.ledger.dispatch.records(self.view).get(hour * HOUR_MS)

    # -- tasks

    def tasks(self, *, hour: int | None = None, lane: str | None = None) -> list[BuildBucket]:
        mine = [t for t in self.reader.tasks() if t.view == self.view]
        return [t for t in mine if hour in (None, t.bucket_start_ms // HOUR_MS) and lane in (None, t.lane)]

    def await_tasks(self, count: int, *, within_s: float = 60, **which: int | str) -> list[BuildBucket]:
        """At least so many; the caller says whether more would be wrong."""

        def enough() -> list[BuildBucket]:
            found = self.tasks(**which)  # type: ignore[arg-type]
            assert len(found) >= count, f"{len(found)} of {count} tasks {which}"
            return found

        return eventually(enough, within_s=within_s, every_s=0.1, what=f"{count} tasks {which}")

    def await_modes(self, expected: dict[int, str]) -> list[BuildBucket]:
        """Exactly one task for each of these hours, of this mode."""
        found = self.await_tasks(len(expected))
        assert sorted(modes(found)) == sorted(expected.items())
        return found

    def claim(self, task: BuildBucket, worker: str) -> None:
        assert self.pipeline.ledger.dispatch.claim(
            self.header, task.bucket_start_ms, task_id=task.task_id, worker=worker
        )

    def fail(self, task: BuildBucket, error: str) -> None:
        assert self.pipeline.ledger.dispatch.fail(
            self.header, task.bucket_start_ms, task_id=task.task_id, error=error, policy=WORKERS_POLICY
        )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The scheduler leaves this view alone, as long as this lasts."""
        self.pipeline.ledger.views.set_status(self.view, ViewStatus.PAUSED)
        self.await_a_cycle()  # what it saw before the pause has been given out
        yield
        self.pipeline.ledger.views.set_status(self.view, ViewStatus.ACTIVE)

    def await_a_cycle(self) -> None:
        """A view beside this one gets its first task: the scheduler has looked at everything once more."""
        beside = Floor(self.pipeline, self.reader, self.table)
        beside.open_view()
        beside.await_tasks(1)
        self.pipeline.ledger.views.drop(beside.view)


def modes(tasks: Sequence[BuildBucket]) -> list[tuple[int, str]]:
    return [(t.bucket_start_ms // HOUR_MS, t.mode) for t in tasks]


@contextmanager
def worker_alive(pipeline: Pipeline, name: str) -> Iterator[None]:
    """The liveness of a worker, as long as this lasts."""
    session = Session(hosts=pipeline.hosts, timeout_ms=10_000, on_lost=lambda: None)
    session.open(timeout_ms=30_000)
    session.announce("worker", name, {"pid": 1})
    yield
    session.close()


@pytest.fixture
def floor(pipeline: Pipeline, reader: TaskReader) -> Iterator[Floor]:
    """What a test leaves in flight goes with its view, so that the lanes are free for the next one."""
    table = new_table()
    pipeline.table(table)
    made = Floor(pipeline, reader, table)
    yield made
    if made.view:
        pipeline.ledger.views.drop(made.view)


# -- what needs work -----------------------------------------------------------------------------------------------


@pytest.mark.scenario("S1")
def test_a_stale_bucket_is_deleted_reverted_or_overwritten_as_its_source_asks(floor: Floor) -> None:
    """Source gone: DELETE. Unchanged: VALID again without a task. Changed: OVERWRITE."""
    floor.built(range(4))
    floor.remove("s0")
    floor.put(segment("s2", 2, 3, crc=9))
    floor.mark(0, 1, 2)
    tasks = floor.await_modes({0: "DELETE", 2: "OVERWRITE"})
    eventually(lambda: floor.states()[1] == "VALID", what="the unchanged bucket is reverted")
    floor.pipeline.work(tasks)
    assert set(floor.states().values()) == {"VALID"}
    assert floor.pipeline.entries(floor.view)[0].files == ()
    floor.await_a_cycle()
    assert len(floor.tasks()) == 2


@pytest.mark.scenario("S2")
def test_of_500_stale_buckets_as_many_are_out_at_once_as_the_lane_takes(floor: Floor) -> None:
    """Not one in a cycle, and not all: a finished one makes room for the next. The oldest cause comes first."""
    floor.built(range(500))
    floor.put(*(segment(f"s{h}", h, h + 1, crc=9) for h in range(500)))
    floor.mark(*range(500))
    first = floor.await_tasks(100, lane="repair")
    assert {hour for hour, _ in modes(first)} == set(range(100))
    assert len({t.dispatched_at_ms for t in first}) <= 10, "many in one cycle"
    floor.pipeline.work(first[:30])
    assert len(floor.await_tasks(130, lane="repair")) == 130
    done = {t.task_id for t in first[:30]}

    def all_valid() -> bool:
        waiting = [t for t in floor.tasks() if t.task_id not in done]
        done.update(t.task_id for t in waiting)
        floor.pipeline.work(waiting)
        return set(floor.states().values()) == {"VALID"}

    eventually(all_valid, within_s=60, every_s=0.1, what="all 500 are rebuilt")
    assert Counter(modes(floor.tasks())) == {(hour, "OVERWRITE"): 1 for hour in range(500)}


@pytest.mark.scenario("S3")
def test_a_bucket_that_always_fails_backs_off_and_is_quarantined_while_the_others_proceed(floor: Floor) -> None:
    """The earliest STALE one of all. Its error stays visible; a release or another source lets it be tried again."""
    floor.built(range(6))
    floor.put(*(segment(f"s{h}", h, h + 1, crc=9) for h in range(6)))
    floor.mark(*range(6))
    tasks = floor.await_tasks(6)
    floor.fail(floor.tasks(hour=0)[0], "the first try failed")
    done = floor.pipeline.work([t for t in tasks if t.bucket_start_ms])
    assert {type(d) for d in done.values()} == {Changed}, done
    assert {h for h, s in floor.states().items() if s == "VALID"} == {1, 2, 3, 4, 5}
    first, second = floor.await_tasks(2, hour=0)
    assert (first.dispatch_try, second.dispatch_try) == (1, 2)
    assert second.dispatched_at_ms - first.dispatched_at_ms >= BACKOFF_MS
    floor.fail(second, "the second try failed")
    record = floor.record(0)
    assert record is not None
    assert (record.progress, record.error) == (Progress.QUARANTINED, "the second try failed")
    floor.put(segment("s5", 5, 6, crc=10))
    floor.mark(5)
    floor.await_tasks(2, hour=5)
    assert len(floor.tasks(hour=0)) == 2, "it stays where it is"
    assert floor.pipeline.ledger.dispatch.release(floor.header, 0)
    assert floor.await_tasks(3, hour=0)[-1].dispatch_try == 1
    with floor.paused():  # or the new source might get its task before the old one's has failed
        floor.fail(floor.tasks(hour=0)[-1], "the source changed meanwhile")
        floor.put(segment("s0", 0, 1, crc=10))
    *old, afresh = floor.await_tasks(4, hour=0)
    assert afresh.task_id not in {t.task_id for t in old}
    assert afresh.dispatch_try == 1


@pytest.mark.scenario("S4")
def test_when_ingestion_stops_the_watermark_stops(floor: Floor) -> None:
    """The data ends in 1970 and the clock goes on: nothing empty is appended towards it."""
    floor.put(segment("a", 0, 3))
    floor.open_view()
    floor.pipeline.work(floor.await_tasks(3))
    floor.await_a_cycle()
    assert len(floor.tasks()) == 3
    assert floor.header.watermark_ms == 3 * HOUR_MS
    assert set(floor.states()) == {0, 1, 2}


@pytest.mark.scenario("S5")
def test_a_segment_that_ends_with_its_bucket_makes_it_appendable(floor: Floor) -> None:
    """At its very last millisecond; one millisecond less, and more may come."""
    floor.put(segment("a", 0, 1), segment("b", 1, 2, last_ms=2 * HOUR_MS - 2))
    floor.open_view()
    floor.await_modes({0: "APPEND"})
    floor.await_a_cycle()
    assert modes(floor.tasks()) == [(0, "APPEND")]
    floor.put(segment("c", 1, 2))
    floor.await_modes({0: "APPEND", 1: "APPEND"})


def test_each_task_names_exactly_its_own_windows_input(floor: Floor) -> None:
    """Whatever the definition: an OR in it cannot let rows of another window in, if only these segments are read.

    The scheduler's part of S9; that only the window's rows of these segments are kept is the worker's.
    """
    segments = [segment("a", 0, 1), segment("b", 0.5, 2), segment("c", 2, 3), segment("d", 0, 4)]
    floor.put(*segments)
    floor.open_view(select=f"SELECT count(*) AS n FROM {floor.table} WHERE value = 1 OR value = 2")
    inputs = {0: "abd", 1: "bd", 2: "cd", 3: "d"}
    for task in floor.await_tasks(4):
        hour = task.bucket_start_ms // HOUR_MS
        expected = fingerprint(s for s in segments if s.name in inputs[hour])
        assert (task.fingerprint.count, task.fingerprint.hash) == (expected.count, expected.hash), f"hour {hour}"
        assert task.bucket_end_ms - task.bucket_start_ms == HOUR_MS
        assert task.definition_hash == floor.header.definition.hash


@pytest.mark.scenario("S8")
def test_fresh_data_is_not_behind_a_year_of_backfill(floor: Floor) -> None:
    """Each lane has its own room: the backfill fills its own and no more, and goes on whatever is live."""
    floor.put(*(segment(f"day{d}", 24 * d, 24 * d + 24) for d in range(365)))
    floor.open_view()
    backfill = floor.await_tasks(20, lane="backfill")
    assert {hour for hour, _ in modes(backfill)} == set(range(20))
    last = 365 * 24
    floor.pipeline.work(floor.await_tasks(4, lane="live"))
    floor.put(segment("fresh", last, last + 3))
    fresh = floor.await_tasks(7, lane="live")[4:]
    assert {hour for hour, _ in modes(fresh)} == {last, last + 1, last + 2}
    assert len(floor.tasks(lane="backfill")) == 20, "nobody worked on them"
    floor.pipeline.work(fresh)
    assert {floor.states()[last + n] for n in range(3)} == {"VALID"}
    floor.pipeline.work(backfill[:5])
    assert len(floor.await_tasks(25, lane="backfill")) == 25


# -- who dies ------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S7")
def test_the_tasks_of_a_worker_that_died_are_issued_again(floor: Floor) -> None:
    """Three of them, the same ones, as soon as its liveness is gone; and not before."""
    floor.put(segment("a", 0, 4))
    floor.open_view()
    with worker_alive(floor.pipeline, "w1"):
        tasks = floor.await_tasks(4)
        for task in tasks[:3]:
            floor.claim(task, "w1")
        floor.await_a_cycle()
        assert len(floor.tasks()) == 4
    again = floor.await_tasks(7)
    assert Counter(t.task_id for t in again) == {
        **{t.task_id: 2 for t in tasks[:3]},
        tasks[3].task_id: 1,
    }
    record = floor.record(tasks[0].bucket_start_ms // HOUR_MS)
    assert record is not None
    assert (record.tries, record.deaths) == (1, 1), "a death is not a failed try"


def test_a_task_that_kills_every_worker_is_quarantined(floor: Floor, scheduler: ServiceUnderTest) -> None:
    """INV-10: it would go round for ever, taking one worker after the other with it."""
    floor.put(segment("poison", 0, 1))
    floor.open_view()
    for n in range(1, 4):
        task = floor.await_tasks(n)[0]
        with worker_alive(floor.pipeline, f"victim{n}"):
            floor.claim(task, f"victim{n}")
    event = scheduler.await_event("bucket_quarantined", view=floor.view)
    assert event["error"] == "its worker died 3 times, the last one was victim3"
    record = floor.record(0)
    assert record is not None
    assert (record.progress, record.deaths) == (Progress.QUARANTINED, 3)
    floor.await_a_cycle()
    assert len(floor.tasks()) == 3


def test_a_task_that_a_dead_scheduler_recorded_and_never_sent_goes_out_at_once(floor: Floor) -> None:
    """What kill -9 between the record and the message leaves behind; a dead scheduler's offer is not waited for."""
    ledger = floor.pipeline.ledger
    floor.put(segment("a", 0, 1))
    floor.open_view()
    floor.pipeline.work(floor.await_tasks(1))
    with floor.paused():
        floor.put(segment("b", 1, 2))
        source = ledger.registry.read_window(floor.table, Interval(HOUR_MS, 2 * HOUR_MS)).source
        name = task_id(floor.header.incarnation, HOUR_MS, Mode.APPEND, source.fingerprint)
        ledger.dispatch.offer(
            floor.header, [Offer(HOUR_MS, name, "live")], alive=(), policy=Policy(), offered_by="dead.00000000"
        )
    (task,) = floor.await_tasks(1, hour=1)
    assert (task.task_id, task.dispatch_try) == (name, 1)


@dataclass
class History:
    """What a worker that takes every task as it comes got committed."""

    floor: Floor

    def __post_init__(self) -> None:
        self.committed: list[tuple[int, str, int, int]] = []
        self._seen: Counter[str] = Counter()

    def settle(self, up_to_hour: int) -> None:
        def settled() -> bool:
            for task in self._new():
                self._take(task)
            stale = [hour for hour, state in self.floor.states().items() if state == "STALE"]
            watermark_ms = self.floor.header.watermark_ms
            waiting = self.floor.pipeline.ledger.dispatch.records(self.floor.view)
            assert not stale, f"hours {stale} are STALE, dispatched: {waiting}"
            assert watermark_ms == up_to_hour * HOUR_MS, f"the watermark is {watermark_ms}, dispatched: {waiting}"
            return True

        eventually(settled, within_s=60, every_s=0.2, what=f"everything built up to hour {up_to_hour}")

    def _new(self) -> list[BuildBucket]:
        """Also those that come a second time."""
        found, counted = [], Counter[str]()
        for task in self.floor.tasks():
            counted[task.task_id] += 1
            if counted[task.task_id] > self._seen[task.task_id]:
                found.append(task)
        self._seen = counted
        return found

    def _take(self, task: BuildBucket) -> None:
        (decision,) = self.floor.pipeline.work([task]).values()
        if isinstance(decision, Changed):
            hour = task.bucket_start_ms // HOUR_MS
            self.committed.append((hour, task.mode, task.fingerprint.count, task.fingerprint.hash))


def play(floor: Floor, *, in_the_middle: Callable[[], None]) -> list[tuple[int, str, int, int]]:
    """Data comes, is built, changes, goes; something happens when tasks are out and none is done."""
    history = History(floor)
    floor.put(*(segment(f"s{h}", h, h + 1) for h in range(8)))
    floor.open_view()
    floor.await_tasks(1)
    in_the_middle()
    history.settle(8)
    floor.put(segment("s2", 2, 3, crc=5), segment("late", 3, 5))
    floor.remove("s6")
    floor.mark(1, 2, 3, 4, 6)
    history.settle(8)
    floor.put(segment("s8", 8, 11))
    history.settle(11)
    return sorted(history.committed)


@pytest.mark.scenario("S6")
def test_two_schedulers_of_which_the_leader_is_killed_make_the_same_history_as_one(
    floor: Floor, tmp_path: Path, zookeeper: ZooKeeperServer, kafka: KafkaServer
) -> None:
    """The other one takes over within the session timeout, and what was out is neither lost nor built twice."""
    expected = play(floor, in_the_middle=lambda: None)
    with pipeline_on(tmp_path, zookeeper, kafka) as pipeline:
        leader = pipeline.start("scheduler")
        leader.await_event("leadership_taken")
        other = pipeline.start("scheduler")
        other.await_event("service_started")
        pipeline.table(floor.table)

        def kill_the_leader() -> None:
            assert other.events("leadership_taken") == []
            leader.process.kill()
            killed_s = time.monotonic()
            other.await_event("leadership_taken")
            # ZooKeeper ends sessions on the tick after their timeout; the rest is a busy machine.
            assert time.monotonic() - killed_s <= SESSION_TIMEOUT_S + TICK_S + BUSY_S

        with closing(TaskReader(pipeline)) as reader:
            committed = play(Floor(pipeline, reader, floor.table), in_the_middle=kill_the_leader)
    assert committed == expected
    assert len(committed) == 8 + 4 + 3, "eight appended, four rebuilt and one reverted, three appended"


def test_a_scheduler_whose_connection_broke_and_came_back_still_sees_changes(
    tmp_path: Path, zookeeper: ZooKeeperServer, kafka: KafkaServer
) -> None:
    """Its session lives, but its watches are gone: it looks at everything anew."""
    with TcpProxy(zookeeper.port) as proxy, pipeline_on(tmp_path, zookeeper, kafka) as pipeline:
        hosts = f"{proxy.address}/{pipeline.namespace}"
        patient = {"FLOODMARK_ZOOKEEPER__SESSION_TIMEOUT_MS": "20000"}  # the session is to outlive the cut
        scheduler = pipeline.start("scheduler", FLOODMARK_ZOOKEEPER__HOSTS=hosts, **patient)
        scheduler.await_event("leadership_taken")
        pipeline.table("rides")
        floor = Floor(pipeline, TaskReader(pipeline), "rides")
        floor.put(segment("a", 0, 1))
        floor.open_view()
        floor.await_tasks(1)
        proxy.cut()
        scheduler.await_event("zookeeper_connection_suspended")
        proxy.heal()
        eventually(lambda: len(scheduler.events("zookeeper_connected")) == 2, what="it is connected again")
        floor.put(segment("b", 1, 2))
        floor.await_tasks(2)
        assert scheduler.process.poll() is None, "it is the same process"
