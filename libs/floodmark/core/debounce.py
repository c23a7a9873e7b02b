"""Coalesces the changes of one view until it is time to mark them.

An interval set, never one hull: a change on day 1 and one on day 365 do not dirty what lies between. Three bounds say
when to mark: nothing new for a while, the oldest change is old enough, or there are many. The second one means that an
endless stream of events cannot postpone a mark.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from floodmark.core.buckets import Cause, Mark
from floodmark.core.intervals import Interval, IntervalSet


@dataclass(frozen=True, slots=True)
class Bounds:
    quiet_ms: int
    age_max_ms: int
    count_max: int


AT_ONCE = Bounds(quiet_ms=0, age_max_ms=0, count_max=1)


@dataclass(frozen=True, slots=True)
class Change:
    """One change, made once and heard by every view of its table. No ranges means any time."""

    ranges: Sequence[Interval] | None
    cause: Cause
    added_from_ms: int | None = None
    """Where the data begins that it added, if it added any."""


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

    def add(self, new: Interval) -> bool:
        """Take a range in, merging what it touches. False when all of it was there already."""
        start_ms, end_ms = new.start_ms, new.end_ms
        first, after = bisect_left(self.ends, start_ms), bisect_right(self.starts, end_ms)
        if first < after:
            if self.starts[first] <= start_ms and end_ms <= self.ends[first]:
                return False
            start_ms, end_ms = min(start_ms, self.starts[first]), max(end_ms, self.ends[after - 1])
        self.starts[first:after], self.ends[first:after] = [start_ms], [end_ms]
        return True


@dataclass(slots=True)
class Pending:
    """What has been heard about one view since its last mark."""

    bounds: Bounds
    _marks: list[Mark] = field(default_factory=list)
    _heard: _Heard = field(default_factory=_Heard)
    _whole_view: bool = False
    _added: Added | None = None
    _count: int = 0
    _first_ms: int = 0
    _last_ms: int = 0

    def add(self, change: Change, *, now_ms: int) -> None:
        """One change. It adds a mark only for what no earlier one covers, so each bucket keeps its first cause."""
        if self._count == 0:
            self._first_ms = now_ms
        self._last_ms = now_ms
        self._count += 1
        if change.added_from_ms is not None:
            self._note_added(change.added_from_ms, change.cause)
        if self._whole_view:
            return
        if change.ranges is None:
            self._whole_view = True
            self._marks.append(Mark(None, change.cause))
            return
        grew = False
        for interval in change.ranges:
            grew |= self._heard.add(interval)
        if grew:
            self._marks.append(Mark(IntervalSet.of(change.ranges), change.cause))

    def put_back(self, batch: Batch, *, now_ms: int) -> None:
        """A batch that could not be marked goes before what was heard since."""
        newer, self._marks, self._heard, self._whole_view = self._marks, [], _Heard(), False
        for mark in (*batch.marks, *newer):
            ranges = None if mark.ranges is None else mark.ranges.intervals
            self.add(Change(ranges, mark.cause), now_ms=now_ms)
        since, self._added = self._added, batch.added
        if since is not None:
            self._note_added(since.from_ms, since.cause)

    def take(self) -> Batch:
        """Everything heard so far; afterwards there is nothing."""
        batch = Batch(tuple(self._marks), self._added)
        self._marks, self._heard, self._whole_view, self._added, self._count = [], _Heard(), False, None, 0
        return batch

    @property
    def due_ms(self) -> int | None:
        """When to mark, on the clock `add` was given; None when there is nothing."""
        if self._count == 0:
            return None
        if self._count >= self.bounds.count_max:
            return self._first_ms
        return min(self._last_ms + self.bounds.quiet_ms, self._first_ms + self.bounds.age_max_ms)

    def _note_added(self, from_ms: int, cause: Cause) -> None:
        if self._added is None or from_ms < self._added.from_ms:
            self._added = Added(from_ms, cause)
