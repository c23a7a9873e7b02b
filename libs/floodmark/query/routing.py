"""Which buckets of a view may be read as they are, and why the others may not.

A bucket may be read when it is VALID and was built from exactly what the registry lists for its window now (INV-12).
That follows from the slice versions its entry recorded, or else from the fingerprint of what the slices list. And it
was built under the definition that the view has now, whose hash the entry has. Nothing else about the entry has to be
current: whatever became of the bucket since, these files hold the right rows.

    entry       VALID, built at slices {d1: 4, wide: 2}
    registry    d1 at 4, wide at 2        the same source: read the files
                d1 at 5                   compare fingerprints; the same: read the files; another: changed since
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from floodmark.core.buckets import BucketGrid, Cause, Entry, Shard, State
from floodmark.core.intervals import Interval, IntervalSet
from floodmark.core.runs import Runs
from floodmark.core.tables import ViewHeader
from floodmark.query.bounds import EVER
from floodmark.query.plan import BaseRange, SourceFile, Why
from floodmark.query.registered import TableSnapshot


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a bucket that has an entry is not read from its files."""

    why: Why
    cause: Cause | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class ShardRoute:
    """Of the buckets of one shard, those that may be read, with their files; and the reasons for the others."""

    starts: tuple[int, ...]
    files: tuple[tuple[SourceFile, ...], ...]
    reasons: Mapping[int, Reason]
    all_files: tuple[SourceFile, ...]
    runs: tuple[Interval, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class RunsRoute:
    """Of the buckets in runs, those that are known to have no rows, and the reasons for the others."""

    empty: IntervalSet = field(default_factory=IntervalSet)
    reasons: tuple[tuple[Interval, Reason], ...] = ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """The buckets of a view that lie wholly in a range and may be read."""

    runs: IntervalSet
    buckets: int
    bytes: int
    parts: tuple[tuple[SourceFile, ...], ...]

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Put together only for the view that is read in the end."""
        return tuple(chain.from_iterable(self.parts))


def route(
    entries: Iterable[tuple[int, Entry]],
    header: ViewHeader,
    table: TableSnapshot,
    *,
    earlier: TableSnapshot | None = None,
    quarantined: Mapping[int, str] | None = None,
) -> ShardRoute:
    """`earlier` is a registry whose changes since then may be missing; None demands all of them."""
    quarantined, width_ms = quarantined or {}, header.definition.bucket_ms
    usable: dict[int, tuple[SourceFile, ...]] = {}
    reasons: dict[int, Reason] = {}
    built_at: dict[tuple[tuple[str, int], ...], bool] = {}
    """Whether these slice versions are still the table's: buckets of one slice have the same."""
    for start_ms, entry in entries:
        recorded = tuple(entry.slice_versions.items())
        unmoved = built_at.get(recorded)
        if unmoved is None:
            unmoved = built_at[recorded] = table.has_versions(entry.slice_versions)
        is_plain = unmoved and entry.state is State.VALID and entry.definition_hash == header.definition.hash
        window = Interval(start_ms, start_ms + width_ms) if not is_plain else None
        reason = None if window is None else _reason(entry, window, header, table, earlier)
        if reason is None:
            usable[start_ms] = tuple(SourceFile(f.name, f.rows, f.bytes) for f in entry.files)
        elif start_ms in quarantined:
            reasons[start_ms] = Reason(Why.QUARANTINED, entry.cause, quarantined[start_ms])
        else:
            reasons[start_ms] = reason
    files = tuple(chain.from_iterable(usable.values()))
    runs = tuple(_runs(list(usable), width_ms))
    return ShardRoute(tuple(usable), tuple(usable.values()), reasons, files, runs, sum(f.bytes for f in files))


def route_runs(runs: Runs, header: ViewHeader, table: TableSnapshot, *, earlier: TableSnapshot | None) -> RunsRoute:
    """A bucket in a run may be taken for empty where nothing is listed now, or was in the earlier registry."""
    if not runs:
        return RunsRoute()
    grid = header.definition.grid
    windows = {run.window(grid): run.entry for run in runs}
    everything = IntervalSet.of(windows)
    now = _empty_in(everything, table, grid)
    before = _empty_in(everything, earlier, grid) if earlier is not None else IntervalSet()
    empty: list[Interval] = []
    reasons: list[tuple[Interval, Reason]] = []
    for window, entry in windows.items():
        usable = IntervalSet()
        if entry.ever_valid and entry.definition_hash == header.definition.hash:
            usable = now.clip(window) if entry.state is State.VALID else usable
            usable = usable if _is_distrusted(entry) else usable.union(before.clip(window))
        why = Why.STALE if entry.state is State.STALE else Why.CHANGED_SINCE
        empty += usable
        reasons += [(gap, Reason(why, entry.cause)) for gap in usable.gaps(window)]
    return RunsRoute(IntervalSet.of(empty), tuple(reasons))


def _empty_in(windows: IntervalSet, table: TableSnapshot, grid: BucketGrid) -> IntervalSet:
    """The buckets in these windows that no segment overlaps."""
    sources = table.sources_in(windows)
    if sources is None:
        return IntervalSet()
    return windows.without(IntervalSet.of(grid.widened(interval) for interval in sources))


def _runs(starts: Sequence[int], width_ms: int) -> Iterator[Interval]:
    """Neighbouring buckets, put together. The starts are in order."""
    first = 0
    for n, start_ms in enumerate(starts):
        if n + 1 == len(starts) or starts[n + 1] != start_ms + width_ms:
            yield Interval(starts[first], start_ms + width_ms)
            first = n + 1


def _reason(
    entry: Entry, window: Interval, header: ViewHeader, table: TableSnapshot, earlier: TableSnapshot | None
) -> Reason | None:
    if not entry.ever_valid or entry.definition_hash != header.definition.hash:
        return Reason(Why.STALE, entry.cause)
    if entry.state is State.VALID and table.is_source_of(entry, window):
        return None
    if earlier is not None and not _is_distrusted(entry) and earlier.is_source_of(entry, window):
        return None
    return Reason(Why.STALE, entry.cause) if entry.state is State.STALE else Reason(Why.CHANGED_SINCE)


def _is_distrusted(entry: Entry) -> bool:
    """A person who asked for a rebuild does not trust the files; a change that may be missing is another matter."""
    return entry.state is State.STALE and (entry.cause is None or entry.cause.kind not in ("event", "sweep"))


class Routes:
    """Which buckets of a view may be read. Asked for ranges, it does not look at each bucket of a whole shard."""

    def __init__(self, grid: BucketGrid, shards: Mapping[int, ShardRoute], runs: RunsRoute) -> None:
        self._grid = grid
        self._in_runs = runs
        self._shards = dict(sorted(shards.items()))
        self._ever: Chosen | None = None

    def chosen(self, inner: Interval) -> Chosen:
        """The buckets that lie wholly inside."""
        if inner != EVER:
            return self._chosen(inner)
        if self._ever is None:
            self._ever = self._chosen(inner)
        return self._ever

    def _chosen(self, inner: Interval) -> Chosen:
        runs: list[Interval] = []
        files: list[tuple[SourceFile, ...]] = []
        buckets = size = 0
        width_ms = self._grid.width_ms
        for number, shard in self._shards.items():
            first_ms, end_ms = self._grid.shard_start(number), self._grid.shard_start(number + 1)
            if inner.start_ms <= first_ms and end_ms <= inner.end_ms:
                runs += shard.runs
                files.append(shard.all_files)
                buckets += len(shard.starts)
                size += shard.bytes
            elif first_ms < inner.end_ms and inner.start_ms < end_ms:
                low = bisect_left(shard.starts, inner.start_ms)
                high = bisect_right(shard.starts, inner.end_ms - width_ms)
                own = tuple(chain.from_iterable(shard.files[low:high]))
                runs += _runs(shard.starts[low:high], width_ms)
                files.append(own)
                buckets += max(0, high - low)
                size += sum(file.bytes for file in own)
        for stretch in self._in_runs.empty.clip(inner):
            first_ms, end_ms = -(-stretch.start_ms // width_ms) * width_ms, stretch.end_ms // width_ms * width_ms
            if first_ms < end_ms:  # only buckets that lie wholly inside
                runs.append(Interval(first_ms, end_ms))
                buckets += (end_ms - first_ms) // width_ms
        return Chosen(IntervalSet.of(runs), buckets, size, tuple(files))

    def told(self, ranges: Sequence[Interval], *, extent: Interval | None) -> tuple[BaseRange, ...]:
        """Why each of these ranges is read from the base table, as far as there is data."""
        found: list[BaseRange] = []
        for wanted in IntervalSet.of(ranges).clip(extent) if extent is not None else ():
            found += self._told(wanted)
        return tuple(found)

    def _told(self, wanted: Interval) -> list[BaseRange]:
        width_ms = self._grid.width_ms
        found: list[BaseRange] = []
        at_ms = wanted.start_ms
        reasons = [(Interval(s, s + width_ms), reason) for s, reason in self._reasons(wanted).items()]
        for stretch, reason in sorted([*reasons, *self._reasons_in_runs(wanted)], key=lambda told: told[0]):
            start_ms = stretch.start_ms
            if at_ms < start_ms:
                found.append(_base_range(at_ms, start_ms, Reason(Why.VACANT), width_ms))
            begin_ms, end_ms = max(start_ms, wanted.start_ms), min(stretch.end_ms, wanted.end_ms)
            found.append(_base_range(begin_ms, end_ms, reason, width_ms))
            at_ms = end_ms
        if at_ms < wanted.end_ms:
            found.append(_base_range(at_ms, wanted.end_ms, Reason(Why.VACANT), width_ms))
        return _joined(found)

    def _reasons(self, wanted: Interval) -> dict[int, Reason]:
        """Of the buckets in a range that have an entry. One that may be read is in it only where a query cuts it."""
        grid = self._grid
        reach = range(grid.shard_of(wanted.start_ms), grid.shard_of(wanted.end_ms - 1) + 1)
        shards = [shard for number, shard in self._shards.items() if number in reach]
        first_ms, last_ms = grid.start_of(wanted.start_ms), grid.start_of(wanted.end_ms - 1)
        found = {
            start_ms: reason
            for shard in shards
            for start_ms, reason in shard.reasons.items()
            if first_ms <= start_ms <= last_ms
        }
        cut = {s for shard in shards for s in shard.starts if s in (first_ms, last_ms)}
        return found | dict.fromkeys(cut, Reason(Why.NOT_ALIGNED))

    def _reasons_in_runs(self, wanted: Interval) -> Iterator[tuple[Interval, Reason]]:
        """The same for stretches of runs. Of those known to be empty, only a bucket that a query cuts is in it."""
        grid, empty = self._grid, self._in_runs.empty
        yield from ((stretch, reason) for stretch, reason in self._in_runs.reasons if stretch.overlaps(wanted))
        cut = {grid.start_of(wanted.start_ms), grid.start_of(wanted.end_ms - 1)}
        for window in map(grid.window, sorted(cut)):
            if empty.overlaps(window):
                yield window, Reason(Why.NOT_ALIGNED)


def _base_range(start_ms: int, end_ms: int, reason: Reason, width_ms: int) -> BaseRange:
    buckets = -(-end_ms // width_ms) - start_ms // width_ms
    return BaseRange(Interval(start_ms, end_ms), reason.why, buckets, reason.cause, reason.error)


def _joined(ranges: Iterable[BaseRange]) -> list[BaseRange]:
    """Neighbours that have the same reason, told once."""
    joined: list[BaseRange] = []
    for one in ranges:
        last = joined[-1] if joined else None
        if last and last.interval and one.interval and _same_reason(last, one):
            reach = Interval(last.interval.start_ms, one.interval.end_ms)
            joined[-1] = BaseRange(reach, one.why, last.buckets + one.buckets, one.cause, one.error)
        else:
            joined.append(one)
    return joined


def _same_reason(one: BaseRange, other: BaseRange) -> bool:
    return (one.why, one.cause, one.error) == (other.why, other.cause, other.error)


class Routable(Protocol):
    """What of a view its routes follow from."""

    @property
    def header(self) -> ViewHeader: ...
    @property
    def shards(self) -> Mapping[int, Shard]: ...
    @property
    def runs(self) -> Runs: ...
    @property
    def quarantined(self) -> Mapping[int, str]: ...
    @property
    def earlier(self) -> TableSnapshot | None: ...


_Routed = tuple[Shard, object, ShardRoute]
"""A shard, the versions of its source, and what follows from both."""


class Router:
    """Routes of one view, kept from one registry version to the next: only shards whose source moved are looked at."""

    def __init__(self) -> None:
        self._known: dict[int, _Routed] = {}
        self._last: tuple[Routable, TableSnapshot, Routes] | None = None

    @property
    def latest(self) -> Routes | None:
        """As of some earlier version: good enough to guess what a view costs, never to read it. None before any use."""
        return self._last[2] if self._last is not None else None

    def routes(self, view: Routable, table: TableSnapshot) -> Routes:
        last = self._last
        if last is not None and last[0] is view and last[1] is table:
            return last[2]
        known = self._known
        routed = {n: self._routed(view, table, n, shard, known.get(n)) for n, shard in view.shards.items()}
        in_runs = route_runs(view.runs, view.header, table, earlier=view.earlier)
        made = Routes(view.header.definition.grid, {n: route for n, (_, _, route) in routed.items()}, in_runs)
        self._known, self._last = routed, (view, table, made)
        return made

    @staticmethod
    def _routed(view: Routable, table: TableSnapshot, number: int, shard: Shard, known: _Routed | None) -> _Routed:
        grid, earlier = view.header.definition.grid, view.earlier
        window = grid.shard_window(number)
        given_up = tuple((s, error) for s, error in view.quarantined.items() if grid.shard_of(s) == number)
        decided_on = (table.versions_in(window), earlier and earlier.versions_in(window), given_up)
        if known is not None and known[0] is shard and known[1] == decided_on:
            return known
        return shard, decided_on, route(shard, view.header, table, earlier=earlier, quarantined=dict(given_up))


def complement(ranges: IntervalSet, within: Interval) -> tuple[Interval, ...]:
    """What of an interval the ranges leave."""
    left: list[Interval] = []
    at_ms = within.start_ms
    for taken in ranges.clip(within):
        if at_ms < taken.start_ms:
            left.append(Interval(at_ms, taken.start_ms))
        at_ms = taken.end_ms
    if at_ms < within.end_ms:
        left.append(Interval(at_ms, within.end_ms))
    return tuple(left)
