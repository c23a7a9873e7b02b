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

A settlement is one write if that fits, and is halved if not (`halving`): shards beside a stretch that are full of files
may take a write each. Every one of these writes decides anew and makes all checks of a whole settlement, so it does not
matter which of them happen.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from floodmark.core import watermark
from floodmark.core.buckets import BUCKETS_PER_SHARD, BucketGrid, Cause, Entry, Mark, Shard, State, synthesized
from floodmark.core.intervals import Interval, IntervalSet
from floodmark.core.runs import Run, Runs, empty_entry, stale, touched_shards, whole_shards
from floodmark.core.tables import ViewHeader
from floodmark.ledger import paths
from floodmark.ledger.engine import Budgets, Done, Engine, Write
from floodmark.ledger.halving import halved
from floodmark.ledger.registry import Registry, Snapshot
from floodmark.ledger.store import Check, Op, TooLarge
from floodmark.ledger.viewnodes import Look, Memory, Presence, SeenHeader, Walk

SHARDS_ONE_BY_ONE_MAX = 8
"""Marks that touch no more shards than this are made shard by shard, in a run or not."""
STRETCHES_AT_ONCE_MAX = 32
"""So many are settled at once, with the buckets without a source in the shards on both sides of each."""
SHARDS_OPENED_MAX = 16
"""So many shards of STALE runs get nodes at once: their buckets have to be built, which takes a while."""


@dataclass(frozen=True, slots=True)
class Settled:
    """How many buckets became VALID-empty in runs, and how many shards with a source got nodes."""

    empty: int = 0
    opened: int = 0
    shards: tuple[int, ...] = ()
    """The shards whose nodes were written."""
    given_up: tuple[str, ...] = ()
    """What does not fit into a write by itself, as the errors say. The buckets are built one by one."""


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
        survey = _Survey()

        def whole(planner: _Planner) -> _Survey:
            nonlocal survey
            survey = planner.survey(beside)
            return survey

        def write(pieces: Sequence[_Piece]) -> Settled:
            return self._settle(view, incarnation, end_ms, lambda planner: planner.part(survey, pieces))

        def alone(piece: _Piece, error: TooLarge) -> Settled:
            """A stretch of a STALE run gets nodes instead: its buckets are built only once they have them."""
            owed = _common(survey.owed, IntervalSet((piece.shards,))) if piece.kind is _Kind.STRETCH else ()
            shards = [_Piece.of(_Kind.OPENED, number) for number in _first_of(owed)]
            return _together(halved(shards, write, alone=_given_up)) if shards else _given_up(piece, error)

        try:
            return self._settle(view, incarnation, end_ms, whole)
        except TooLarge:
            return _together(halved(survey.pieces, write, alone=alone))

    def _settle(self, view: str, incarnation: str, end_ms: int, choose: Callable[["_Planner"], "_Survey"]) -> Settled:
        """Settle what is chosen, in one write."""
        forget = self._memory.forget

        def attempt() -> Done[Settled] | Write[Settled]:
            planner = self._planner(view, incarnation, end_ms)
            if planner is None:
                return Done(Settled())
            plan = planner.plan(choose(planner))
            settled = Settled(plan.empty, plan.opened, tuple(plan.written))
            if settled == Settled():
                return Done(settled)
            return Write(planner.operations(plan), settled, on_committed=lambda _: forget(view))

        name = f"settle runs of {view}"
        return self._engine.run(name, self._budgets.revert, attempt, forget=lambda: forget(view)).result

    def _planner(self, view: str, incarnation: str, end_ms: int) -> "_Planner | None":
        look = Look(self._engine.store, self._memory, view, trusting=False)
        header = look.active(incarnation)
        if header is None or header.coverage_start_ms is None:
            return None
        presence = look.presence()
        snapshot = self._registry.snapshot(header.definition.table)
        entry = empty_entry(header.definition.hash, self._engine.clock.now_ms())
        return _Planner(header, look, presence, snapshot, entry, end_ms)


class _Kind(Enum):
    STRETCH = auto()
    """Shards without a source, VACANT or of a STALE run, that become a VALID-empty run."""
    OPENED = auto()
    """A shard of a STALE run that gets a node."""
    BESIDE = auto()
    """A shard in no run, whose buckets without a source become VALID-empty."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """What of a settlement is never cut."""

    kind: _Kind
    shards: Interval

    @classmethod
    def of(cls, kind: _Kind, number: int) -> "_Piece":
        return cls(kind, Interval(number, number + 1))


def _given_up(_piece: _Piece, error: TooLarge) -> Settled:
    return Settled(given_up=(str(error),))


def _together(parts: Iterable[Settled]) -> Settled:
    done = list(parts)
    return Settled(
        sum(part.empty for part in done),
        sum(part.opened for part in done),
        tuple(number for part in done for number in part.shards),
        tuple(error for part in done for error in part.given_up),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    runs: Runs
    empty: int
    opened: int
    written: dict[int, Shard]
    """The shards that leave runs, and those beside them."""
    data_end_ms: int


class _Sources:
    """Where there is data in some shards."""

    def __init__(self, snapshot: Snapshot, shards: IntervalSet, grid: BucketGrid) -> None:
        span_ms = grid.shard_start(1)
        times = IntervalSet(tuple(Interval(i.start_ms * span_ms, i.end_ms * span_ms) for i in shards))
        found = [s.interval for s in snapshot.by_name.values() if s.interval is None or times.overlaps(s.interval)]
        self._grid = grid
        self._version = snapshot.header_node_version
        self._shards = shards
        self.everywhere = None in found
        """A segment without times may have rows anywhere."""
        self._listed = IntervalSet.of(interval for interval in found if interval is not None)

    def of(self, snapshot: Snapshot) -> "_Sources":
        """The same as of this snapshot. Going through all segments takes a while, so only when they changed."""
        return self if snapshot.header_node_version == self._version else _Sources(snapshot, self._shards, self._grid)

    def occupied(self, shards: IntervalSet) -> IntervalSet:
        return shards if self.everywhere else touched_shards(self._listed, self._grid)

    def lie_in(self, start_ms: int) -> bool:
        return self.everywhere or self._listed.overlaps(self._grid.window(start_ms))


@dataclass(frozen=True, slots=True)
class _Survey:
    """What may be settled at once. Stretches come first: they need few bytes, and shards beside them may need many."""

    pieces: Sequence[_Piece] = ()
    owed: IntervalSet = field(default_factory=IntervalSet)
    """The shards of STALE runs."""
    sources: _Sources | None = None
    """Where there is data in any of them."""


@dataclass(frozen=True, slots=True)
class _Planner:
    """Decides what to settle, by what one attempt sees of the view and of what is registered."""

    header: ViewHeader
    look: Look
    presence: Presence
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

    @property
    def _owed(self) -> IntervalSet:
        owed = IntervalSet.of(Interval(r.first, r.end) for r in self.look.runs if r.entry.state is State.STALE)
        return owed.without(self.presence.shards)

    @property
    def _wanted(self) -> IntervalSet:
        """The shards that become VALID-empty as a whole, unless they have a source."""
        vacant = whole_shards(self.span, self.header.definition.grid)
        return vacant.without(self.presence.shards).without(self.look.runs.shards).union(self._owed)

    def survey(self, beside: Collection[int]) -> _Survey:
        owed, wanted = self._owed, self._wanted
        asked = sorted(self.presence.numbers.intersection(beside))[:STRETCHES_AT_ONCE_MAX]
        near = wanted.union(Interval(number, number + 1) for number in asked)
        near = IntervalSet.of(Interval(i.start_ms - 1, i.end_ms + 1) for i in near)
        sources = _Sources(self.snapshot, near, self.header.definition.grid)
        occupied = sources.occupied(wanted)
        empty = wanted.without(occupied).intervals[:STRETCHES_AT_ONCE_MAX]
        opened = _first_of(_common(owed, occupied))
        runs = self._settled_runs(empty, opened)
        around = {n for part in empty for n in (part.start_ms - 1, part.end_ms) if runs.at(n) is None}
        pieces = [
            *(_Piece(_Kind.STRETCH, part) for part in empty),
            *(_Piece.of(_Kind.OPENED, number) for number in opened),
            *(_Piece.of(_Kind.BESIDE, number) for number in sorted({*around, *asked}.difference(opened))),
        ]
        return _Survey(pieces, owed, sources)

    def part(self, survey: _Survey, pieces: Sequence[_Piece]) -> _Survey:
        """Some pieces of an earlier survey, with the sources that they have now."""
        assert survey.sources is not None
        return _Survey(pieces, survey.owed, survey.sources.of(self.snapshot))

    def plan(self, survey: _Survey) -> _Plan:
        """What to write. SUBTLE: a survey may be older than this attempt, so each piece is looked at again."""
        sources = survey.sources
        assert sources is not None
        asked = {kind: IntervalSet.of(p.shards for p in survey.pieces if p.kind is kind) for kind in _Kind}
        empty = IntervalSet.of(_common(self._wanted, asked[_Kind.STRETCH]))
        empty = empty.without(sources.occupied(empty))
        opened = {n for part in _common(self._owed, asked[_Kind.OPENED]) for n in range(part.start_ms, part.end_ms)}
        runs = self._settled_runs(empty, opened)
        listed = (n for part in asked[_Kind.BESIDE] for n in range(part.start_ms, part.end_ms))
        beside = {n for n in listed if n in self.presence.numbers or runs.at(n) is None}
        written, count = self._written(opened, beside, sources)
        count += sum(part.end_ms - part.start_ms for part in empty) * BUCKETS_PER_SHARD
        return _Plan(runs, count, len(opened), written, self._data_end_ms)

    def operations(self, plan: _Plan) -> list[Op]:
        table = self.header.definition.table
        checks = [self.look.check_fence(), Check(paths.table(table), self.snapshot.header_node_version)]
        return [*checks, *_settling(self.look, self.header, plan, self.presence)]

    def _settled_runs(self, empty: Iterable[Interval], opened: Iterable[int]) -> Runs:
        runs = self.look.runs.put(Run(part.start_ms, part.end_ms, self.entry) for part in empty)
        return runs.without(IntervalSet.of(Interval(n, n + 1) for n in opened))

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


def _settling(look: Look, header: ViewHeader, plan: _Plan, presence: Presence) -> list[Op]:
    """The writes of a settlement: the runs, the shards that leave them, and the watermark, which it may let pass.

    One that leaves the runs as they are does not write them: they may be large, and others wait for their version.
    """
    grid, stands_ms = header.definition.grid, header.watermark_ms
    assert stands_ms is not None
    walk = Walk(look, grid, plan.written, plan.runs)
    reached_ms = watermark.advanced(stands_ms, grid, walk.entry_at, walk.stretch_end)
    reached_ms = max(stands_ms, min(reached_ms, grid.start_of(plan.data_end_ms)))
    moved = reached_ms > stands_ms
    checked = walk.visited if moved else ()
    if plan.runs == look.runs:
        ops = look.set_shards(plan.written, checked=checked, relying_on_runs=walk.through_runs)
    else:
        ops = [presence.check, *look.settle(plan.runs, plan.written, checked=checked)]
    # Even when it does not move: what stands after the stretch may be next in line, as in `depends_on_header`.
    return [*ops, look.set_header(replace(header, watermark_ms=reached_ms)) if moved else look.check_header()]


def _common(one: IntervalSet, other: IntervalSet) -> Iterator[Interval]:
    for interval in one:
        yield from other.clip(interval)


def _first_of(parts: Iterable[Interval]) -> list[int]:
    """The shards that get nodes at once."""
    most = SHARDS_OPENED_MAX
    return [n for part in parts for n in range(part.start_ms, min(part.end_ms, part.start_ms + most))][:most]


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
