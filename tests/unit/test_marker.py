"""From events to marks on a ledger in memory: what is coalesced, when records are finished, and who waits for whom."""

import queue
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from floodmark.bus.delivery import Assignment, Delivery, Finished, Outcomes
from floodmark.bus.ports import Partition, Record
from floodmark.contracts.changes import Changes, changes_of
from floodmark.contracts.messages import SegmentChange, SegmentsChanged, TimeRange
from floodmark.core.buckets import BUCKETS_PER_SHARD, Cause, Mark
from floodmark.core.debounce import Batch, Bounds
from floodmark.core.errors import BudgetExhausted, InvalidInput, OutcomeUnknown, Unavailable
from floodmark.core.intervals import Interval, IntervalSet
from floodmark.ledger.ledger import Ledger
from floodmark_consistency.index import ViewIndex, read_index
from floodmark_consistency.marker import Marker
from floodmark_consistency.marking import mark_view
from tests.support.bus_doubles import FrozenClock
from tests.support.ledger_kit import VIEW, Kit, segment
from tests.support.memory_store import MemoryStore, Watched

HOUR = 3_600_000
TRACE = "0af7651916cd43dd8448eb211c80319c"


@dataclass
class Heard:
    """A record that was offered, and whether it is finished."""

    offset: int
    bench: "Bench"

    @property
    def finished(self) -> bool:
        return self.offset in self.bench.finished


@dataclass
class LaterExecutor:
    """Runs work when the test says so."""

    waiting: list[Callable[[], None]] = field(default_factory=list)

    def submit(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


@dataclass
class CountingStore(Watched):
    """Counts every access, the listing of children and the syncing too."""

    others: int = 0

    def children(self, path: str) -> list[str]:
        self.others += 1
        return super().children(path)

    def sync(self) -> None:
        self.others += 1
        super().sync()

    @property
    def accesses(self) -> int:
        return self.reads + len(self.commits) + self.others


@dataclass
class Bench:
    """A marker on a list of views and marks that are only noted, or on a ledger."""

    ledger: Ledger | None = None
    views: dict[str, frozenset[str]] = field(default_factory=lambda: {"rides": frozenset({"hourly"})})
    bounds: Bounds = field(default_factory=lambda: Bounds(100, 1_000, 1_000))
    has_read_index: bool = True

    def __post_init__(self) -> None:
        self.clock = FrozenClock(10_000)
        self.executor = LaterExecutor()
        self.marked: list[tuple[str, Batch]] = []
        self.trouble: dict[str, Exception] = {}
        self.index_reads = 0
        self.offset = 0
        self.outcomes: Outcomes[Changes] = queue.SimpleQueue()
        self._finished: list[int] = []
        self.marker = Marker(
            mark=self._mark,
            read_index=self._read_index,
            executor=self.executor,
            clock=self.clock,
            randomness=random.Random(1),
            bounds=self.bounds,
            index_refresh_ms=500,
        )
        if self.has_read_index:
            self.turn()

    def _mark(self, view: str, batch: Batch) -> None:
        if self.ledger is not None:
            mark_view(self.ledger, view, batch)
        if view in self.trouble:
            raise self.trouble[view]
        self.marked.append((view, batch))

    def _read_index(self) -> ViewIndex:
        self.index_reads += 1
        if self.ledger is not None:
            return read_index(self.ledger)
        return ViewIndex(dict(self.views))

    def turn(self, ms: int = 0) -> None:
        self.clock.ms += ms
        self.marker.step()
        self.executor.run()
        self.marker.step()

    @property
    def finished(self) -> set[int]:
        """The offsets of the records that the marker is done with, each told once."""
        while not self.outcomes.empty():
            told = self.outcomes.get_nowait()
            assert isinstance(told, Finished)
            self._finished += told.offsets
        assert len(self._finished) == len(set(self._finished))
        return set(self._finished)

    def hear(self, *hours: int, table: str = "rides", action: str = "added", trace_id: str | None = None) -> Heard:
        changes = tuple(
            SegmentChange.model_validate(
                {
                    "action": action,
                    "name": f"s{h}",
                    "crc": None if action == "deleted" else 1,
                    "ranges": (TimeRange(start_ms=h * HOUR, end_ms=(h + 1) * HOUR),),
                    "trace_id": trace_id,
                }
            )
            for h in hours
        )
        event = SegmentsChanged(
            event_id=f"e{self.offset}", table=table, registry_version=1, registered_at_ms=0, changes=changes
        )
        headers = [("ce_traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode())]
        record = Record(Partition("segments.v1", 0), self.offset, None, b"", headers)
        self.offset += 1
        self.marker.offer([Delivery(record, changes_of(event), Assignment(record.partition), self.outcomes)])
        return Heard(record.offset, self)


def test_a_burst_within_the_quiet_period_is_one_flush() -> None:
    """C2 in the small."""
    bench = Bench()
    deliveries = [bench.hear(3) for _ in range(100)]
    bench.turn(99)
    assert bench.marked == []
    bench.turn(1)
    assert len(bench.marked) == 1
    bench.turn(500)
    assert all(d.finished for d in deliveries)


def test_a_burst_before_the_first_list_of_views_is_one_flush_as_well() -> None:
    """C2 from the first record on: before the list is read nobody is known not to wait."""
    bench = Bench(has_read_index=False)
    deliveries = [bench.hear(3)]
    bench.turn(0)
    bench.clock.ms += 50
    deliveries.append(bench.hear(4))
    bench.turn(0)
    assert bench.marked == []
    bench.turn(100)
    assert len(bench.marked) == 1
    bench.turn(500)
    assert all(d.finished for d in deliveries)


def test_a_record_is_finished_only_after_its_mark() -> None:
    """Effects first, offset last (INV-8)."""
    bench = Bench()
    delivery = bench.hear(3)
    bench.turn(600)  # the index is newer than the record, but the mark is only submitted now
    assert bench.marked
    bench.turn(600)
    assert delivery.finished
    bench.trouble["hourly"] = Unavailable("no ZooKeeper")
    delivery = bench.hear(4)
    for _ in range(20):
        bench.turn(600)
    assert not delivery.finished
    bench.trouble.clear()
    for _ in range(30):
        bench.turn(600)
    assert delivery.finished
    assert [i.start_ms // HOUR for _, b in bench.marked for m in b.marks for i in m.ranges or ()] == [3, 4]


def test_a_table_without_views_costs_no_reading_of_its_own() -> None:
    """C1 in the small: the list of views is read by the clock, not by the event."""
    bench = Bench(views={})
    reads = bench.index_reads
    delivery = bench.hear(3, table="lonely")
    bench.turn(0)
    assert bench.index_reads == reads
    assert not delivery.finished, "a view may have been created a moment ago"
    bench.turn(500)
    bench.turn(0)
    assert delivery.finished
    assert bench.marked == []


@pytest.mark.scenario("C1")
def test_a_change_of_a_table_without_views_touches_the_ledger_not_once() -> None:
    """C1: nothing is read or written because of the event, then or later; its record is finished all the same."""
    store = CountingStore(MemoryStore())
    kit = Kit(store)
    kit.set_up()
    kit.put(segment("a", 3, 4))
    bench = Bench(ledger=kit.ledger)

    def accesses_of_a_second() -> int:
        before = store.accesses
        for _ in range(10):
            bench.turn(100)
        return store.accesses - before

    idle = accesses_of_a_second()
    delivery = bench.hear(3, table="lonely")
    assert accesses_of_a_second() == idle
    assert delivery.finished
    bench.hear(3, table="rides")
    assert accesses_of_a_second() > idle, "the counter does not see the marks of a table that has a view"


def test_a_mark_inside_coverage_takes_three_round_trips() -> None:
    """The header with its sync, the shard, the write: whatever else it looked at would be asked for by every event."""
    store = CountingStore(MemoryStore())
    kit = Kit(store)
    kit.set_up()
    kit.put(segment("a", 0, 3))
    for hour in range(3):
        kit.append(hour)
    before = store.accesses
    marks = (Mark(IntervalSet.of([Interval(HOUR, 2 * HOUR)]), Cause("event", "e1", 0)),)
    mark_view(kit.ledger, VIEW.name, Batch(marks, None))
    assert store.accesses - before == 3
    assert kit.states() == {0: "VALID", 1: "STALE", 2: "VALID"}


def test_a_bucket_that_several_marks_of_a_batch_touch_keeps_the_first_cause() -> None:
    """WHY STALE names what came first; the others are marked for what comes after."""
    kit = Kit(MemoryStore())
    kit.set_up()
    kit.put(segment("a", 0, 3))
    for hour in range(3):
        kit.append(hour)
    spans = {"e1": (0, 2), "e2": (1, 3), "e3": (0, 3)}
    marks = [Mark(IntervalSet.of([Interval(a * HOUR, b * HOUR)]), Cause("event", e, 0)) for e, (a, b) in spans.items()]
    mark_view(kit.ledger, VIEW.name, Batch((*marks, Mark(None, Cause("event", "e4", 0))), None))
    entries = kit.ledger.views.state(VIEW.name).entries
    assert [entry.cause and entry.cause.event_id for _, entry in sorted(entries.items())] == ["e1", "e1", "e2"]


def test_a_mark_finds_entries_in_shards_far_from_coverage() -> None:
    """An append out of order is marked too, wherever it lies, with others that lie in coverage (INV-7)."""
    kit = Kit(MemoryStore())
    kit.set_up()
    far = 10 * BUCKETS_PER_SHARD
    kit.put(segment("a", 0, 1), segment("far", far, far + 1))
    kit.append(0)
    kit.append(far)
    ranges = [IntervalSet.of([Interval(hour * HOUR, (hour + 1) * HOUR)]) for hour in (0, far)]
    marks = tuple(Mark(one, Cause("event", "e1", 0)) for one in ranges)
    mark_view(kit.ledger, VIEW.name, Batch(marks, None))
    assert kit.states() == {0: "STALE", far: "STALE"}


def test_a_view_created_just_before_the_event_is_marked_although_the_index_is_older() -> None:
    """The record waits for a reading of the list that began after it arrived."""
    bench = Bench()
    bench.views = {"rides": frozenset({"hourly", "brand_new"})}
    delivery = bench.hear(3)
    bench.turn(100)
    assert [v for v, _ in bench.marked] == ["hourly"]
    assert not delivery.finished
    bench.turn(500)
    bench.turn(100)
    bench.turn(0)
    assert {v for v, _ in bench.marked} == {"hourly", "brand_new"}
    assert delivery.finished


def test_a_record_in_the_very_moment_a_reading_begins_is_sure_after_that_reading() -> None:
    """Order counts, not the clock: a record heard before the reading began does not wait for one more."""
    bench = Bench()
    bench.clock.ms += 500
    delivery = bench.hear(3, table="lonely")
    bench.turn(0)  # the next reading begins in the same millisecond
    assert delivery.finished


def test_a_record_heard_while_the_list_is_being_read_waits_for_the_next_reading() -> None:
    """What is being read may have missed a view that was created since."""
    bench = Bench()
    bench.clock.ms += 500
    bench.marker.step()
    delivery = bench.hear(3, table="lonely")
    bench.turn(0)
    assert not delivery.finished
    bench.turn(500)
    assert delivery.finished


@pytest.mark.parametrize(
    "trouble",
    [Unavailable("away"), OutcomeUnknown("the answer was lost"), BudgetExhausted("lost all 128 tries")],
    ids=lambda trouble: type(trouble).__name__,
)
def test_one_views_trouble_does_not_delay_another(trouble: Exception) -> None:
    """INV-8, INV-14: each view has its own flush, and a mark that may not have happened is made again."""
    bench = Bench(views={"rides": frozenset({"sick", "well"})})
    bench.trouble["sick"] = trouble
    record = bench.hear(3)
    bench.turn(100)
    bench.turn(500)
    assert [v for v, _ in bench.marked] == ["well"]
    assert not record.finished
    bench.trouble.clear()
    bench.turn(60_000)
    assert [v for v, _ in bench.marked] == ["well", "sick"]
    assert record.finished


def test_what_a_view_could_not_mark_is_marked_with_what_came_since_in_one_pass() -> None:
    """Each bucket keeps its first cause; the other view was not asked to mark anything twice (INV-8, INV-14)."""
    bench = Bench(views={"rides": frozenset({"sick", "well"})})
    bench.trouble["sick"] = Unavailable("away")
    records = [bench.hear(3)]
    bench.clock.ms += 100
    bench.marker.step()  # both views are being marked while more is heard
    records.append(bench.hear(3, 4))
    bench.turn(100)
    bench.turn(600)
    assert [v for v, _ in bench.marked] == ["well", "well"]
    assert not any(record.finished for record in records)
    bench.trouble.clear()
    bench.turn(60_000)
    bench.turn(0)
    (again,) = [batch for view, batch in bench.marked if view == "sick"]
    assert [(m.cause.event_id, m.cause.segments) for m in again.marks] == [("e0", ("s3",)), ("e1", ("s4",))]
    assert all(record.finished for record in records)


def test_a_view_found_late_is_marked_with_all_that_was_heard_and_the_others_not_again() -> None:
    """One pass for a whole burst, also for a view that the burst came before."""
    bench = Bench()
    bench.views = {"rides": frozenset({"hourly", "brand_new"})}
    records = [bench.hear(hour) for hour in (3, 5, 3)]
    for ms in (100, 500, 100, 0):
        bench.turn(ms)
    assert sorted(v for v, _ in bench.marked) == ["brand_new", "hourly"]
    assert len({batch for _, batch in bench.marked}) == 1
    assert all(record.finished for record in records)


def test_a_cause_names_the_event_its_place_its_segment_and_the_trace() -> None:
    """WHY STALE: the trace is that of the change when it has one of its own, else that of the record."""
    bench = Bench()
    bench.hear(3, trace_id="a" * 32)
    bench.hear(5)
    bench.turn(100)
    first, second = (mark.cause for _, batch in bench.marked for mark in batch.marks)
    assert (first.kind, first.event_id, first.place, first.segments) == ("event", "e0", "segments.v1/0/0", ("s3",))
    assert (first.trace_id, second.trace_id) == ("a" * 32, TRACE)


def test_a_view_whose_data_is_damaged_does_not_pin_the_offset() -> None:
    """C11 in the small: no retry can mark it, and the others' records must go on."""
    bench = Bench(views={"rides": frozenset({"damaged", "well"})})
    bench.trouble["damaged"] = InvalidInput("format", "garbage")
    delivery = bench.hear(3)
    bench.turn(600)
    bench.turn(600)
    assert delivery.finished


def test_a_bug_while_marking_ends_the_service() -> None:
    """Nobody catches a broken invariant."""
    bench = Bench()
    bench.trouble["hourly"] = ZeroDivisionError("bug")
    bench.hear(3)
    with pytest.raises(ZeroDivisionError):
        bench.turn(600)


def test_stopping_marks_what_was_heard_at_once() -> None:
    """Pending marks are not dropped on stop."""
    bench = Bench(bounds=Bounds(60_000, 600_000, 1_000))
    delivery = bench.hear(3)
    bench.marker.hurry()
    bench.turn(1)
    bench.turn(1)
    assert bench.marked
    assert delivery.finished
