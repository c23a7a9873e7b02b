"""Making buckets VALID, from a build or by a revert, in one multi that checks the source as well.

    check  every registry slice the buckets overlap, at the versions the fingerprints were read at    INV-3, INV-4
    check  the fence of the view's incarnation                                                        INV-13
    set    the shards of the buckets                                                                  INV-2
    set    the header, when the watermark moves, or check it when this write could be next in line    INV-5
    check  the other shards that were looked into to find where the run of buckets ends
    check  the table's header, when only it told where the data ends                                  INV-5
    check  that the attempt's hold stands, so that nobody has begun to clear its files away             INV-11

The first try trusts what the attempt already knows: the versions it built from and the nodes it last saw. Everything
it relies on is checked in the write, so being wrong costs a second try, in which all of it is read again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

from floodmark.core import transitions, watermark
from floodmark.core.buckets import Entry, Shard
from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval
from floodmark.core.tables import TableHeader, ViewHeader
from floodmark.core.transitions import Build, Changed, Decision, Mode, Reason, Rejected, Source
from floodmark.ledger import paths
from floodmark.ledger.engine import Budgets, Done, Engine, Outcome, Write
from floodmark.ledger.halving import halved
from floodmark.ledger.holds import Hold
from floodmark.ledger.registry import Registry
from floodmark.ledger.store import ANY_VERSION, Check, Committed, Create, Op, Set, TooLarge, node_too_large
from floodmark.ledger.viewnodes import Look, Memory, SeenHeader, SeenShard, Walk

BUILDS_PER_COMMIT_MAX = 1024

Decisions = Mapping[int, Decision]
"""What became of each bucket: Changed (written now), AlreadyTrue (by this very attempt) or Rejected."""
_Step = Done[Decisions] | Write[Decisions]

_slice_versions = attrgetter("slice_versions")


@dataclass(frozen=True, slots=True)
class _Group:
    """The decisions on one group of builds, and the shards they lead to."""

    decisions: dict[int, Decision]
    changed: dict[int, Entry]
    shards: dict[int, Shard]
    data_end: "_DataEnd | None"

    @property
    def slice_versions(self) -> dict[str, int]:
        """The slices that what is to be written was built from, and at which versions."""
        versions = _merged(map(_slice_versions, self.changed.values()))
        assert versions, "a commit that checks no source, or two versions of one, could make anything VALID"
        return versions


class _DataEnd:
    """Where the data of a table ends, as far as one try has to know it. The table's header is read at most once."""

    def __init__(self, registry: Registry, table: str) -> None:
        self._registry = registry
        self._table = table
        self._read: tuple[TableHeader, int] | None = None

    def reaching(self, time_ms: int, checked: Mapping[str, int]) -> int | None:
        """The end of the data, or an earlier one that is not before this time.

        What the slices list does without the header: the write checks their versions, so it holds at that instant.
        """
        listed_ms = self._registry.listed_end(self._table, checked)
        if listed_ms is not None and listed_ms >= time_ms:
            return listed_ms
        self._read = self._read or self._registry.read_header(self._table)
        last_ms = self._read[0].max_last_ms
        return None if last_ms is None else last_ms + 1

    def check(self) -> list[Op]:
        """What the write has to check for the end to hold at that instant.

        SUBTLE: the last segment may go, or come, between the look and the write:

            commit      reads that the data ends at 10:00, where the watermark stops
            registrar   adds a segment up to 12:00
            commit      writes; the buckets up to 12:00 are VALID, and the watermark stands at 10:00

        The other way round it would stand past the data. Only a table's header knows, and it changes with every
        registration, so it is checked only where it was needed.
        """
        return [] if self._read is None else [Check(paths.table(self._table), self._read[1])]


class Commits:
    """The committing half of the views' state."""

    def __init__(self, engine: Engine, budgets: Budgets, registry: Registry, memory: Memory) -> None:
        self._engine = engine
        self._budgets = budgets
        self._registry = registry
        self._memory = memory

    def commit(
        self, view: str, incarnation: str, builds: Sequence[Build], *, hold: Hold | None = None
    ) -> Outcome[Decisions]:
        """Commit finished builds of one view. One bucket's rejection does not take the others down.

        With the hold under which they were built, nothing is committed once that hold is gone. What is too large for
        one write is committed in several, neighbours together; a bucket that is too large by itself is rejected.
        """
        ordered = sorted(_by_start(view, builds).values(), key=attrgetter("start_ms"))
        outcomes = halved(ordered, lambda part: self._commit(view, incarnation, part, hold), alone=_too_large)
        return _together(list(outcomes))

    def _commit(self, view: str, incarnation: str, builds: Sequence[Build], hold: Hold | None) -> Outcome[Decisions]:
        by_start = {build.start_ms: build for build in builds}
        trusting = True

        def attempt() -> _Step:
            look, group = self._decide(view, incarnation, by_start, trusting=trusting)
            if look.remembered and len(group.changed) < len(builds):
                look, group = self._decide(view, incarnation, by_start, trusting=False)
            if not group.changed:
                return Done(group.decisions)
            if hold is not None and not trusting and self._engine.store.read(hold.path) is None:
                return Done(_without_hold(group))
            return self._write(view, look, group, trusting=trusting, hold=hold)

        def forget() -> None:
            nonlocal trusting
            trusting = False
            self._memory.forget(view)

        return self._engine.run(f"commit {_summary(view, builds)}", self._budgets.critical, attempt, forget=forget)

    def revert(self, view: str, incarnation: str, start_ms: int) -> Outcome[bool]:
        """STALE -> VALID if the source is what the bucket was built from; True when this call did it."""

        def attempt() -> Done[bool] | Write[bool]:
            look = Look(self._engine.store, self._memory, view, trusting=False)
            header = look.active(incarnation)
            if header is None:
                return Done(result=False)
            grid = header.definition.grid
            seen = look.shards([grid.shard_of(start_ms)])
            live = self._registry.read_window(header.definition.table, grid.window(start_ms)).source
            entry = seen[grid.shard_of(start_ms)].shard.get(start_ms)
            decision = transitions.revert(entry, live, definition_hash=header.definition.hash)
            if not isinstance(decision, Changed):
                return Done(result=False)
            data_end = _DataEnd(self._registry, header.definition.table)
            group = _grouped(grid.by_shard([start_ms]), seen, {start_ms: decision}, data_end)
            write = self._write(view, look, group, trusting=False)
            return Write(write.ops, result=True, on_committed=write.on_committed)

        name = f"revert {view} bucket {start_ms}"
        return self._engine.run(name, self._budgets.revert, attempt, forget=lambda: self._memory.forget(view))

    # -- deciding --------------------------------------------------------------------------------------------------

    def _decide(
        self, view: str, incarnation: str, by_start: Mapping[int, Build], *, trusting: bool
    ) -> tuple[Look, _Group]:
        look = Look(self._engine.store, self._memory, view, trusting=trusting)
        header = look.active(incarnation)
        if header is None:
            return look, _Group(dict.fromkeys(by_start, Rejected(Reason.DROPPED)), {}, {}, None)
        by_shard = header.definition.grid.by_shard(by_start)
        seen = look.shards(list(by_shard))
        # The write checks the versions a build was read at, so it may be taken for its own live source.
        own = trusting and self._name_their_slices(header, by_start.values())
        sources: Mapping[int, Source | Build] = by_start if own else self._live(header, by_start)
        data_end = _DataEnd(self._registry, header.definition.table)
        decisions: dict[int, Decision] = {}
        decide, append = transitions.commit, Mode.APPEND
        for number, starts in by_shard.items():
            entries = seen[number].shard.entries
            for start_ms in starts:
                build = by_start[start_ms]
                decision = decide(entries.get(start_ms), build, sources[start_ms])
                if build.mode is append and isinstance(decision, Changed):
                    decision = _appendable(header, start_ms, decision, data_end)
                decisions[start_ms] = decision
        return look, _grouped(by_shard, seen, decisions, data_end)

    def _live(self, header: ViewHeader, starts: Collection[int]) -> dict[int, Source]:
        """The source of each bucket as it is now, read in this very try."""
        windows = [header.definition.grid.window(start_ms) for start_ms in starts]
        read = self._registry.read_windows(header.definition.table, windows)
        return {start_ms: r.source for start_ms, r in zip(starts, read, strict=True)}

    def _name_their_slices(self, header: ViewHeader, builds: Iterable[Build]) -> bool:
        """Whether the builds name every slice their windows touch, and agree on its version.

        A slice left out would not be checked (INV-3).
        """
        slices = self._registry.definition(header.definition.table).grid
        named = []
        for versions, alike in groupby(builds, key=_slice_versions):
            starts = [b.start_ms for b in alike]
            hull = Interval(min(starts), max(starts) + header.definition.bucket_ms)
            if not versions.keys() >= set(slices.keys_for_window(hull)):
                return False
            named.append(versions)
        return _merged(named) is not None

    # -- writing ---------------------------------------------------------------------------------------------------

    def _write(
        self, view: str, look: Look, group: _Group, *, trusting: bool, hold: Hold | None = None
    ) -> Write[Decisions]:
        header = look.header
        assert header is not None
        table, checked = header.definition.table, group.slice_versions
        ops: list[Op] = [look.check_fence()]
        ops += [Check(paths.slice_(table, key), version) for key, version in checked.items()]
        reach = _watermark(look, header, group, checked)
        writes = look.set_shards(group.shards, checked=reach.shards, relying_on_runs=reach.through_runs)
        self._check_room(view, look, group, writes)
        ops += writes
        ops += reach.header_ops
        ops += group.data_end.check() if group.data_end else []
        ops += [Check(hold.path, ANY_VERSION)] if hold else []  # renewed meanwhile or not, it must stand
        kept = self._keeper(view, header.incarnation, reach.moved, group.shards, ops)
        return Write(ops, group.decisions, kept, from_memory=trusting)

    def _check_room(self, view: str, look: Look, group: _Group, writes: Iterable[Op]) -> None:
        """Refuse what leaves a shard no room for the marks of its buckets.

        A build whose files' names take no more room than those before is never refused, though its other fields may
        take a few bytes more. Otherwise the buckets of a full shard would stay STALE for ever.
        """
        bytes_max = self._engine.limits.shard_bytes
        shards = {paths.shard(view, number): (number, shard) for number, shard in group.shards.items()}
        for write in writes:
            if isinstance(write, Create | Set) and write.path in shards and len(write.data) > bytes_max:
                number, shard = shards[write.path]
                bare = Shard({start: replace(entry, cause=None) for start, entry in shard})
                size, names = look.size_of(bare), _bytes_of_names(shard)
                if size > bytes_max and names > _bytes_of_names(look.shard(number)):
                    raise node_too_large(write.path, size, bytes_max)

    def _keeper(
        self, view: str, incarnation: str, moved: ViewHeader | None, shards: Mapping[int, Shard], ops: Sequence[Op]
    ) -> "_Keeper":
        return _Keeper(self._memory, view, incarnation, moved, shards, [op.path for op in ops])


@dataclass(frozen=True, slots=True)
class _Keeper:
    """Remembers what a committed write left behind, so that the next one need not read it."""

    memory: Memory
    view: str
    incarnation: str
    header: ViewHeader | None
    shards: Mapping[int, Shard]
    op_paths: Sequence[str]

    def __call__(self, committed: Committed) -> None:
        versions = dict(zip(self.op_paths, committed.versions, strict=True))
        for number, shard in self.shards.items():
            seen = SeenShard(shard, versions[paths.shard(self.view, number)])
            self.memory.keep_shard(self.view, self.incarnation, number, seen)
        version = versions.get(paths.view(self.view))
        if self.header is not None and version is not None:
            self.memory.keep_header(self.view, SeenHeader(self.header, version))


def _appendable(header: ViewHeader, start_ms: int, decision: Changed, data_end: _DataEnd) -> Decision:
    """An append, unless something beside its bucket is against it: no watermark to move, or one past the data."""
    if header.watermark_ms is None:
        return Rejected(Reason.NOT_COVERED)
    bucket_end_ms = header.definition.grid.window(start_ms).end_ms
    data_end_ms = data_end.reaching(bucket_end_ms, decision.entry.slice_versions)
    if data_end_ms is None or bucket_end_ms > data_end_ms:
        return Rejected(Reason.BEYOND_SOURCE)
    return decision


def _without_hold(group: _Group) -> Decisions:
    return {
        start: Rejected(Reason.HOLD_LOST) if isinstance(decision, Changed) else decision
        for start, decision in group.decisions.items()
    }


def _grouped(
    by_shard: Mapping[int, Sequence[int]],
    seen: Mapping[int, SeenShard],
    decisions: dict[int, Decision],
    data_end: _DataEnd,
) -> _Group:
    changed = {start: d.entry for start, d in decisions.items() if isinstance(d, Changed)}
    if len(by_shard) == 1:
        shards = {number: seen[number].shard.put(changed) for number in by_shard if changed}
    else:
        shards = {
            number: seen[number].shard.put(own)
            for number, starts in by_shard.items()
            if (own := {start: changed[start] for start in starts if start in changed})
        }
    return _Group(decisions, changed, shards, data_end)


@dataclass(frozen=True, slots=True)
class _Reach:
    """How far the watermark comes by a write, and what must be checked for that to be right."""

    moved: ViewHeader | None
    header_ops: list[Op]
    shards: frozenset[int] = frozenset()
    through_runs: bool = False


def _watermark(look: Look, header: ViewHeader, group: _Group, checked: Mapping[str, int]) -> _Reach:
    if header.watermark_ms is None:
        return _Reach(None, [])
    grid = header.definition.grid
    walk = Walk(look, grid, group.shards)
    reached_ms = watermark.advanced(header.watermark_ms, grid, walk.entry_at, walk.stretch_end)
    if reached_ms > header.watermark_ms:
        # Entries may outlive the end of the data they were built from; the watermark stays within it (INV-5).
        assert group.data_end is not None
        data_end_ms = group.data_end.reaching(reached_ms, checked)
        reached_ms = header.watermark_ms if data_end_ms is None else min(reached_ms, grid.start_of(data_end_ms))
    if reached_ms > header.watermark_ms:
        moved = replace(header, watermark_ms=reached_ms)
        return _Reach(moved, [look.set_header(moved)], frozenset(walk.visited), walk.through_runs)
    depends = any(
        watermark.depends_on_header(
            start_ms, watermark_ms=header.watermark_ms, grid=grid, shard=group.shards[grid.shard_of(start_ms)]
        )
        for start_ms in group.changed
        if start_ms >= header.watermark_ms
    )
    return _Reach(None, [look.check_header()] if depends else [])


def _merged(listed: Iterable[Mapping[str, int]]) -> dict[str, int] | None:
    """All these slices and their versions; None when one of them is listed at two."""
    merged: dict[str, int] = {}
    last: Mapping[str, int] = {}
    for versions in listed:
        if versions is last or versions == last:  # neighbours nearly always were built from the same slices
            continue
        last = versions
        if any(merged.setdefault(key, version) != version for key, version in versions.items()):
            return None
    return merged


def _bytes_of_names(shard: Shard) -> int:
    return sum(len(file.name) for _, entry in shard for file in entry.files)


def _too_large(build: Build, error: TooLarge) -> Outcome[Decisions]:
    return Outcome({build.start_ms: Rejected(Reason.TOO_LARGE, detail=str(error))}, 1, 0, 0)


def _together(outcomes: Sequence[Outcome[Decisions]]) -> Outcome[Decisions]:
    if len(outcomes) == 1:
        return outcomes[0]
    decisions = {start: decision for outcome in outcomes for start, decision in outcome.result.items()}
    return Outcome(
        decisions,
        sum(outcome.tries for outcome in outcomes),
        sum(outcome.conflicts for outcome in outcomes),
        sum(outcome.unknowns for outcome in outcomes),
    )


def _by_start(view: str, builds: Sequence[Build]) -> dict[int, Build]:
    if not 1 <= len(builds) <= BUILDS_PER_COMMIT_MAX:
        raise InvalidInput("group", f"a commit to {view} has {len(builds)} builds, 1 to {BUILDS_PER_COMMIT_MAX} go")
    by_start = {b.start_ms: b for b in builds}
    if len(by_start) < len(builds):
        raise InvalidInput("group", f"a commit to {view} has two builds of one bucket")
    return by_start


def _summary(view: str, builds: Sequence[Build]) -> str:
    return f"{builds[0].mode} of {view} bucket {builds[0].start_ms}" + (
        f" and {len(builds) - 1} more" if len(builds) > 1 else ""
    )
