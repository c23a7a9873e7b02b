"""The consuming loop: takes records from a source, hands them to a sink, and commits what is durable.

    poll --> decode --> sink.offer(deliveries) ... delivery.finish() --> tracker --> commit
               |                                   .refuse(error) ----> dead letter, then finish
               +-- invalid: dead letter            .retry(error) -----> offered again after a backoff
                                                   .crash(error) -----> raised from step, nothing committed

The loop and the processing are separate things: a sink may run records on threads, or collect them and finish
many at once. Effects come first, offsets last (INV-8): the committed position is the lowest outstanding offset.
A pump that stays full pauses its partitions and keeps polling, so that it never leaves its group in the middle of
a job. One that is full for a moment just waits: a client throws its read-ahead away when it is paused, and fetching
it again takes half a second, whatever the work took.

SUBTLE: a delivery belongs to the assignment it was read under. Work that finishes after its partition was revoked
finds its assignment gone and changes nothing, even if the same partition has come back in the meantime: the
position of the new assignment starts again from the committed one, and a late result must not push it forward.
"""

import heapq
import queue
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar, cast

import structlog

from floodmark.bus.delivery import Assignment, Delivery, Finished, Outcomes, Sink
from floodmark.bus.ports import CommitAnswer, Partition, Record, Source
from floodmark.core.errors import InvalidInput, OutcomeUnknown, Unavailable
from floodmark.core.ports import Clock, Executor

T = TypeVar("T")
log = structlog.get_logger()

OFFSETS_LOGGED_MAX = 50


@dataclass(frozen=True, slots=True)
class PumpLimits:
    in_flight_max: int = 64
    """Deliveries handed out and not finished, retries included."""
    span_max: int = 10_000
    """Records of one partition read past its position: what a crash would bring back."""
    turn_max: int = 1_000
    """Records read in one step: whatever else a service does between steps is not kept waiting by a flood."""
    pause_after_ms: int = 500
    """How long a full pump waits for room before it pauses. Far below any interval in which a member must poll."""
    full_wait_ms: int = 5
    busy_poll_ms: int = 20
    idle_poll_ms: int = 250
    commit_every_ms: int = 200
    retry_first_ms: int = 200
    retry_cap_ms: int = 10_000


class DeadLetterBox(Protocol):
    def put(self, record: Record, error: InvalidInput) -> None:
        """Return when the record, its place and the reason are durable."""


class Pump(Generic[T]):
    """One member of a consumer group, stepped by one thread."""

    def __init__(
        self,
        *,
        source: Source,
        topics: Sequence[str],
        decode: Callable[[Record], T],
        sink: Sink[T],
        dead_letters: DeadLetterBox,
        clock: Clock,
        randomness: random.Random,
        limits: PumpLimits | None = None,
        may_progress: Callable[[], bool] = lambda: True,
        on_outcome: Callable[[Partition, str, int], None] = lambda _partition, _outcome, _count: None,
    ) -> None:
        self._source = source
        self._decode = decode
        self._sink = sink
        self._dead_letters = dead_letters
        self._clock = clock
        self._randomness = randomness
        self._limits = limits or PumpLimits()
        self._may_progress = may_progress
        self._on_outcome = on_outcome
        self._assignments: dict[Partition, Assignment] = {}
        self._paused: set[Partition] = set()
        self._outcomes: Outcomes[T] = queue.SimpleQueue()
        self._waiting: list[tuple[int, int, Delivery[T]]] = []  # (due, sequence, delivery), a heap
        self._sequence = 0
        self._in_flight = 0
        self._full_since_ms: int | None = None
        self._commit_due_ms = 0
        self._committing = False
        self._commit_failing = False
        self._bury_due_ms = 0
        self._draining = False
        source.subscribe(topics, self)

    @property
    def in_flight(self) -> int:
        """Deliveries of partitions still held that have not finished."""
        return self._in_flight

    @property
    def _running(self) -> int:
        """Deliveries a sink has in hand, as opposed to those waiting to be offered again."""
        return self._in_flight - sum(delivery.assignment.held for _, _, delivery in self._waiting)

    @property
    def positions(self) -> Mapping[Partition, int]:
        return {a.partition: p for a in self._assignments.values() if (p := a.tracker.position) is not None}

    def step(self) -> int:
        """One turn: outcomes, retries, flow control, new records, commit. Returns how long to wait before the next."""
        self._settle()
        if not self._draining:
            self._offer_again()
        if self._is_full_for_a_moment():
            self._commit_soon()
            return self._limits.full_wait_ms
        self._control_flow()
        room = max(min(self._limits.in_flight_max - self._in_flight, self._limits.turn_max), 1)
        timeout_ms = self._limits.busy_poll_ms if self._in_flight else self._limits.idle_poll_ms
        records = self._source.poll(records_max=room, timeout_ms=timeout_ms)
        self._hand_out([delivery for record in records if (delivery := self._accept(record))])
        self._settle()
        self._commit_soon()
        return 0

    def drain(self, *, deadline_ms: int) -> int:
        """Take nothing new, wait for running work until the deadline, commit. Returns how much was abandoned."""
        self._draining = True
        self._settle()
        while self._running and self._clock.monotonic_ms() < deadline_ms:
            self.step()
        self._commit_now(self._assignments.values())
        return self._in_flight

    # -- records ---------------------------------------------------------------------------------------------------

    def _accept(self, record: Record) -> Delivery[T] | None:
        """Track a record and decode it. None when no sink is to see it."""
        assignment = self._assignments.get(record.partition)
        if assignment is None:
            return None  # revoked inside this very poll: its new owner reads it
        expected = assignment.tracker.next_offset
        if expected is not None and record.offset < expected:
            assignment = self._start_over(assignment, record)
        if assignment.committed is None:
            assignment.committed = record.offset  # where reading began is where the group already is
        assignment.tracker.start(record.offset)
        self._in_flight += 1
        try:
            message = self._decode(record)
        except InvalidInput as error:
            # There is no message, and no sink will look for one: only the record goes to the dead letters.
            Delivery(record, cast(T, None), assignment, self._outcomes).refuse(error)
            return None
        return Delivery(record, message, assignment, self._outcomes)

    def _hand_out(self, deliveries: Sequence[Delivery[T]]) -> None:
        if not self._may_progress():
            for delivery in deliveries:
                self._wait(delivery)
        elif deliveries:
            self._sink.offer(deliveries)

    def _start_over(self, old: Assignment, record: Record) -> Assignment:
        """The log begins again below what was read: the topic was deleted and recreated. What is in flight is void."""
        log.warning("partition_restarted", place=record.place, expected_offset=old.tracker.next_offset)
        self._forget(old)
        return self._hold(old.partition)

    def _settle(self) -> None:
        while not self._outcomes.empty():
            told = self._outcomes.get_nowait()
            if isinstance(told, Finished):
                self._finish(told.assignment, told.offsets)
            else:
                self._settle_one(told.delivery, told.error)

    def _settle_one(self, delivery: Delivery[T], error: BaseException | None) -> None:
        assignment, record = delivery.assignment, delivery.record
        if isinstance(error, InvalidInput) and assignment.held:
            delivery.refusal = error
            error = self._bury(record, error)
        if error is None or not assignment.held:
            self._finish(assignment, [record.offset], "refused" if delivery.refusal else "finished")
        elif isinstance(error, Unavailable | OutcomeUnknown):
            log.warning("record_postponed", place=record.place, tries=delivery.tries, error=str(error))
            self._on_outcome(record.partition, "postponed", 1)
            self._wait(delivery)
        else:
            raise error

    def _finish(self, assignment: Assignment, offsets: Sequence[int], outcome: str = "finished") -> None:
        if assignment.held:
            for offset in offsets:
                assignment.tracker.finish(offset)
            self._in_flight -= len(offsets)
        else:
            outcome = "late"
            log.info("late_result_ignored", partition=_name(assignment.partition), offsets=offsets[:OFFSETS_LOGGED_MAX])
        self._on_outcome(assignment.partition, outcome, len(offsets))

    def _bury(self, record: Record, error: InvalidInput) -> Unavailable | OutcomeUnknown | None:
        """Dead-letter a record. Until that is durable the record stays outstanding."""
        if self._clock.monotonic_ms() < self._bury_due_ms:
            return Unavailable("the last dead letter was not acknowledged")
        try:
            self._dead_letters.put(record, error)
        except (Unavailable, OutcomeUnknown) as failure:
            # Each try may take as long as the producer's own timeout; one a turn keeps the polls coming.
            self._bury_due_ms = self._clock.monotonic_ms() + self._limits.retry_first_ms
            return failure
        return None

    def _wait(self, delivery: Delivery[T]) -> None:
        delay_ms = min(self._limits.retry_cap_ms, self._limits.retry_first_ms * 2 ** min(delivery.tries - 1, 16))
        due_ms = self._clock.monotonic_ms() + self._randomness.randint(delay_ms // 2, delay_ms)
        self._sequence += 1
        heapq.heappush(self._waiting, (due_ms, self._sequence, delivery))

    def _offer_again(self) -> None:
        while self._waiting and self._may_progress() and self._waiting[0][0] <= self._clock.monotonic_ms():
            delivery = heapq.heappop(self._waiting)[2]
            if not delivery.assignment.held:
                continue
            delivery.tries += 1
            if delivery.refusal is not None:
                delivery.refuse(delivery.refusal)
            else:
                self._sink.offer([delivery])

    # -- flow and positions ----------------------------------------------------------------------------------------

    def _is_full_for_a_moment(self) -> bool:
        if self._in_flight < self._limits.in_flight_max:
            self._full_since_ms = None
            return False
        now_ms = self._clock.monotonic_ms()
        if self._full_since_ms is None:
            self._full_since_ms = now_ms
        is_young = now_ms - self._full_since_ms < self._limits.pause_after_ms
        return is_young and not self._draining and self._may_progress()

    def _control_flow(self) -> None:
        closed = self._draining or self._in_flight >= self._limits.in_flight_max or not self._may_progress()
        wanted = {p for p, a in self._assignments.items() if closed or a.tracker.span >= self._limits.span_max}
        if to_pause := wanted - self._paused:
            self._source.pause(to_pause)
        if to_resume := (self._paused - wanted) & self._assignments.keys():
            self._source.resume(to_resume)
        self._paused = wanted

    def _commit_soon(self) -> None:
        """The everyday commit: a bus that hangs must not stop the loop, which also looks for signals."""
        if self._committing or self._clock.monotonic_ms() < self._commit_due_ms:
            return
        self._commit_due_ms = self._clock.monotonic_ms() + self._limits.commit_every_ms
        if moved := self._moved(self._assignments.values()):
            self._committing = True
            self._source.begin_commit(_by_partition(moved), lambda answer: self._note_commit(moved, answer))

    def _commit_now(self, assignments: Collection[Assignment]) -> None:
        """The last commit before partitions go."""
        if moved := self._moved(assignments):
            try:
                self._note_commit(moved, self._source.commit(_by_partition(moved)))
            except Unavailable as error:
                self._note_commit(moved, error)

    def _moved(self, assignments: Collection[Assignment]) -> dict[Assignment, int]:
        if not self._may_progress():
            return {}
        return {a: p for a in assignments if (p := a.tracker.position) is not None and p != a.committed}

    def _note_commit(self, moved: Mapping[Assignment, int], answer: CommitAnswer) -> None:
        self._committing = False
        if isinstance(answer, Unavailable):
            if not self._commit_failing:  # once, not at every try until the bus is back
                log.warning("commit_postponed", error=str(answer))
            self._commit_failing = True
            return
        self._commit_failing = False
        if not answer:
            log.warning("commit_refused", partitions=_names(a.partition for a in moved))
            return
        for assignment, position in moved.items():
            assignment.committed = position

    # -- rebalances, told from inside poll -------------------------------------------------------------------------

    def assigned(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            self._hold(partition)
        log.info("partitions_assigned", partitions=_names(partitions))

    def revoked(self, partitions: Collection[Partition]) -> None:
        self._settle()
        self._commit_now([a for p in partitions if (a := self._assignments.get(p))])
        self._drop(partitions)
        log.info("partitions_revoked", partitions=_names(partitions))

    def lost(self, partitions: Collection[Partition]) -> None:
        self._drop(partitions)
        log.warning("partitions_lost", partitions=_names(partitions))

    def _hold(self, partition: Partition) -> Assignment:
        assignment = self._assignments[partition] = Assignment(partition)
        self._paused.discard(partition)
        return assignment

    def _drop(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            if assignment := self._assignments.pop(partition, None):
                self._forget(assignment)
            self._paused.discard(partition)

    def _forget(self, assignment: Assignment) -> None:
        assignment.held = False
        self._in_flight -= assignment.tracker.outstanding


def _by_partition(moved: Mapping[Assignment, int]) -> dict[Partition, int]:
    return {assignment.partition: position for assignment, position in moved.items()}


def _name(partition: Partition) -> str:
    return f"{partition.topic}/{partition.number}"


def _names(partitions: Iterable[Partition]) -> list[str]:
    return sorted(_name(p) for p in partitions)


class ConcurrentSink(Generic[T]):
    """Runs a handler for each record on an executor; returning means the effects are durable."""

    def __init__(
        self,
        handle: Callable[[T], None],
        executor: Executor,
        about: Callable[[Delivery[T]], AbstractContextManager[object]],
    ) -> None:
        self._handle = handle
        self._executor = executor
        self._about = about

    def offer(self, deliveries: Sequence[Delivery[T]]) -> None:
        for delivery in deliveries:
            self._executor.submit(partial(self._run, delivery))

    def _run(self, delivery: Delivery[T]) -> None:
        try:
            with self._about(delivery):
                self._handle(delivery.message)
        except InvalidInput as error:
            delivery.refuse(error)
        except (Unavailable, OutcomeUnknown) as error:
            delivery.retry(error)
        except BaseException as error:  # handed to the loop, which raises it
            delivery.crash(error)
        else:
            delivery.finish()
