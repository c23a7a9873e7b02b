"""Runs: long stretches of buckets without a source, kept as one entry each.

A run covers whole shards, none of which has a node of its own. All of its buckets have the same entry, so a century of
minutes costs as much as one shard:

    shard     0      1 ................ 114,999      115,000
              node   run, VALID-empty                node

A bucket in a run leaves it together with its shard: whoever writes one bucket writes the shard's node, with the run's
entry for the others, and takes the shard out of the run in the same write. So a shard is a node, or in one run, or
VACANT.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from floodmark.core.buckets import BucketGrid, Cause, Entry, Shard, State
from floodmark.core.fingerprint import EMPTY
from floodmark.core.intervals import Interval, IntervalSet


@dataclass(frozen=True, slots=True)
class Run:
    """The shards `[first, end)`, and the entry of each of their buckets."""

    first: int
    end: int
    entry: Entry

    def __post_init__(self) -> None:
        assert self.first < self.end, "a run covers at least one shard"
        assert not self.entry.files, "a run has no source, so it has no files"

    def window(self, grid: BucketGrid) -> Interval:
        return Interval(grid.shard_start(self.first), grid.shard_start(self.end))

    def shard(self, number: int, grid: BucketGrid) -> Shard:
        """One of its shards, as if it had a node."""
        return Shard(dict.fromkeys(grid.starts_in(grid.shard_window(number)), self.entry))


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one view, in order. They do not overlap."""

    runs: tuple[Run, ...] = ()

    def at(self, number: int) -> Run | None:
        index = bisect_right(self.runs, number, key=lambda run: run.first) - 1
        return self.runs[index] if index >= 0 and number < self.runs[index].end else None

    def put(self, changed: Iterable[Run]) -> "Runs":
        """These instead of whatever lies where they lie."""
        new = list(changed)
        kept = self.without(IntervalSet.of(Interval(run.first, run.end) for run in new))
        return Runs(tuple(_joined(sorted((*kept.runs, *new), key=lambda run: run.first))))

    def without(self, shards: IntervalSet) -> "Runs":
        left: list[Run] = []
        for run in self.runs:
            for part in shards.gaps(Interval(run.first, run.end)):
                left.append(replace(run, first=part.start_ms, end=part.end_ms))
        return Runs(tuple(left))

    def within(self, shards: IntervalSet) -> Iterator[Run]:
        """The parts of the runs that lie in these shards."""
        for run in self.runs:
            for part in shards.clip(Interval(run.first, run.end)):
                yield replace(run, first=part.start_ms, end=part.end_ms)

    @property
    def shards(self) -> IntervalSet:
        return IntervalSet.of(Interval(run.first, run.end) for run in self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __bool__(self) -> bool:
        return bool(self.runs)


NO_RUNS = Runs()


def empty_entry(definition_hash: str, now_ms: int) -> Entry:
    """VALID-empty without slice versions: those of a long stretch would be thousands. The fingerprint decides."""
    return Entry(
        State.VALID, ever_valid=True, fingerprint=EMPTY, definition_hash=definition_hash, refreshed_at_ms=now_ms
    )


def stale(run: Run, cause: Cause) -> Run:
    return run if run.entry.state is State.STALE else replace(run, entry=run.entry.stale(cause))


def whole_shards(interval: Interval, grid: BucketGrid) -> IntervalSet:
    """The shards that lie wholly in an interval of time."""
    span_ms = grid.shard_start(1)
    first, end = -(-interval.start_ms // span_ms), interval.end_ms // span_ms
    return IntervalSet((Interval(first, end),)) if first < end else IntervalSet()


def touched_shards(intervals: Iterable[Interval], grid: BucketGrid) -> IntervalSet:
    """The shards with a bucket that overlaps one of these."""
    return IntervalSet.of(Interval(grid.shard_of(i.start_ms), grid.shard_of(i.end_ms - 1) + 1) for i in intervals)


def _joined(runs: Iterable[Run]) -> Iterator[Run]:
    """Neighbours that differ in nothing but the time at which they were found empty become one."""
    last: Run | None = None
    for run in runs:
        if last is not None and last.end == run.first and _alike(last.entry, run.entry):
            newest = max((last.entry, run.entry), key=lambda entry: entry.refreshed_at_ms)
            last = Run(last.first, run.end, newest)
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last


def _alike(one: Entry, other: Entry) -> bool:
    return replace(one, refreshed_at_ms=other.refreshed_at_ms) == other
