"""From `segments.v1` to STALE marks: coalesce the changes of each view, mark them, then finish their records.

    record --> for each view of its table: Pending --due--> mark in the ledger --> record finished (INV-8)

Each view has its own pending changes and its own flush, so one view's trouble never delays another's marks (INV-14).
A record is finished when every view it concerns is marked, and when a reading of the list of views that began after the
record arrived shows no other view: a view created a moment ago must not miss a change either.

All state is changed by the thread that steps; flushes run beside it and report back through a queue.
"""

import queue
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from floodmark.bus.pump import Delivery
from floodmark.contracts.envelope import Envelope
from floodmark.contracts.messages import SegmentChange, SegmentsChanged
from floodmark.core.buckets import Cause
from floodmark.core.debounce import AT_ONCE, Batch, Bounds, Change, Pending
from floodmark.core.errors import BudgetExhausted, InvalidInput, OutcomeUnknown, Unavailable
from floodmark.core.intervals import Interval
from floodmark.core.ports import Clock, Executor
from floodmark_consistency.index import ViewIndex

log = structlog.get_logger()

RETRY_FIRST_MS, RETRY_CAP_MS = 200, 10_000


@dataclass(slots=True, eq=False)
class _Tally:
    """A record and how many things must happen before it is finished."""

    delivery: Delivery[Envelope]
    open: int = 0

    def settle(self) -> None:
        self.open -= 1
        if self.open == 0:
            self.delivery.finish()


@dataclass(slots=True)
class _View:
    pending: Pending
    tallies: list[_Tally] = field(default_factory=list)
    flushing: bool = False
    failures: int = 0
    not_before_ms: int = 0


@dataclass(frozen=True, slots=True)
class _Unsure:
    """A record that is sure of its views only after a reading of the index that began later than it arrived."""

    reading: int
    """The number of the first such reading."""
    event: SegmentsChanged
    tally: _Tally
    known: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Flushed:
    view: str
    batch: Batch
    tallies: list[_Tally]
    error: Exception | None


class Marker:
    """The sink behind the pump on `segments.v1`."""

    def __init__(
        self,
        *,
        mark: Callable[[str, Batch], None],
        read_index: Callable[[], ViewIndex],
        executor: Executor,
        clock: Clock,
        randomness: random.Random,
        bounds: Bounds,
        index_refresh_ms: int,
    ) -> None:
        self._mark = mark
        self._read_index = read_index
        self._executor = executor
        self._clock = clock
        self._randomness = randomness
        self._bounds = bounds
        self._index_refresh_ms = index_refresh_ms
        self._index = ViewIndex()
        self._index_due_ms = 0
        self._readings_begun = 0
        self._reading_index = False
        self._views: dict[str, _View] = {}
        self._unsure: list[_Unsure] = []
        self._reports: queue.SimpleQueue[_Flushed | ViewIndex | Exception] = queue.SimpleQueue()

    def offer(self, delivery: Delivery[Envelope]) -> None:
        event = delivery.message.message
        assert isinstance(event, SegmentsChanged), f"{event} came through the segments topic"
        known = self._index.of(event.table)
        tally = _Tally(delivery, open=1)  # for the index that is newer than this record
        self._unsure.append(_Unsure(self._readings_begun + 1, event, tally, known))
        self._hear(event, tally, known)

    def step(self) -> int:
        """Take reports, refresh the index, start the flushes that are due. Returns how long nothing is due."""
        while not self._reports.empty():
            self._take(self._reports.get_nowait())
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._index_due_ms and not self._reading_index:
            self._refresh_index(now_ms)
        dues = [self._flush_if_due(name, view, now_ms) for name, view in self._views.items()]
        return max(0, min([self._index_due_ms, *dues]) - now_ms)

    def hurry(self) -> None:
        """The service stops: mark everything now, and read the index once more for the records that wait for it."""
        self._index_due_ms = 0
        self._bounds = AT_ONCE
        for view in self._views.values():
            view.pending.bounds = AT_ONCE
            view.not_before_ms = 0

    # -- hearing ---------------------------------------------------------------------------------------------------

    def _hear(self, event: SegmentsChanged, tally: _Tally, views: frozenset[str]) -> None:
        if not views:
            return
        now_ms = self._clock.monotonic_ms()
        changes = [_change(c, self._cause(event, c, tally.delivery)) for c in event.changes]
        for name in views:
            view = self._views.get(name)
            if view is None:
                view = self._views[name] = _View(Pending(self._bounds))
            for change in changes:
                view.pending.add(change, now_ms=now_ms)
            view.tallies.append(tally)
            tally.open += 1

    def _cause(self, event: SegmentsChanged, change: SegmentChange, delivery: Delivery[Envelope]) -> Cause:
        return Cause(
            kind="event",
            event_id=event.event_id,
            marked_at_ms=self._clock.now_ms(),
            place=delivery.record.place,
            segments=(change.name,),
            trace_id=change.trace_id or delivery.message.trace_id,
        )

    # -- flushing --------------------------------------------------------------------------------------------------

    def _flush_if_due(self, name: str, view: _View, now_ms: int) -> int:
        """Start a flush when it is time. Returns when to look again."""
        due_ms = view.pending.due_ms
        if due_ms is None or view.flushing:
            return now_ms + self._index_refresh_ms
        due_ms = max(due_ms, view.not_before_ms)
        if due_ms > now_ms:
            return due_ms
        batch, tallies = view.pending.take(), view.tallies
        view.tallies, view.flushing = [], True
        self._executor.submit(lambda: self._flush(name, batch, tallies))
        return now_ms + self._index_refresh_ms

    def _flush(self, name: str, batch: Batch, tallies: list[_Tally]) -> None:
        try:
            self._mark(name, batch)
        except Exception as error:
            self._reports.put(_Flushed(name, batch, tallies, error))
        else:
            self._reports.put(_Flushed(name, batch, tallies, None))

    def _take(self, report: "_Flushed | ViewIndex | Exception") -> None:
        if isinstance(report, ViewIndex):
            self._reading_index = False
            self._index = report
            self._make_sure()
        elif isinstance(report, _Flushed):
            self._take_flush(report)
        else:
            self._reading_index = False
            if not isinstance(report, Unavailable | OutcomeUnknown):
                raise report
            log.warning("view_index_not_read", error=str(report))

    def _take_flush(self, report: _Flushed) -> None:
        view = self._views[report.view]
        view.flushing = False
        if isinstance(report.error, Unavailable | OutcomeUnknown | BudgetExhausted):
            self._again(view, report, report.error)
            return
        if isinstance(report.error, InvalidInput):
            # Its data is damaged: no retry can mark it. The sweep looks at it again when it has been mended.
            log.error("view_not_markable", view=report.view, error=str(report.error))
        elif report.error is not None:
            raise report.error
        view.failures = 0
        for tally in report.tallies:
            tally.settle()

    def _again(self, view: _View, report: _Flushed, error: Exception) -> None:
        """Put the marks back in front, and try again after a while."""
        view.failures += 1
        delay_ms = min(RETRY_CAP_MS, RETRY_FIRST_MS << min(view.failures - 1, 16))
        now_ms = self._clock.monotonic_ms()
        view.not_before_ms = now_ms + self._randomness.randint(delay_ms // 2, delay_ms)
        view.pending.put_back(report.batch, now_ms=now_ms)
        view.tallies = [*report.tallies, *view.tallies]
        log.warning("mark_postponed", view=report.view, failures=view.failures, error=str(error))

    # -- the index -------------------------------------------------------------------------------------------------

    def _refresh_index(self, now_ms: int) -> None:
        self._reading_index = True
        self._readings_begun += 1
        self._index_due_ms = now_ms + self._index_refresh_ms

        def read() -> None:
            try:
                self._reports.put(self._read_index())
            except Exception as error:
                self._reports.put(error)

        self._executor.submit(read)

    def _make_sure(self) -> None:
        """The index was read: mark the views that earlier records missed, then let go of those records."""
        waiting, self._unsure = self._unsure, []
        for unsure in waiting:
            if unsure.reading > self._readings_begun:  # one reading at a time: the last begun is the one that ended
                self._unsure.append(unsure)
                continue
            self._hear(unsure.event, unsure.tally, self._index.of(unsure.event.table) - unsure.known)
            unsure.tally.settle()


def _change(reported: SegmentChange, cause: Cause) -> Change:
    if reported.ranges is None:
        return Change(None, cause)
    ranges = [Interval(r.start_ms, r.end_ms) for r in reported.ranges]
    return Change(ranges, cause, None if reported.action == "deleted" else min(r.start_ms for r in ranges))
