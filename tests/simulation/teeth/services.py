"""Bugs of the services: offsets let go too early, marks lost, tasks kept for ever, files cleared away too soon."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import floodmark_scheduler.cycle
from floodmark.bus.delivery import Assignment, Receipts
from floodmark.bus.pump import Pump
from floodmark.core import dispatch, garbage, tasks
from floodmark.core.buckets import Entry, Mark
from floodmark.core.debounce import Pending
from floodmark.core.dispatch import Policy, Progress, Record
from floodmark.core.errors import EngineLost
from floodmark.core.intervals import Interval, IntervalSet
from floodmark.core.offsets import OffsetTracker
from floodmark.core.tasks import Verdict, Worth
from floodmark.core.transitions import Source
from floodmark.ledger.holds import HoldKeeper
from floodmark.ledger.views import Views
from floodmark_consistency import sweep
from floodmark_consistency.app import Consistency
from floodmark_consistency.marker import Marker
from floodmark_ingester.outbox import Outbox, to_outgoing
from floodmark_worker import builder
from floodmark_worker.app import Worker
from floodmark_worker.builder import _Run
from tests.simulation.teeth import Substitution, bug
from tests.support.memory_bus import MemorySource

# -- offsets ---------------------------------------------------------------------------------------------------------


@bug
def results_matched_first_in_first_out() -> list[Substitution]:
    """Whatever finishes is taken for the oldest record in flight."""

    def finish(self: OffsetTracker, offset: int) -> None:
        oldest = self._started[0]
        self._outstanding.discard(oldest)
        self._started.popleft()

    return [(OffsetTracker, "finish", finish)]


@bug
def offset_committed_before_the_mark() -> list[Substitution]:
    """A record is finished as soon as it is heard."""
    real = Marker.offer

    def offer(self: Marker, deliveries: Any) -> None:
        real(self, deliveries)
        for delivery in deliveries:
            self._hearings[delivery.message.table].receipts = Receipts()
            delivery.finish()

    return [(Marker, "offer", offer)]


@bug
def offset_committed_before_the_build() -> list[Substitution]:
    """A worker lets its tasks go when it begins with them."""
    real = builder._attempt

    def attempt(delivery: Any, randomness: Any) -> Any:
        made = real(delivery, randomness)
        delivery.finish()
        made.delivery = _Told(delivery)
        return made

    return [(builder, "_attempt", attempt)]


class _Told:
    """A delivery that was finished already."""

    def __init__(self, delivery: Any) -> None:
        self.message, self.record, self.tries = delivery.message, delivery.record, delivery.tries

    def finish(self) -> None: ...

    def refuse(self, _error: object) -> None: ...

    def retry(self, _error: object) -> None: ...

    def crash(self, error: BaseException) -> None:
        raise error


@bug
def late_result_accepted_after_a_rebalance() -> list[Substitution]:
    """Work that ends after its partition was taken away, and came back, moves the new position past what is open."""
    real = Pump._finish

    def finish(self: Pump[Any], assignment: Assignment, offsets: Sequence[int], outcome: str = "finished") -> None:
        real(self, assignment, offsets, outcome)
        if not assignment.held and assignment.partition in self._assignments:
            self._source.commit({assignment.partition: max(offsets) + 1})

    return [(Pump, "_finish", finish)]


@bug
def partition_that_comes_back_stays_paused() -> list[Substitution]:
    """A partition that went while it was paused comes back paused, as librdkafka has it, and its pump does not know."""
    real = MemorySource.rebalance

    def rebalance(self: MemorySource) -> None:
        paused = set(self.paused)
        real(self)
        self.paused |= paused

    return [(MemorySource, "rebalance", rebalance)]


@bug
def pending_marks_dropped_on_stop() -> list[Substitution]:
    """A service that stops lets go of what it has heard and not marked yet."""

    def drain(self: Consistency, *, deadline_ms: int) -> int:
        for hearing in self.marker._hearings.values():
            hearing.receipts.finish()
        self.marker._hearings.clear()
        return self.pump.drain(deadline_ms=0)

    return [(Consistency, "drain", drain)]


# -- marks -----------------------------------------------------------------------------------------------------------


@bug
def one_hull_debounce() -> list[Substitution]:
    """Changes far apart are marked as one range from the first to the last."""
    real = Pending.batch
    assert isinstance(real, property)

    def batch(self: Pending) -> Any:
        made = real.fget(self)  # type: ignore[misc]
        ranges = [i for mark in made.marks if mark.ranges is not None for i in mark.ranges]
        if not ranges:
            return made
        hull = Interval(min(i.start_ms for i in ranges), max(i.end_ms for i in ranges))
        return replace(made, marks=(Mark(IntervalSet.of([hull]), made.marks[0].cause),))

    return [(Pending, "batch", property(batch))]


@bug
def debounce_without_a_maximum_age() -> list[Substitution]:
    """As long as events keep coming, nothing is marked."""

    def due_ms(self: Pending) -> int | None:
        return None if self._count == 0 else self._last_ms + self.bounds.quiet_ms

    return [(Pending, "due_ms", property(due_ms))]


@bug
def empty_only_sweep() -> list[Substitution]:
    """The sweep looks again only at buckets that were empty."""
    real = sweep.outdated

    def outdated(state: Any, snapshot: Any) -> Any:
        found = real(state, snapshot)
        return {s: d for s, d in found.items() if d.entry.fingerprint.is_empty}

    return [(sweep, "outdated", outdated)]


@bug
def event_before_the_registry_write() -> list[Substitution]:
    """What is about to be registered is published first."""
    from floodmark.ledger.registry import Registry

    real_write, real_init = Registry._write, Outbox.__init__
    outboxes: list[Any] = []

    def init(self: Outbox, *args: Any, **named: Any) -> None:
        real_init(self, *args, **named)
        outboxes.append(self)

    def write(self: Registry, *args: Any, **named: Any) -> Any:
        made = real_write(self, *args, **named)
        for outbox in outboxes:
            if outbox.ledger.registry is self and made.result.event is not None:
                outbox.publisher.publish([to_outgoing(made.result.event)])
        return made

    return [(Registry, "_write", write), (Outbox, "__init__", init)]


@bug
def outbox_never_looked_at_again() -> list[Substitution]:
    """An event that could not be published at once stays where it is."""
    return [(Outbox, "publish_all", lambda _self: 0)]


# -- tasks -----------------------------------------------------------------------------------------------------------


@bug
def freeze_by_a_flag_that_is_ignored() -> list[Substitution]:
    """A missing or changed input is noticed, and the bucket is built and committed all the same."""
    return [(_Run, "_freeze", lambda _run, _header, _part, faults, _keeper: faults.clear())]


@bug
def equal_or_keep() -> list[Substitution]:
    """A task that is not exactly what the ledger waits for is kept for later, for ever."""
    real = tasks.of_bucket

    def of_bucket(task: Any, entry: Entry | None, live: Source) -> Verdict:
        verdict = real(task, entry, live)
        return verdict if verdict.worth is Worth.RUN else Verdict(Worth.AHEAD, "not next in line")

    return [(tasks, "of_bucket", of_bucket), (builder, "AHEAD_TRIES_MAX", 10**9)]


@bug
def poison_bucket_first_for_ever() -> list[Substitution]:
    """A bucket that fails is tried again at once, and never given up."""

    def fail(
        record: Record | None, *, task_id: str, error: str, now_ms: int, policy: Policy, frozen: bool = False
    ) -> Any:
        if record is None or record.task_id != task_id:
            return None
        return replace(record, progress=Progress.FAILED, worker="", error=error, changed_at_ms=now_ms, not_before_ms=0)

    return [(dispatch, "fail", fail)]


@bug
def offers_never_repeated() -> list[Substitution]:
    """A task that was offered is taken to be on its way for ever, though its message may be lost."""

    def in_flight(record: Record, *, now_ms: int, alive: Any, policy: Policy) -> bool:
        return record.progress is Progress.OFFERED or (record.progress is Progress.CLAIMED and record.worker in alive)

    return [(dispatch, "in_flight", in_flight), (floodmark_scheduler.cycle, "in_flight", in_flight)]


@bug
def news_does_not_overtake() -> list[Substitution]:
    """The scheduler waits for a task that is out, though its bucket needs another one by now."""
    from floodmark_scheduler.eyes import SeenView

    real = floodmark_scheduler.cycle.Scheduler._is_due

    def is_due(self: Any, record: Record, *, now_ms: int, alive: set[str]) -> bool:
        return record.progress is Progress.FAILED and real(self, record, now_ms=now_ms, alive=alive)

    class Forgetful(dict[int, Any]):
        def get(self, key: int, default: Any = None) -> Any:
            return _Anything()

    real_init = SeenView.__init__

    def init(self: Any, *args: Any, **named: Any) -> None:
        real_init(self, *args, **named)
        self.decided_on = Forgetful()

    return [(floodmark_scheduler.cycle.Scheduler, "_is_due", is_due), (SeenView, "__init__", init)]


class _Anything:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


# -- files -----------------------------------------------------------------------------------------------------------


@bug
def hold_released_when_listing_ends() -> list[Substitution]:
    """A worker lets its hold go once it knows its inputs, and reads them after."""
    real = HoldKeeper.__enter__

    def enter(self: HoldKeeper) -> HoldKeeper:
        keeper = real(self)
        if "worker" in keeper.hold.reader:
            keeper._holds.release(keeper.hold)
        return keeper

    real_commit = Views.commit

    def commit(self: Views, view: str, incarnation: str, builds: Any, *, hold: Any = None) -> Any:
        return real_commit(self, view, incarnation, builds)

    return [(HoldKeeper, "__enter__", enter), (Views, "commit", commit)]


@bug
def files_deleted_without_grace() -> list[Substitution]:
    """The janitor deletes what no entry names, at once and whoever may be about to commit or read it."""
    from floodmark_janitor import collecting

    real = garbage.judge

    def judge(file: Any, sighting: Any, **named: Any) -> Any:
        verdict = real(file, sighting, **named)
        return replace(verdict, why=garbage.Why.GARBAGE) if sighting is not None else verdict

    return [(collecting, "judge", judge)]


@bug
def marks_stop_at_the_watermark() -> list[Substitution]:
    """Marks stop at the watermark: what was appended out of order beyond it is never looked at again."""
    real = Views._causes

    def causes(self: Views, view: str, header: Any, marks: Any) -> Mapping[int, Any]:
        found = real(self, view, header, marks)
        return {s: c for s, c in found.items() if header.watermark_ms is None or s < header.watermark_ms}

    return [(Views, "_causes", causes)]


@bug
def dead_spark_held_against_its_tasks() -> list[Substitution]:
    """A worker whose Spark is gone goes on, and everything it is given has failed."""
    real = builder._tried

    def tried(build: Any) -> Any:
        built = real(build)
        return RuntimeError("nobody answers") if isinstance(built, EngineLost) else built

    def step(self: Worker) -> int:
        wait_ms = self.pump.step()
        self.intake.step()
        self.chores.step()
        return wait_ms

    return [(builder, "_tried", tried), (Worker, "step", step)]
