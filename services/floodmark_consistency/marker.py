"""From `segments.v1` to STALE marks: coalesce the changes of each table, mark its views, then finish the records.

    record --> Hearing of its table --due--> Chapter --> each view: mark in the ledger --> records finished (INV-8)

The views of one table hear the same, so it is coalesced once; each view marks it on its own, so one view's trouble
never delays another's marks (INV-14). A chapter's records are finished when every view has marked it, and when a
reading of the list of views that began after they arrived shows no other view: a view created a moment ago must not
miss a change either.

All state is changed by the thread that steps; flushes run beside it and report back through a queue.
"""

import queue
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from floodmark.bus.delivery import Delivery, Receipts
from floodmark.contracts.changes import Change, Changes
from floodmark.contracts.envelope import trace_id_of
from floodmark.core.buckets import Cause
from floodmark.core.debounce import AT_ONCE, Batch, Bounds, Pending, merged
from floodmark.core.errors import BudgetExhausted, InvalidInput, OutcomeUnknown, Unavailable
from floodmark.core.ports import Clock, Executor
from floodmark_consistency.index import ViewIndex

log = structlog.get_logger()

RETRY_FIRST_MS, RETRY_CAP_MS = 200, 10_000


@dataclass(slots=True)
class _Hearing:
    """What is being heard about one table, until it is time to mark it."""

    pending: Pending
    receipts: Receipts[Changes] = field(default_factory=Receipts)
    reading: int = 0
    """The number of the first reading of the index that begins after the last of them arrived."""


@dataclass(slots=True, eq=False)
class _Chapter:
    """What was heard about one table in one go: the same marks for each of its views."""

    table: str
    batch: Batch
    receipts: Receipts[Changes]
    reading: int
    """Only this reading of the index, or a later one, shows every view the chapter is for."""
    views: set[str] = field(default_factory=set)
    open: int = 1
    """What must happen before its records are finished: the marks of these views, and that reading."""

    def settle(self) -> None:
        self.open -= 1
        if self.open == 0:
            self.receipts.finish()


@dataclass(slots=True)
class _View:
    waiting: list[_Chapter] = field(default_factory=list)
    flushing: bool = False
    failures: int = 0
    not_before_ms: int = 0


@dataclass(frozen=True, slots=True)
class _Flushed:
    view: str
    chapters: list[_Chapter]
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
        self._index: ViewIndex | None = None
        """None until it is read for the first time: until then anybody may wait for anything."""
        self._index_due_ms = 0
        self._readings_begun = 0
        self._reading_index = False
        self._hearings: dict[str, _Hearing] = {}
        self._views: dict[str, _View] = {}
        self._unsure: list[_Chapter] = []
        self._reports: queue.SimpleQueue[_Flushed | ViewIndex | Exception] = queue.SimpleQueue()

    def offer(self, deliveries: Sequence[Delivery[Changes]]) -> None:
        now_ms = self._clock.monotonic_ms()
        for delivery in deliveries:
            event = delivery.message
            hearing = self._hearings.get(event.table)
            if hearing is None:
                hearing = self._hearings[event.table] = _Hearing(Pending(self._bounds))
            hearing.receipts.add(delivery)
            hearing.reading = self._readings_begun + 1
            pending = hearing.pending
            pending.count(len(event.changes), now_ms)
            for change in event.changes:
                adds_data = change.action != "deleted"
                if pending.has_news_in(change.ranges, adds_data=adds_data):
                    pending.add(change.ranges, self._cause(delivery, event, change), adds_data=adds_data)

    def step(self) -> int:
        """Take reports, refresh the index, start the flushes that are due. Returns how long nothing is due."""
        while not self._reports.empty():
            self._take(self._reports.get_nowait())
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._index_due_ms and not self._reading_index:
            self._refresh_index(now_ms)
        dues = [self._close_if_due(table, hearing, now_ms) for table, hearing in list(self._hearings.items())]
        dues += [self._flush_if_due(name, view, now_ms) for name, view in self._views.items()]
        return max(0, min([self._index_due_ms, *dues]) - now_ms)

    def hurry(self) -> None:
        """The service stops: mark everything now, and read the index once more for the records that wait for it."""
        self._index_due_ms = 0
        self._bounds = AT_ONCE
        for hearing in self._hearings.values():
            hearing.pending.bounds = AT_ONCE
        for view in self._views.values():
            view.not_before_ms = 0

    # -- hearing ---------------------------------------------------------------------------------------------------

    def _cause(self, delivery: Delivery[Changes], event: Changes, change: Change) -> Cause:
        record = delivery.record
        return Cause(
            kind="event",
            event_id=event.event_id,
            marked_at_ms=self._clock.now_ms(),
            place=record.place,
            segments=(change.name,),
            trace_id=change.trace_id or trace_id_of(record.headers, record.place),
        )

    def _close_if_due(self, table: str, hearing: _Hearing, now_ms: int) -> int:
        """Make a chapter of what was heard when it is time, at once when nobody waits for it. Returns when to look."""
        views = frozenset[str]() if self._index is None else self._index.of(table)
        nobody_waits = self._index is not None and not views
        due_ms = hearing.pending.due_ms
        if not nobody_waits and due_ms is not None and due_ms > now_ms:
            return due_ms
        del self._hearings[table]
        chapter = _Chapter(table, hearing.pending.batch, hearing.receipts, hearing.reading)
        self._unsure.append(chapter)
        self._tell(chapter, views)
        return now_ms + self._index_refresh_ms

    def _tell(self, chapter: _Chapter, views: frozenset[str]) -> None:
        for name in sorted(views - chapter.views):
            self._views.setdefault(name, _View()).waiting.append(chapter)
            chapter.views.add(name)
            chapter.open += 1

    # -- flushing --------------------------------------------------------------------------------------------------

    def _flush_if_due(self, name: str, view: _View, now_ms: int) -> int:
        """Start a flush when it is time. Returns when to look again."""
        if view.flushing or not view.waiting:
            return now_ms + self._index_refresh_ms
        if view.not_before_ms > now_ms:
            return view.not_before_ms
        chapters, view.waiting, view.flushing = view.waiting, [], True
        self._executor.submit(lambda: self._flush(name, chapters))
        return now_ms + self._index_refresh_ms

    def _flush(self, name: str, chapters: list[_Chapter]) -> None:
        try:
            self._mark(name, merged([chapter.batch for chapter in chapters]))
        except Exception as error:
            self._reports.put(_Flushed(name, chapters, error))
        else:
            self._reports.put(_Flushed(name, chapters, None))

    def _take(self, report: "_Flushed | ViewIndex | Exception") -> None:
        if isinstance(report, ViewIndex):
            self._reading_index = False
            self._index = report
            self._make_sure(report)
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
        for chapter in report.chapters:
            chapter.settle()

    def _again(self, view: _View, report: _Flushed, error: Exception) -> None:
        """Put the marks back in front, and try again after a while."""
        view.failures += 1
        delay_ms = min(RETRY_CAP_MS, RETRY_FIRST_MS << min(view.failures - 1, 16))
        now_ms = self._clock.monotonic_ms()
        view.not_before_ms = now_ms + self._randomness.randint(delay_ms // 2, delay_ms)
        view.waiting = [*report.chapters, *view.waiting]
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

    def _make_sure(self, index: ViewIndex) -> None:
        """The index was read: tell the views that chapters have missed, then let go of those chapters."""
        waiting, self._unsure = self._unsure, []
        for chapter in waiting:
            if chapter.reading > self._readings_begun:  # one reading at a time: the last begun is the one that ended
                self._unsure.append(chapter)
                continue
            self._tell(chapter, index.of(chapter.table))
            chapter.settle()
