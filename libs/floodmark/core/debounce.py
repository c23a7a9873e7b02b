"""Coalesces the changes of one table until it is time to mark them in its views.

An interval set, never one hull: a change on day 1 and one on day 365 do not dirty what lies between. Three bounds say
when to mark: nothing new for a while, the oldest change is old enough, or there are many. The second one means that an
endless stream of events cannot postpone a mark.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from floodmark.core.buckets import Cause, Mark
from floodmark.core.intervals import Interval, IntervalSet


@dataclass(frozen=True, slots=True)
class Bounds:
    quiet_ms: int
    age_max_ms: int
    count_max: int


AT_ONCE = Bounds(quiet_ms=0, age_max_ms=0, count_max=1)


class Span(Protocol):
    """Anything that is a half-open range, so that what arrives need not be copied before it is known to matter."""

    @property
    def start_ms(self) -> int: ...

    @property
    def end_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Added:
    """How far back data was added, and by what: coverage follows it."""

    from_ms: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class Batch:
    """What to mark in one go, and the oldest data that was added."""

    marks: tuple[Mark, ...]
    added: Added | None


@dataclass(slots=True)
class _Heard:
    """Disjoint ranges in order, grown in place: a burst of n changes costs n short searches, not n rebuilt sets."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def covers(self, start_ms: int, end_ms: int) -> bool:
        at = bisect_right(self.starts, start_ms) - 1
        return at >= 0 and end_ms <= self.ends[at]

    def add(self, start_ms: int, end_ms: int) -> bool:
        """Take a range in, merging what it touches. False when all of it was there already."""
        if self.covers(start_ms, end_ms):
            return False
        first, after = bisect_left(self.ends, start_ms), bisect_right(self.starts, end_ms)
        if first < after:
            start_ms, end_ms = min(start_ms, self.starts[first]), max(end_ms, self.ends[after - 1])
        self.starts[first:after], self.ends[first:after] = [start_ms], [end_ms]
        return True


@dataclass(slots=True)
class Pending:
    """What has been heard about one table and is not marked yet."""

    bounds: Bounds
    _marks: list[Mark] = field(default_factory=list)
    _heard: _Heard = field(default_factory=_Heard)
    _whole_view: bool = False
    _added: Added | None = None
    _count: int = 0
    _first_ms: int = 0
    _last_ms: int = 0

    def count(self, changes: int, now_ms: int) -> None:
        """So many changes are heard now, whatever is new in them."""
        if self._count == 0:
            self._first_ms = now_ms
        self._last_ms = now_ms
        self._count += changes

    def has_news_in(self, ranges: Sequence[Span] | None, *, adds_data: bool) -> bool:
        """Whether a change is to be added. Most of a burst are not, and cost no more than this question."""
        if ranges is None:
            return not self._whole_view
        for span in ranges:
            if adds_data and (self._added is None or span.start_ms < self._added.from_ms):
                return True
            if not self._whole_view and not self._heard.covers(span.start_ms, span.end_ms):
                return True
        return False

    def add(self, ranges: Sequence[Span] | None, cause: Cause, *, adds_data: bool) -> None:
        """One change; no ranges means any time. It adds a mark only for what no earlier one covers, so each bucket
        keeps its first cause."""
        if ranges is None:
            self._hear_of_any_time(cause)
            return
        grew = False
        for span in ranges:
            if adds_data and (self._added is None or span.start_ms < self._added.from_ms):
                self._added = Added(span.start_ms, cause)
            grew |= not self._whole_view and self._heard.add(span.start_ms, span.end_ms)
        if grew:
            self._marks.append(Mark(IntervalSet.of(Interval(s.start_ms, s.end_ms) for s in ranges), cause))

    @property
    def batch(self) -> Batch:
        return Batch(tuple(self._marks), self._added)

    @property
    def due_ms(self) -> int | None:
        """When to mark, on the clock `add` was given; None when there is nothing."""
        if self._count == 0:
            return None
        if self._count >= self.bounds.count_max:
            return self._first_ms
        return min(self._last_ms + self.bounds.quiet_ms, self._first_ms + self.bounds.age_max_ms)

    def _hear_of_any_time(self, cause: Cause) -> None:
        if not self._whole_view:
            self._whole_view = True
            self._marks.append(Mark(None, cause))


def merged(batches: Sequence[Batch]) -> Batch:
    """Several batches as one, as if all had been heard together: the first cause of each bucket stays."""
    if len(batches) == 1:
        return batches[0]
    pending = Pending(AT_ONCE)
    for batch in batches:
        for mark in batch.marks:
            ranges = None if mark.ranges is None else mark.ranges.intervals
            pending.add(ranges, mark.cause, adds_data=False)
    added = [batch.added for batch in batches if batch.added is not None]
    return Batch(pending.batch.marks, min(added, key=lambda a: a.from_ms, default=None))
