"""The state of views: headers, bucket entries, marks, coverage, drops. Commits are in commits.py."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from floodmark.core import transitions
from floodmark.core.buckets import BUCKETS_PER_SHARD, BucketGrid, Cause, Entry, Mark, Shard
from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval, IntervalSet
from floodmark.core.ports import new_id
from floodmark.core.runs import NO_RUNS, Runs, touched_shards
from floodmark.core.tables import ViewDefinition, ViewHeader, ViewStatus
from floodmark.core.transitions import Build, Changed, Decision, Mode
from floodmark.ledger import codec, paths
from floodmark.ledger.commits import Commits, Decisions
from floodmark.ledger.dropped import Dropped, noted
from floodmark.ledger.dropping import moved
from floodmark.ledger.engine import Budgets, Done, Engine, Outcome, Write
from floodmark.ledger.holds import Hold
from floodmark.ledger.registry import Registry
from floodmark.ledger.store import Check, Conflicted, Create, Delete, Op, Set
from floodmark.ledger.stretches import Settled, Stretches, covered_interval, partly_touched, touch_few
from floodmark.ledger.viewnodes import Look, Memory, SeenHeader, read_header, require_header

REPLACED_NODES_MAX = 5_000
"""Shards and their dispatch records: over three years of minutes. Paths are at most so long that this fits a write."""


@dataclass(frozen=True, slots=True)
class ViewState:
    """A view's header and the entries asked for, by bucket start; those of buckets in runs are in the runs only."""

    header: ViewHeader
    entries: dict[int, Entry]
    runs: Runs = NO_RUNS

    def at(self, start_ms: int) -> Entry | None:
        run = None if start_ms in self.entries else self.runs.at(self.header.definition.grid.shard_of(start_ms))
        return self.entries.get(start_ms) if run is None else run.entry

    def stretches(self) -> list[tuple[int, int, Entry]]:
        """(first bucket, how many, entry) for each stretch of neighbours with one and the same entry, in order."""
        grid = self.header.definition.grid
        listed = codec.runs(Shard(self.entries), grid)
        long = [(run.window(grid).start_ms, (run.end - run.first) * BUCKETS_PER_SHARD, run.entry) for run in self.runs]
        return sorted([*listed, *long], key=itemgetter(0))


@dataclass(frozen=True, slots=True)
class Marked:
    """What a mark did: VALID buckets turned STALE, and VACANT ones that got a STALE entry."""

    invalidated: tuple[int, ...] = ()
    synthesized: tuple[int, ...] = ()
    in_runs: int = 0
    """How many more, in runs."""

    def __add__(self, other: "Marked") -> "Marked":
        return Marked(
            self.invalidated + other.invalidated, self.synthesized + other.synthesized, self.in_runs + other.in_runs
        )

    @property
    def count(self) -> int:
        return len(self.invalidated) + len(self.synthesized) + self.in_runs


class Views:
    def __init__(self, engine: Engine, budgets: Budgets, registry: Registry, dropped: Dropped) -> None:
        self._engine = engine
        self._store = engine.store
        self._budgets = budgets
        self._registry = registry
        self._dropped = dropped
        self._memory = Memory()
        self._commits = Commits(engine, budgets, registry, self._memory)
        self._stretches = Stretches(engine, budgets, registry, self._memory)

    # -- existence -------------------------------------------------------------------------------------------------

    def create(
        self, definition: ViewDefinition, *, coverage_start_ms: int | None = None, replacing: str | None = None
    ) -> ViewHeader:
        """Create a view with an incarnation of its own. A name that is being dropped is dropped to the end first.

        With `replacing`, an incarnation, it takes the place of that one: in one write, so that at every moment one of
        the two is there, and the attempts of the old one can never commit afterwards (INV-13).
        """
        self._registry.header(definition.table)  # an unknown table is refused here
        start_ms = None if coverage_start_ms is None else definition.grid.start_of(coverage_start_ms)
        header = ViewHeader(
            definition=definition,
            incarnation=new_id(self._engine.randomness),
            created_at_ms=self._engine.clock.now_ms(),
            coverage_start_ms=start_ms,
            watermark_ms=start_ms,
        )
        made = self._create(header, gate=paths.fence(definition.name, header.incarnation), replacing=replacing)
        self._memory.forget(definition.name)
        return made

    def _create(
        self,
        header: ViewHeader,
        *,
        gate: str,
        runs: Runs = NO_RUNS,
        replacing: str | None = None,
        claims: Callable[[], Sequence[Op]] = lambda: (),
    ) -> ViewHeader:
        """The nodes of a view without entries. `gate` is its fence, or the marker of one that is not open yet.

        `claims` is what else is written with them, decided in each try.
        """
        name, table = header.definition.name, header.definition.table
        generation = self._registry.header(table).definition.generation
        ops: list[Op] = [
            Create(paths.view(name), codec.encode_view(header)),
            Create(paths.fences(name), b""),
            Create(gate, b""),
            Create(paths.shards(name), codec.encode_runs(runs)),
            Create(paths.dispatch(name), b""),
        ]

        def attempt() -> Done[ViewHeader] | Write[ViewHeader]:
            dependents = self._store.read(paths.dependents(table))  # first: see dropping.py
            found = read_header(self._store, name)
            if found and found.header.incarnation == header.incarnation:
                return Done(header)
            if found and found.header.status is ViewStatus.DROPPING:
                self._remove(name, found.header.incarnation)
                found = None
            elif found and found.header.incarnation != replacing:
                raise InvalidInput("view-exists", f"view {name!r} exists")
            if self._registry.header(table).definition.generation != generation:
                raise InvalidInput(
                    "table-replaced", f"table {table!r} was dropped and created again meanwhile; try again"
                )
            uses = moved(table, dependents)
            if found:
                return Write([*self._replacement(found, header), uses], header)
            return Write([*ops, *claims(), uses], header)

        return self._engine.run(f"create view {name}", self._budgets.critical, attempt).result

    def _replacement(self, old: SeenHeader, new: ViewHeader) -> list[Op]:
        """One view in the place of another, with nothing of the old one left below it.

        SUBTLE: the entries of both have the same paths. A commit of the old one may add a shard after its shards were
        listed; left there, it would be read as the new one's. So the parents go and come again in this write: with a
        child that nobody listed, the write fails and everything is read again.
        """
        name = new.definition.name
        ops: list[Op] = [
            Delete(paths.fence(name, old.header.incarnation)),
            Create(paths.fence(name, new.incarnation), b""),
            Set(paths.view(name), codec.encode_view(new), old.version),
            noted(old.header, now_ms=self._engine.clock.now_ms()),
        ]
        below: list[Op] = []
        for parent in (paths.shards(name), paths.dispatch(name)):
            below += [Delete(f"{parent}/{child}") for child in self._store.children(parent)]
            below += [Delete(parent), Create(parent, b"")]
        if len(below) > REPLACED_NODES_MAX:
            raise InvalidInput(
                "view-too-large",
                f"view {name!r} has {len(below)} nodes, and one write can replace {REPLACED_NODES_MAX}; "
                "create its successor under another name, or drop it first",
            )
        return [*ops, *below]

    def renew(self, header: ViewHeader, *, definition_hash: str, meaning: int) -> ViewHeader | None:
        """The view under the hash that its query has in this meaning; None when it is gone.

        It is another incarnation, so that no attempt of the one before can commit afterwards (INV-13), but it keeps the
        entries. They name files that still lie there, by a hash under which nobody reads them any more.
        """
        view, incarnation = header.definition.name, new_id(self._engine.randomness)

        def attempt() -> Done[ViewHeader | None] | Write[ViewHeader | None]:
            look = Look(self._store, self._memory, view, trusting=False)
            found = look.active()
            if found is None or found.incarnation != header.incarnation:
                return Done(found)
            definition = replace(found.definition, hash=definition_hash, meaning=meaning)
            new = replace(found, definition=definition, incarnation=incarnation)
            old_fence, new_fence = (paths.fence(view, i) for i in (found.incarnation, incarnation))
            return Write([Delete(old_fence), Create(new_fence, b""), look.set_header(new)], new)

        outcome = self._engine.run(f"renew view {view}", self._budgets.critical, attempt)
        self._memory.forget(view)
        return outcome.result

    def drop(self, view: str) -> bool:
        """Drop a view; False when there is none. Its running attempts can never commit afterwards (INV-13)."""

        def fence_off() -> Done[str | None] | Write[str | None]:
            look = Look(self._store, self._memory, view, trusting=False)
            header = look.header
            if header is None:
                return Done(None)
            if header.status is ViewStatus.DROPPING:
                return Done(header.incarnation)
            fence = Delete(paths.fence(view, header.incarnation))
            closed = Create(paths.closed(view, header.incarnation), b"")
            gone = look.set_header(replace(header, status=ViewStatus.DROPPING))
            note = noted(header, now_ms=self._engine.clock.now_ms())
            return Write([fence, closed, gone, note], header.incarnation)

        incarnation = self._engine.run(f"drop view {view}", self._budgets.critical, fence_off).result
        if incarnation is not None:
            self._remove(view, incarnation)
        self._memory.forget(view)
        return incarnation is not None

    def finish_drop(self, view: str, incarnation: str) -> None:
        """Go on with the drop of exactly this incarnation, where whoever began it did not come to the end."""
        self._remove(view, incarnation)
        self._memory.forget(view)

    def _remove(self, view: str, incarnation: str) -> None:
        """Delete the subtree of a closed incarnation. May be repeated after a crash, by anyone, at any time.

        SUBTLE: a rival may finish this and create the name anew while we are at it. Every delete therefore checks the
        marker of the incarnation it means. Setting the marker first stops an import that is still filling it.
        """
        closed = paths.closed(view, incarnation)
        if isinstance(self._store.commit([Set(closed, b"", -1)]), Conflicted):
            return
        parents = (paths.shards(view), paths.dispatch(view))
        for parent in parents:
            for name in self._store.children(parent):
                self._store.commit([Check(closed, -1), Delete(f"{parent}/{name}")])
        rest = (closed, paths.fences(view), *parents, paths.view(view))
        self._store.commit([Delete(path) for path in rest])

    def restore(
        self,
        header: ViewHeader,
        entries: Mapping[int, Entry],
        runs: Runs = NO_RUNS,
        *,
        verified: Callable[[Mapping[int, Entry]], Mapping[int, Entry]] = lambda entries: entries,
        is_here: Callable[[str], bool] = lambda _location: False,
    ) -> ViewHeader:
        """Create a view with entries, as a new incarnation that nobody sees before it is whole.

        They are `verified` once the view has its name: from then on nobody clears away what lies at its location, so a
        file that is found then is a file that stays. `is_here` says which other locations overlap with it.

        Until the last write the view counts as one that is being dropped: no reader uses it, no writer finds a fence,
        and after a crash whoever creates or drops the name next clears it away.
        """
        name, grid = header.definition.name, header.definition.grid
        hidden = replace(header, incarnation=new_id(self._engine.randomness), status=ViewStatus.DROPPING)
        gate = paths.closed(name, hidden.incarnation)
        self._create(hidden, gate=gate, runs=runs, claims=lambda: self._dropped.claims(is_here))
        found = verified(entries)
        for number, starts in grid.by_shard(sorted(found)).items():
            data = codec.encode_shard(Shard({s: found[s] for s in starts}), grid)
            self._create_hidden(hidden, Create(paths.shard(name, number), data))
        shown = replace(hidden, status=header.status)
        opening = Delete(paths.closed(name, hidden.incarnation))
        showing = Set(paths.view(name), codec.encode_view(shown), 0)
        self._create_hidden(hidden, Create(paths.fence(name, hidden.incarnation), b""), opening, showing)
        return shown

    def _create_hidden(self, hidden: ViewHeader, node: Create, *others: Op) -> None:
        """Create a node of a view that is not open yet, unless someone has begun to clear that view away."""
        name = hidden.definition.name
        closed = paths.closed(name, hidden.incarnation)

        def attempt() -> Done[None] | Write[None]:
            made, marker = self._store.read_many([node.path, closed])
            if made is not None:
                return Done(None)
            if marker is None or marker.version:
                raise InvalidInput("view-exists", f"view {name!r} was created or dropped by another during its import")
            return Write([Check(closed, 0), node, *others], None)

        self._engine.run(f"import view {name}", self._budgets.critical, attempt)

    def set_status(self, view: str, status: ViewStatus) -> ViewHeader:
        """Pause or resume."""
        assert status is not ViewStatus.DROPPING, "drop is an operation of its own"
        return self._rewrite_header(view, f"set {view} {status}", lambda header: replace(header, status=status))

    # -- reading ---------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(self._store.children(paths.VIEWS))

    def header(self, view: str) -> ViewHeader:
        return require_header(self._store, view).header

    def current(self, view: str) -> SeenHeader:
        """The header for whoever is about to mark. The change being marked may be newer than what a lagging server
        shows, and a stale read could hide a VALID bucket; reads that follow this one are as new."""
        return require_header(self._store, view, current=True)

    def state(self, view: str, window: Interval | None = None) -> ViewState:
        """The header, then the entries: a watermark is never newer than the entries below it."""
        look = Look(self._store, self._memory, view, trusting=False)
        if look.header is None:
            raise InvalidInput("unknown-view", f"there is no view {view!r}")
        grid = look.header.definition.grid
        runs = look.runs  # before the nodes: what leaves a run in between is seen twice, not nowhere
        numbers = self._shard_numbers(view)
        runs = runs.without(IntervalSet.of(Interval(n, n + 1) for n in numbers)) if runs else runs
        if window is not None:
            first, last = grid.shard_of(window.start_ms), grid.shard_of(window.end_ms - 1)
            numbers = [n for n in numbers if first <= n <= last]
        entries = {start: entry for seen in look.shards(numbers).values() for start, entry in seen.shard}
        if window is not None:
            entries = {s: e for s, e in entries.items() if grid.window(s).overlaps(window)}
        return ViewState(look.header, entries, runs)

    def buckets(self, view: str, starts: Iterable[int]) -> ViewState:
        """The header and the entries of these buckets, reading only their shards. VACANT ones are left out."""
        look = Look(self._store, self._memory, view, trusting=False)
        if look.header is None:
            raise InvalidInput("unknown-view", f"there is no view {view!r}")
        by_shard = look.header.definition.grid.by_shard(starts)
        seen = look.shards(list(by_shard))
        found = ((s, seen[number].shard.get(s)) for number, own in by_shard.items() for s in own)
        return ViewState(look.header, {start: entry for start, entry in found if entry is not None})

    def _shard_numbers(self, view: str) -> list[int]:
        return sorted(int(name) for name in self._store.children(paths.shards(view)))

    # -- transitions -----------------------------------------------------------------------------------------------

    def commit(
        self, view: str, incarnation: str, builds: Sequence[Build], *, hold: Hold | None = None
    ) -> Outcome[Decisions]:
        return self._commits.commit(view, incarnation, builds, hold=hold)

    def append_valid(self, view: str, incarnation: str, build: Build) -> Outcome[Decision]:
        return self._commit_one(view, incarnation, build, Mode.APPEND)

    def refresh_valid(self, view: str, incarnation: str, build: Build) -> Outcome[Decision]:
        return self._commit_one(view, incarnation, build, Mode.OVERWRITE)

    def clear_valid(self, view: str, incarnation: str, build: Build) -> Outcome[Decision]:
        return self._commit_one(view, incarnation, build, Mode.DELETE)

    def _commit_one(self, view: str, incarnation: str, build: Build, mode: Mode) -> Outcome[Decision]:
        if build.mode is not mode:
            raise InvalidInput("mode", f"the build of {view} bucket {build.start_ms} is an {build.mode}, not {mode}")
        outcome = self._commits.commit(view, incarnation, [build])
        return Outcome(outcome.result[build.start_ms], outcome.tries, outcome.conflicts, outcome.unknowns)

    def settle(self, view: str, incarnation: str, *, end_ms: int, beside: Collection[int] = ()) -> Settled:
        """Long stretches without a source become VALID-empty as runs; see `Stretches.settle`."""
        return self._stretches.settle(view, incarnation, end_ms=end_ms, beside=beside)

    def revert_valid(self, view: str, incarnation: str, start_ms: int) -> Outcome[bool]:
        return self._commits.revert(view, incarnation, start_ms)

    def mark_stale(self, view: str, ranges: Iterable[Interval] | None, cause: Cause) -> Marked:
        """Mark every bucket these ranges touch, for one cause; None means the whole view."""
        return self.mark(view, [Mark(None if ranges is None else IntervalSet.of(ranges), cause)])

    def mark(self, view: str, marks: Sequence[Mark], *, known: SeenHeader | None = None) -> Marked:
        """Mark every bucket the marks touch, each for the first that does. One write for each shard that changes.

        A view that is not there is left alone: whoever drops it needs no marks. `known` is its `current` header, from a
        caller who has read it after the changes that are marked.
        """
        seen = known or read_header(self._store, view, current=True)
        if seen is None or seen.header.status is ViewStatus.DROPPING:
            return Marked()
        marked, damage = Marked(in_runs=self._stretches.mark(view, seen, marks)), None
        causes = self._causes(view, seen.header, marks)
        for number, starts in seen.header.definition.grid.by_shard(causes).items():
            try:
                marked += self._mark_shard(view, seen, number, {s: causes[s] for s in starts})
            except InvalidInput as error:
                damage = error  # this shard cannot be marked; the others can, and nobody may come back for them
        if damage is not None:
            raise damage
        return marked

    def _causes(self, view: str, header: ViewHeader, marks: Sequence[Mark]) -> dict[int, Cause]:
        """The buckets that have, or may have, something to mark: those in existing shards, and in covered ones.

        Where marks touch many shards, those without a node that are touched wholly are left to `Stretches.mark`.
        """
        grid = header.definition.grid
        ranges = [interval for mark in marks for interval in mark.ranges or ()]
        if touch_few(marks, grid):
            numbers = {n for part in touched_shards(ranges, grid) for n in range(part.start_ms, part.end_ms)}
        else:
            covered = covered_interval(header)
            numbers = {*self._shard_numbers(view), *partly_touched([*ranges, *([covered] if covered else [])], grid)}
        reaches = IntervalSet.of(grid.shard_window(number) for number in numbers)
        causes: dict[int, Cause] = {}
        for reach in reaches:
            for mark in marks:
                for interval in [reach] if mark.ranges is None else mark.ranges.clip(reach):
                    for start_ms in grid.starts_in(interval):
                        causes.setdefault(start_ms, mark.cause)
        return causes

    def _mark_shard(self, view: str, seen: SeenHeader, number: int, causes: Mapping[int, Cause]) -> Marked:
        known: SeenHeader | None = seen

        def attempt() -> Done[Marked] | Write[Marked]:
            nonlocal known
            look = Look(self._store, self._memory, view, trusting=False, seen=known)
            known = None  # a second try reads it again
            header = look.active(seen.header.incarnation)
            if header is None:
                return Done(Marked())
            shard = look.shard(number)
            changed = _marked(shard, causes, header)
            if not changed:
                return Done(Marked())
            result = Marked(
                invalidated=tuple(s for s, e in changed.items() if e.ever_valid),
                synthesized=tuple(s for s, e in changed.items() if not e.ever_valid),
            )
            return Write([look.check_fence(), *look.set_shards({number: shard.put(changed)})], result)

        name = f"mark {len(causes)} buckets of {view} stale"
        forget = self._memory.forget
        return self._engine.run(name, self._budgets.critical, attempt, forget=lambda: forget(view)).result

    # -- coverage --------------------------------------------------------------------------------------------------

    def extend_coverage(self, view: str, to_ms: int, cause: Cause) -> Marked:
        """Let coverage begin no later than this time. What becomes covered gets STALE entries first (INV-5, INV-6)."""
        marked = Marked()

        def attempt() -> Done[None] | Write[None]:
            nonlocal marked
            look = Look(self._store, self._memory, view, trusting=False)
            header = look.active()
            if header is None:
                return Done(None)
            start_ms = header.definition.grid.start_of(to_ms)
            if header.coverage_start_ms is None:
                begun = replace(header, coverage_start_ms=start_ms, watermark_ms=start_ms)
                return Write([look.check_fence(), look.set_header(begun)], None)
            if header.coverage_start_ms <= start_ms:
                return Done(None)
            extended = replace(header, coverage_start_ms=start_ms)
            marked += self._fill(view, extended, Interval(start_ms, header.coverage_start_ms), cause)
            return Write([look.check_fence(), look.set_header(extended)], None)

        self._engine.run(f"extend coverage of {view}", self._budgets.critical, attempt)
        self._memory.forget(view)
        return marked

    def _fill(self, view: str, header: ViewHeader, window: Interval, cause: Cause) -> Marked:
        """Give every VACANT bucket of a window a STALE entry, as if it were covered already."""
        filled = Marked(in_runs=self._stretches.fill(view, header.incarnation, window, cause))
        grid: BucketGrid = header.definition.grid
        numbers = {*self._shard_numbers(view), *partly_touched([window], grid)}
        reaches = IntervalSet.of(grid.shard_window(number) for number in numbers).clip(window)
        for number, starts in grid.by_shard(s for reach in reaches for s in grid.starts_in(reach)).items():

            def attempt(number: int = number, starts: Sequence[int] = starts) -> Done[Marked] | Write[Marked]:
                look = Look(self._store, self._memory, view, trusting=False)
                if look.active(header.incarnation) is None:
                    return Done(Marked())
                shard = look.shard(number)
                changed = _marked(shard, {s: cause for s in starts if shard.get(s) is None}, header)
                if not changed:
                    return Done(Marked())
                set_shard = look.set_shards({number: shard.put(changed)})
                return Write([look.check_fence(), *set_shard], Marked(synthesized=tuple(changed)))

            filled += self._engine.run(f"extend coverage of {view}", self._budgets.critical, attempt).result
        return filled

    def _rewrite_header(self, view: str, name: str, change: Callable[[ViewHeader], ViewHeader]) -> ViewHeader:
        def attempt() -> Done[ViewHeader] | Write[ViewHeader]:
            look = Look(self._store, self._memory, view, trusting=False)
            header = look.active()
            if header is None:
                raise InvalidInput("unknown-view", f"there is no view {view!r}")
            changed = change(header)
            if changed == header:
                return Done(changed)
            return Write([look.check_fence(), look.set_header(changed)], changed)

        outcome = self._engine.run(name, self._budgets.critical, attempt)
        self._memory.forget(view)
        return outcome.result


def _marked(shard: Shard, causes: Mapping[int, Cause], header: ViewHeader) -> dict[int, Entry]:
    """The entries that a mark of these buckets changes."""
    changed = {}
    for start_ms, cause in causes.items():
        decision = transitions.mark_stale(shard.get(start_ms), in_coverage=header.covers(start_ms), cause=cause)
        if isinstance(decision, Changed):
            changed[start_ms] = decision.entry
    return changed
