"""Half-open time intervals and sets of them. An inclusive end is converted at the edge, once."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from floodmark.core.errors import InvalidInput


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """`[start_ms, end_ms)`, never empty."""

    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if self.end_ms <= self.start_ms:
            raise InvalidInput("interval", f"interval [{self.start_ms}, {self.end_ms}) must end after it starts")

    def overlaps(self, other: "Interval") -> bool:
        return self.start_ms < other.end_ms and other.start_ms < self.end_ms


@dataclass(frozen=True, slots=True)
class IntervalSet:
    """Disjoint intervals in order, touching ones merged: what is not in it was never added."""

    intervals: tuple[Interval, ...] = ()

    @classmethod
    def of(cls, intervals: Iterable[Interval]) -> "IntervalSet":
        merged: list[Interval] = []
        for interval in sorted(intervals):
            if merged and interval.start_ms <= merged[-1].end_ms:
                last = merged.pop()
                interval = Interval(last.start_ms, max(last.end_ms, interval.end_ms))  # noqa: PLW2901 - grown in place
            merged.append(interval)
        return cls(tuple(merged))

    def union(self, intervals: Iterable[Interval]) -> "IntervalSet":
        return IntervalSet.of((*self.intervals, *intervals))

    def clip(self, window: Interval) -> "IntervalSet":
        """The part inside the window."""
        if self.lies_in(window):
            return self
        return IntervalSet(
            tuple(
                Interval(max(i.start_ms, window.start_ms), min(i.end_ms, window.end_ms))
                for i in self.intervals
                if i.overlaps(window)
            )
        )

    def lies_in(self, window: Interval) -> bool:
        return not self.intervals or (
            window.start_ms <= self.intervals[0].start_ms and self.intervals[-1].end_ms <= window.end_ms
        )

    def overlaps(self, window: Interval) -> bool:
        at = bisect_left(self.intervals, window.start_ms, key=lambda i: i.end_ms - 1)
        return at < len(self.intervals) and self.intervals[at].overlaps(window)

    def gaps(self, window: Interval) -> Iterator[Interval]:
        """What of a window is in none of them, in order."""
        at_ms = window.start_ms
        for taken in self._overlapping(window):
            if at_ms < taken.start_ms:
                yield Interval(at_ms, taken.start_ms)
            at_ms = taken.end_ms
        if at_ms < window.end_ms:
            yield Interval(at_ms, window.end_ms)

    def without(self, other: "IntervalSet") -> "IntervalSet":
        return IntervalSet(tuple(gap for interval in self.intervals for gap in other.gaps(interval)))

    def _overlapping(self, window: Interval) -> Iterator[Interval]:
        first = bisect_left(self.intervals, window.start_ms, key=lambda i: i.end_ms - 1)
        for n in range(first, len(self.intervals)):
            if self.intervals[n].start_ms >= window.end_ms:
                return
            yield self.intervals[n]

    def __iter__(self) -> Iterator[Interval]:
        return iter(self.intervals)

    def __bool__(self) -> bool:
        return bool(self.intervals)
