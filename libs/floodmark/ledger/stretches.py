"""Long stretches of buckets without a source, kept as runs of whole shards: making, marking and settling them.

    extend coverage     VACANT shards           -> one STALE run                                  (fill)
    mark                VALID run               -> STALE run, where its shards are marked wholly  (mark)
    settle              VACANT, or a STALE run  -> VALID-empty run, where no segment is; and so are, in the shards
                                                   on both sides, the buckets without one
                        a STALE run             -> nodes of their own, for the shards where one is

Settling is one decision, however long the stretch. Its write checks the header of the table, which every registration
sets, so no slice has to be checked: that the stretch has no source holds at that instant (INV-4). A registration in
between costs another try. What has to be done for whole shards at once is done here; a single bucket that leaves its
run does so wherever it is written, by `Look.set_shards`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from floodmark.core import watermark
from floodmark.core.buckets import BUCKETS_PER_SHARD, BucketGrid, Cause, Entry, Mark, Shard, State, synthesized
from floodmark.core.intervals import Interval, IntervalSet
from floodmark.core.runs import Run, Runs, empty_entry, stale, touched_shards, whole_shards
from floodmark.core.tables import ViewHeader
from floodmark.ledger import paths
from floodmark.ledger.engine import Budgets, Done, Engine, Write
from floodmark.ledger.registry import Registry, Snapshot
from floodmark.ledger.store import Check, Op
from floodmark.ledger.viewnodes import Look, Memory, SeenHeader, Walk

SHARDS_ONE_BY_ONE_MAX = 8
"""Marks that touch no more shards than this are made shard by shard, in a run or not."""
STRETCHES_AT_ONCE_MAX = 32
"""So many are settled in one write, with the buckets without a source in the shards on both sides of each."""
SHARDS_OPENED_MAX = 16
"""So many shards of STALE runs get nodes in one write: their buckets have to be built, which takes a while."""


@dataclass(frozen=True, slots=True)
class Settled:
    """How many buckets became VALID-empty in runs, and how many shards with a source got nodes."""

    empty: int = 0
    opened: int = 0
    shards: tuple[int, ...] = ()
    """The shards whose nodes were written."""


class Stretches:
    def __init__(self, engine: Engine, budgets: Budgets, registry: Registry, memory: Memory) -> None:
        self._engine = engine
        self._budgets = budgets
        self._registry = registry
        self._memory = memory

    # -- marking ---------------------------------------------------------------------------------------------------

    def mark(self, view: str, seen: SeenHeader, marks: Sequence[Mark]) -> int:
        """Mark the shards without a node that marks touch wholly. Returns how many buckets that changed."""
        grid = seen.header.definition.grid
        if touch_few(marks, grid):
            return 0

        def decide(look: Look, header: ViewHeader) -> Iterator[Run]:
            covered = covered_interval(header)
            inside = whole_shards(covered, grid) if covered else IntervalSet()
            left = look.runs.shards.union(inside)
            for mark in marks:
                asked = left if mark.ranges is None else _wholly_marked(mark.ranges, grid)
                yield from self._stale_in(look, IntervalSet.of(_common(asked, left)), inside, mark.cause)
                left = left.without(asked)

        return self._change(view, seen.header.incarnation, f"mark runs of {view} stale", decide)

    def fill(self, view: str, incarnation: str, window: Interval, cause: Cause) -> int:
        """Give the VACANT whole shards of a window a STALE run. Returns how many buckets that are."""

        def decide(look: Look, header: ViewHeader) -> Iterator[Run]:
            shards = whole_shards(window, header.definition.grid)
            vacant = shards.without(look.presence().shards).without(look.runs.shards)
            return (Run(part.start_ms, part.end_ms, synthesized(cause)) for part in vacant)

        return self._change(view, incarnation, f"extend coverage of {view}", decide)

    def _stale_in(self, look: Look, shards: IntervalSet, covered: IntervalSet, cause: Cause) -> Iterator[Run]:
        for run in look.runs.within(shards):
            if run.entry.state is State.VALID:
                yield stale(run, cause)
        holes = IntervalSet.of(_common(shards, covered)).without(look.runs.shards)
        for part in holes.without(look.presence().shards) if holes else ():
            yield Run(part.start_ms, part.end_ms, synthesized(cause))

    def _change(
        self, view: str, incarnation: str, name: str, decide: Callable[[Look, ViewHeader], Iterable[Run]]
    ) -> int:
        """Set runs, in one write that checks that none of their shards has got a node."""

        def attempt() -> Done[int] | Write[int]:
            look = Look(self._engine.store, self._memory, view, trusting=False)
            header = look.active(incarnation)
            if header is None:
                return Done(0)
            presence = look.presence()
            changed = list(decide(look, header))
            if not changed:
                return Done(0)
            count = sum(run.end - run.first for run in changed) * BUCKETS_PER_SHARD
            return Write([look.check_fence(), presence.check, look.set_runs(look.runs.put(changed))], count)

        forget = self._memory.forget
        return self._engine.run(name, self._budgets.critical, attempt, forget=lambda: forget(view)).result

    # -- settling --------------------------------------------------------------------------------------------------

    def settle(self, view: str, incarnation: str, *, end_ms: int, beside: Collection[int] = ()) -> Settled:
        """Make what has no source VALID-empty, up to this time, and give nodes to shards of STALE runs that have one.

        `beside` are more shards, which have nodes, whose buckets are looked at. Those beside new runs are anyway.
        Lenient: what cannot be settled now can be later, and the buckets can be built one by one.
        """
        settled = Settled()

        def attempt() -> Done[None] | Write[None]:
            nonlocal settled
            settled = Settled()
            look = Look(self._engine.store, self._memory, view, trusting=False)
            header = look.active(incarnation)
            if header is None or header.coverage_start_ms is None:
                return Done(None)
            presence = look.presence()
            snapshot = self._registry.snapshot(header.definition.table)
            entry = empty_entry(header.definition.hash, self._engine.clock.now_ms())
            beside_ = presence.numbers.intersection(beside)
            plan = _Planner(header, look, presence.shards, snapshot, entry, end_ms).plan(beside_)
            settled = Settled(plan.empty, plan.opened, tuple(plan.written))
            if settled == Settled():
                return Done(None)
            ops: list[Op] = [
                look.check_fence(),
                Check(paths.table(header.definition.table), snapshot.header_node_version),
                presence.check,
            ]
            return Write([*ops, *_settling(look, header, plan)], None)

        forget = self._memory.forget
        name = f"settle runs of {view}"
        self._engine.run(name, self._budgets.revert, attempt, forget=lambda: forget(view))
        if settled != Settled():
            forget(view)
        return settled


@dataclass(frozen=True, slots=True)
class _Plan:
    runs: Runs
    empty: int
    opened: int
    written: dict[int, Shard]
    """The shards that leave runs, and those beside them."""
    data_end_ms: int


class _Sources:
    """Where there is data near some shards."""

    def __init__(self, snapshot: Snapshot, near: IntervalSet, grid: BucketGrid) -> None:
        span_ms = grid.shard_start(1)
        times = IntervalSet(tuple(Interval(i.start_ms * span_ms, i.end_ms * span_ms) for i in near))
        found = [s.interval for s in snapshot.by_name.values() if s.interval is None or times.overlaps(s.interval)]
        self._grid = grid
        self.everywhere = None in found
        """A segment without times may have rows anywhere."""
        self._listed = IntervalSet.of(interval for interval in found if interval is not None)

    def shards(self, near: IntervalSet) -> IntervalSet:
        return near if self.everywhere else touched_shards(self._listed, self._grid)

    def lie_in(self, start_ms: int) -> bool:
        return self.everywhere or self._listed.overlaps(self._grid.window(start_ms))


@dataclass(frozen=True, slots=True)
class _Planner:
    """Decides what to settle, by what is registered in this snapshot."""

    header: ViewHeader
    look: Look
    present: IntervalSet
    snapshot: Snapshot
    entry: Entry
    """What becomes of a bucket without a source."""
    end_ms: int

    @property
    def _data_end_ms(self) -> int:
        last_ms = self.snapshot.header.max_last_ms
        return self.span.start_ms if last_ms is None else last_ms + 1

    @property
    def span(self) -> Interval:
        """The buckets that may be settled."""
        start_ms, last_ms = self.header.coverage_start_ms, self.snapshot.header.max_last_ms
        assert start_ms is not None
        end_ms = start_ms if last_ms is None else min(self.end_ms, last_ms + 1)
        return Interval(start_ms, max(start_ms + 1, self.header.definition.grid.start_of(end_ms)))

    def plan(self, beside: Iterable[int]) -> _Plan:
        grid, runs, asked = self.header.definition.grid, self.look.runs, sorted(beside)[:STRETCHES_AT_ONCE_MAX]
        owed = IntervalSet.of(Interval(r.first, r.end) for r in runs if r.entry.state is State.STALE)
        owed = owed.without(self.present)
        vacant = whole_shards(self.span, grid).without(self.present).without(runs.shards)
        wanted = vacant.union(owed)
        near = wanted.union(Interval(number, number + 1) for number in asked)
        sources = _Sources(self.snapshot, IntervalSet.of(Interval(i.start_ms - 1, i.end_ms + 1) for i in near), grid)
        occupied = sources.shards(wanted)
        empty = IntervalSet(wanted.without(occupied).intervals[:STRETCHES_AT_ONCE_MAX])
        opened = [n for part in _common(owed, occupied) for n in _first(part, SHARDS_OPENED_MAX)][:SHARDS_OPENED_MAX]
        runs = runs.put(Run(part.start_ms, part.end_ms, self.entry) for part in empty)
        runs = runs.without(IntervalSet.of(Interval(n, n + 1) for n in opened))
        around = {n for part in empty for n in (part.start_ms - 1, part.end_ms) if runs.at(n) is None}
        written, count = self._written(set(opened), {*around, *asked}, sources)
        count += sum(part.end_ms - part.start_ms for part in empty) * BUCKETS_PER_SHARD
        return _Plan(runs, count, len(opened), written, self._data_end_ms)

    def _written(self, opened: set[int], beside: set[int], sources: _Sources) -> tuple[dict[int, Shard], int]:
        """The shards to write, and how many of their buckets are found to have no source."""
        grid = self.header.definition.grid
        written: dict[int, Shard] = {}
        count = 0
        for number, seen in self.look.shards(sorted(opened | beside)).items():
            window = IntervalSet((grid.shard_window(number),))
            reach = window if number in opened else window.clip(self.span)
            starts = [start_ms for part in reach for start_ms in grid.starts_in(part)]
            emptied = [s for s in starts if _may_be_emptied(seen.shard.get(s)) and not sources.lie_in(s)]
            if emptied or number in opened:
                written[number] = seen.shard.put(dict.fromkeys(emptied, self.entry))
                count += len(emptied)
        return written, count


def _may_be_emptied(entry: Entry | None) -> bool:
    """Files are let go by whoever builds their bucket, who is told of them."""
    return entry is None or (entry.state is State.STALE and not entry.files)


def _settling(look: Look, header: ViewHeader, plan: _Plan) -> list[Op]:
    """The writes of a settlement: the runs, the shards that leave them, and the watermark, which it may let pass."""
    grid, stands_ms = header.definition.grid, header.watermark_ms
    assert stands_ms is not None
    walk = Walk(look, grid, plan.written, plan.runs)
    reached_ms = watermark.advanced(stands_ms, grid, walk.entry_at, walk.stretch_end)
    reached_ms = max(stands_ms, min(reached_ms, grid.start_of(plan.data_end_ms)))
    moved = reached_ms > stands_ms
    ops = look.settle(plan.runs, plan.written, checked=walk.visited if moved else ())
    # Even when it does not move: what stands after the stretch may be next in line, as in `depends_on_header`.
    return [*ops, look.set_header(replace(header, watermark_ms=reached_ms)) if moved else look.check_header()]


def _common(one: IntervalSet, other: IntervalSet) -> Iterator[Interval]:
    for interval in one:
        yield from other.clip(interval)


def _first(part: Interval, most: int) -> range:
    return range(part.start_ms, min(part.end_ms, part.start_ms + most))


def _wholly_marked(ranges: IntervalSet, grid: BucketGrid) -> IntervalSet:
    """The shards of which every bucket overlaps a range."""
    marked = IntervalSet.of(grid.widened(interval) for interval in ranges)
    return IntervalSet.of(part for interval in marked for part in whole_shards(interval, grid))


def covered_interval(header: ViewHeader) -> Interval | None:
    start_ms, end_ms = header.coverage_start_ms, header.watermark_ms
    return None if start_ms is None or end_ms is None or start_ms == end_ms else Interval(start_ms, end_ms)


def touch_few(marks: Iterable[Mark], grid: BucketGrid) -> bool:
    """Whether marks are small enough to be made shard by shard."""
    ranges = [mark.ranges for mark in marks]
    if any(listed is None for listed in ranges):
        return False
    touched = touched_shards((i for listed in ranges for i in listed or ()), grid)
    return sum(part.end_ms - part.start_ms for part in touched) <= SHARDS_ONE_BY_ONE_MAX


def partly_touched(intervals: Iterable[Interval], grid: BucketGrid) -> set[int]:
    """The shards at the ends of these intervals."""
    return {number for i in intervals for number in (grid.shard_of(i.start_ms), grid.shard_of(i.end_ms - 1))}
