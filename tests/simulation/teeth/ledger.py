"""Bugs of the ledger: checks outside the write, entries that go, watermarks that run ahead, answers taken for no."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from floodmark.core import transitions, watermark
from floodmark.core.buckets import BucketGrid, Cause, Entry
from floodmark.core.errors import OutcomeUnknown
from floodmark.core.registry import Change
from floodmark.core.transitions import AlreadyTrue, Build, Changed, Decision, Mode, Source
from floodmark.ledger import commits, paths, registry, retention, stretches, viewnodes, views
from floodmark.ledger.commits import Commits
from floodmark.ledger.engine import Done, Engine, Outcome, Write
from floodmark.ledger.holds import Hold, Holds, _encode
from floodmark.ledger.registry import Registry
from floodmark.ledger.store import ANY_VERSION, Check, Create, Op, Set
from floodmark.ledger.viewnodes import Look, SeenHeader, require_header
from floodmark.ledger.views import Marked, Views
from tests.simulation.teeth import Substitution, bug


def _is_slice_check(op: Op) -> bool:
    return isinstance(op, Check) and "/slices/" in op.path


def _unchecked(write: Write[Any]) -> Write[Any]:
    """The same write without its checks of the source."""
    kept = [op for op in write.ops if not _is_slice_check(op)]
    keeper = write.on_committed
    if isinstance(keeper, commits._Keeper):
        keeper = replace(keeper, op_paths=[op.path for op in kept])
    return replace(write, ops=kept, on_committed=keeper)


@bug
def source_check_outside_the_write() -> list[Substitution]:
    """A commit compares the source and then writes, without checking it in the write."""
    real = Commits._write

    def write(self: Commits, *args: Any, **named: Any) -> Write[Any]:
        return _unchecked(real(self, *args, **named))

    return [(Commits, "_write", write)]


@bug
def source_check_before_the_retry_loop() -> list[Substitution]:
    """The source is compared once, when the task begins; every try then writes at the versions it finds."""
    real = transitions.commit

    def commit(entry: Entry | None, build: Build, live: Source | Build) -> Decision:
        return real(entry, build, live if live is build else replace(live, fingerprint=build.fingerprint))

    return [(transitions, "commit", commit)]


@bug
def revert_without_the_atomic_check() -> list[Substitution]:
    """A STALE bucket goes back to VALID by a comparison made before the write."""
    real = Commits.revert
    real_write = Commits._write

    def revert(self: Commits, view: str, incarnation: str, start_ms: int) -> Outcome[bool]:
        careless = Commits(self._engine, self._budgets, self._registry, self._memory)
        careless._write = lambda *a, **k: _unchecked(real_write(self, *a, **k))  # type: ignore[method-assign]
        return real(careless, view, incarnation, start_ms)

    return [(Commits, "revert", revert)]


@bug
def marks_by_memory() -> list[Substitution]:
    """A mark skips buckets it remembers as not VALID, with nothing in the write to say that they still are not."""

    def mark_shard(self: Views, view: str, seen: SeenHeader, number: int, causes: Mapping[int, Cause]) -> Marked:
        def attempt() -> Any:
            look = Look(self._store, self._memory, view, trusting=True)
            header = look.active(seen.header.incarnation)
            changed = {} if header is None else views._marked(look.shard(number), causes, header)
            if not changed:
                return Done(Marked())
            shard = look.shard(number).put(changed)
            return Write([look.check_fence(), *look.set_shards({number: shard})], Marked(tuple(changed)))

        forget = self._memory.forget
        return self._engine.run("mark", self._budgets.critical, attempt, forget=lambda: forget(view)).result

    return [(Views, "_mark_shard", mark_shard)]


@bug
def marks_without_sync() -> list[Substitution]:
    """A mark reads from a server that lags, which still shows the bucket as it was before it became VALID."""

    def current(self: Views, view: str) -> SeenHeader:
        return require_header(self._store, view)

    return [(Views, "current", current)]


@bug
def delete_removes_the_entry() -> list[Substitution]:
    """A bucket whose source is empty loses its entry instead of becoming VALID-empty."""
    real = commits._grouped

    def grouped(by_shard: Any, seen: Any, decisions: Any, data_end: Any) -> Any:
        group = real(by_shard, seen, decisions, data_end)
        gone = {s for s, e in group.changed.items() if e.fingerprint is not None and e.fingerprint.is_empty}
        for number, shard in group.shards.items():
            left = {s: e for s, e in shard.entries.items() if s not in gone}
            group.shards[number] = type(shard)(left)
        return group

    return [(commits, "_grouped", grouped)]


@bug
def no_synthesis_of_vacant() -> list[Substitution]:
    """A mark leaves VACANT buckets inside coverage alone."""
    real = transitions.mark_stale

    def mark_stale(entry: Entry | None, *, in_coverage: bool, cause: Cause) -> Decision:
        return AlreadyTrue() if entry is None else real(entry, in_coverage=in_coverage, cause=cause)

    return [(transitions, "mark_stale", mark_stale)]


@bug
def watermark_follows_the_clock() -> list[Substitution]:
    """Every commit moves the watermark as far as time has gone, gaps or not."""

    def advanced(watermark_ms: int, grid: BucketGrid, *_: Any) -> int:
        return watermark_ms + 100 * grid.width_ms

    return [(watermark, "advanced", advanced)]


@bug
def runs_settled_without_a_check() -> list[Substitution]:
    """That a long stretch has no source is found before the write, and not checked in it."""

    def check(path: str, _version: int) -> Op:
        return Check(path, ANY_VERSION)

    return [(stretches, "Check", check)]


@bug
def watermark_in_a_second_write() -> list[Substitution]:
    """The bucket is committed first and the watermark moved after, in a write of its own."""
    real = Commits._write

    def write(self: Commits, view: str, *args: Any, **named: Any) -> Write[Any]:
        made = real(self, view, *args, **named)
        header = paths.view(view)
        moving = [op for op in made.ops if isinstance(op, Set) and op.path == header]
        if not moving:
            return made
        kept = [op for op in made.ops if op not in moving]

        def then(_: Any) -> None:
            self._memory.forget(view)
            self._engine.store.commit(moving)

        return replace(made, ops=kept, on_committed=then)

    return [(Commits, "_write", write)]


@bug
def watermark_left_to_the_other() -> list[Substitution]:
    """Two commits on both sides of a shard boundary each leave it to the other to move the watermark."""

    def write(self: Commits, view: str, look: Look, group: Any, **named: Any) -> Write[Any]:
        made = real(self, view, look, group, **named)
        kept = [op for op in made.ops if not (isinstance(op, Check) and "/shards/" in op.path)]
        keeper = made.on_committed
        if isinstance(keeper, commits._Keeper):
            keeper = replace(keeper, op_paths=[op.path for op in kept])
        return replace(made, ops=kept, on_committed=keeper)

    real = Commits._write
    return [(Commits, "_write", write), (watermark, "depends_on_header", lambda *_, **__: False)]


@bug
def commit_without_incarnation_check() -> list[Substitution]:
    """A commit goes to whatever view has the name now."""
    real = Look.active

    def check_view(self: Look) -> Op:
        return Check(paths.view(self._view), ANY_VERSION)

    return [
        (Look, "active", lambda self, incarnation=None: real(self)),
        (viewnodes.Look, "check_fence", check_view),
    ]


@bug
def commit_without_its_hold() -> list[Substitution]:
    """A commit does not check that its hold stands: its files may have been cleared away."""
    real = Commits.commit

    def commit(self: Commits, view: str, incarnation: str, builds: Sequence[Build], *, hold: Hold | None = None) -> Any:
        return real(self, view, incarnation, builds)

    return [(Commits, "commit", commit)]


@bug
def lost_answer_taken_for_a_conflict() -> list[Substitution]:
    """A commit whose answer was lost finds its own entry and takes it for a rival's."""
    real = transitions.commit

    def commit(entry: Entry | None, build: Build, live: Source | Build) -> Decision:
        mine = entry is not None and entry.attempt_id == build.attempt_id
        return real(replace(entry, attempt_id="another") if mine and entry else entry, build, live)

    return [(transitions, "commit", commit)]


@bug
def output_deleted_on_unknown_outcome() -> list[Substitution]:
    """A commit that was not answered is taken to have failed, and its files are deleted."""
    from floodmark.parquet.lake import Lake
    from floodmark_worker.builder import _Run

    real_commit, real_look_up = _Run._commit, Engine._look_up

    def look_up(self: Engine, name: str, budget: Any) -> None:
        if name.startswith("commit "):
            raise OutcomeUnknown("nobody looks it up")
        real_look_up(self, name, budget)

    def commit(self: _Run, header: Any, part: Mapping[int, Any], built: Any, keeper: Any) -> None:
        try:
            real_commit(self, header, part, built, keeper)
        except OutcomeUnknown:
            lake = Lake(header.definition.location)
            for files in built.files.values():
                for file in files:
                    lake.delete(file.name)
            raise

    return [(_Run, "_commit", commit), (Engine, "_look_up", look_up)]


@bug
def lease_time_sampled_outside_the_retry() -> list[Substitution]:
    """A hold's expiry is computed once, before the first try; whenever it is written, it is as old as that."""

    def take(self: Holds, table: str, reader: str, *, ttl_ms: int) -> Hold:
        from floodmark.core.ports import new_id

        hold_id = new_id(self._engine.randomness)
        now_ms = self._engine.clock.now_ms()
        version = self._registry.header(table).version
        hold = Hold(table, hold_id, reader, version, now_ms, now_ms + ttl_ms)

        def attempt() -> Any:
            if self._store.read(hold.path) is not None:
                return Done(hold)
            return Write([Create(hold.path, _encode(hold))], hold)

        return self._engine.run("hold", self._budgets.critical, attempt).result

    return [(Holds, "take", take)]


@bug
def moved_segment_reports_one_range() -> list[Substitution]:
    """A segment that was replaced by one of another time reports only where it is now."""

    def ranges(self: Change) -> Any:
        segment = self.new or self.old
        assert segment is not None
        return None if segment.interval is None else (segment.interval,)

    return [(Change, "ranges", property(ranges))]


@bug
def outbox_cleared_before_publishing() -> list[Substitution]:
    """The event leaves the outbox when it is read, not when the bus has it."""
    real = Registry.outbox

    def outbox(self: Registry, table: str) -> Any:
        events = real(self, table)
        for event in events:
            self.acknowledge(table, event)
        return events

    return [(Registry, "outbox", outbox)]


@bug
def too_large_a_write_is_not_halved() -> list[Substitution]:
    """What is too large for one write is refused, and whoever asked for it asks again for the same."""

    def whole(items: Sequence[Any], write: Any, **_: Any) -> Iterator[Any]:
        yield write(items)

    return [(module, "halved", whole) for module in (commits, registry, retention)]


@bug
def a_part_is_written_without_its_slice() -> list[Substitution]:
    """A change of one part leaves the slice's own node, which every commit checks, as it is."""
    real = registry._slice_ops

    def slice_ops(table: str, key: str, listed: Any, version: Any, *, before: Any, at: int) -> Iterator[Op]:
        own, *parts = real(table, key, listed, version, before=before, at=at)
        same = before is not None and before.is_split and before.parts.keys() == listed.parts.keys()
        yield from [*([Check(own.path, ANY_VERSION)] if same else [own]), *parts]

    return [(registry, "_slice_ops", slice_ops)]


@bug
def clear_without_looking_again() -> list[Substitution]:
    """A bucket is cleared because its source was empty when the task was made, whatever it is now."""
    real = transitions.commit

    def commit(entry: Entry | None, build: Build, live: Source | Build) -> Decision:
        if build.mode is Mode.DELETE and not isinstance(live, Build) and entry is not None:
            return Changed(replace(build.change.entry, slice_versions=live.slice_versions))
        return real(entry, build, live)

    return [(transitions, "commit", commit)]
