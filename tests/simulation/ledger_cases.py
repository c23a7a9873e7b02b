"""Who takes part in the ledger's races, and the oracle that judges how they end."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from floodmark.core import watermark
from floodmark.core.bounds import INT64_MAX
from floodmark.core.buckets import DataFile, Entry, Shard, State
from floodmark.core.errors import BudgetExhausted, InvalidInput
from floodmark.core.fingerprint import Fingerprint, fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.registry import Command, CommandsRefused
from floodmark.core.segments import Slice, segments_in
from floodmark.core.tables import TableHeader, ViewHeader, ViewStatus
from floodmark.core.transitions import Build, Decision, Mode, Rejected
from floodmark.ledger import codec, paths
from floodmark.ledger.store import LIMITS, Check, Committed, Conflicted, Create, Limits, Node, Op, Set, Store
from tests.simulation.explorer import Actor, Nodes
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, Kit, segment
from tests.support.memory_store import MemoryStore, OneByOne

Wrap = Callable[[Store], Store]
Attempt = tuple[int, str, tuple[DataFile, ...]]
"""Bucket, attempt id, and the files written for it."""
Verdicts = dict[Attempt, Decision]
"""What a worker was told of each of its attempts."""

_OUTBOX = paths.outbox(TABLE.name) + "/"


# -- where it starts -----------------------------------------------------------------------------------------------


def ready_for(mode: Mode) -> tuple[Nodes, ViewHeader]:
    """Bucket 0 in the state that this kind of task is for."""
    kit = Kit(MemoryStore())
    header = kit.set_up()
    kit.put(segment("a", 0, 1), segment("z", 5, 6))
    if mode is not Mode.APPEND:
        kit.append(0, "first")
        kit.put(segment("a", 0, 1, crc=2))
        kit.mark(0)
    if mode is Mode.DELETE:
        kit.remove("a")
    return nodes_of(kit), header


def nodes_of(kit: Kit) -> Nodes:
    assert isinstance(kit.store, MemoryStore)
    return dict(kit.store.nodes)


def event_count(nodes: Nodes) -> int:
    return sum(path.startswith(_OUTBOX) for path in nodes)


# -- who takes part ------------------------------------------------------------------------------------------------


def worker(
    name: str,
    incarnation: str,
    *hours: int,
    mode: Mode = Mode.APPEND,
    wrap: Wrap = lambda store: store,
    warm: bool = False,
    looks_twice: bool = False,
    answers_get_lost: bool = False,
) -> Actor:
    """Reads the inputs of its buckets, builds them, and commits them in one group.

    One that looks twice compares the source again before it commits, and gives up if it changed.
    """

    def prepare(store: Store) -> Kit:
        return warmed(Kit(wrap(store), seed=11)) if warm else Kit(wrap(store), seed=11)

    def run(kit: Kit) -> Verdicts:
        builds = [build for hour in hours if (build := build_of(kit, name, hour, mode))]
        if looks_twice:
            builds = [b for b in builds if (now := build_of(kit, name, b.start_ms // HOUR_MS, mode)) and now == b]
        if not builds:
            return {}
        decisions = kit.commit(*builds, incarnation=incarnation)
        return {attempt_of(build): decisions[build.start_ms // HOUR_MS] for build in builds}

    return Actor(name, prepare, run, answers_get_lost=answers_get_lost)


def build_of(kit: Kit, name: str, hour: int, mode: Mode) -> Build | None:
    """None for a DELETE whose source is not empty."""
    try:
        return kit.build(hour, mode, f"{name}-{hour}")
    except InvalidInput as error:
        if error.rule != "delete-not-empty":
            raise
        return None


def attempt_of(build: Build) -> Attempt:
    return build.start_ms, build.attempt_id, build.files


def warmed(kit: Kit) -> Kit:
    """A process that has seen the view and the registry before: it will trust its memory first."""
    kit.ledger.views.state(VIEW.name)
    kit.ledger.registry.snapshot(TABLE.name)
    return kit


def registrar(
    name: str,
    *batches: Sequence[Command],
    answers_get_lost: bool = False,
    wrap: Wrap = lambda store: store,
) -> Actor:
    """Registers one batch after the other. One that is refused changes nothing."""

    def run(kit: Kit) -> None:
        for batch in batches:
            with suppress(CommandsRefused):
                kit.ledger.registry.apply(TABLE.name, batch)

    # Seeds differ, so that two registrars never mint the same event id.
    seed = sum(name.encode())
    return Actor(name, lambda store: warmed(Kit(wrap(store), seed=seed)), run, answers_get_lost=answers_get_lost)


def marker(name: str, *hours: int, after_events: int, warm: bool = False, answers_get_lost: bool = False) -> Actor:
    """Marks as consistency does, bucket 0 if no other. It starts some time after that many events are in the outbox."""
    return Actor(
        name,
        lambda store: warmed(Kit(store, seed=12)) if warm else Kit(store, seed=12),
        lambda kit: kit.mark(*(hours or (0,)), event_id=name),
        may_start=lambda nodes: event_count(nodes) >= after_events,
        answers_get_lost=answers_get_lost,
    )


def reverter(incarnation: str, wrap: Wrap = lambda store: store) -> Actor:
    """Finds, as the scheduler does, that bucket 0 may be as good as it was."""
    return Actor(
        "scheduler",
        lambda store: Kit(wrap(store), seed=13),
        lambda kit: kit.ledger.views.revert_valid(VIEW.name, incarnation, 0),
    )


def settler(
    incarnation: str,
    *,
    wrap: Wrap = lambda store: store,
    answers_get_lost: bool = False,
    limits: Limits = LIMITS,
) -> Actor:
    """Settles long stretches, as the scheduler does."""

    def run(kit: Kit) -> None:
        with suppress(BudgetExhausted):
            kit.ledger.views.settle(VIEW.name, incarnation, end_ms=INT64_MAX)

    return Actor(
        "scheduler", lambda store: Kit(wrap(store), seed=16, limits=limits), run, answers_get_lost=answers_get_lost
    )


def replacer() -> Actor:
    """Drops the view and creates it anew under the same name."""

    def run(kit: Kit) -> None:
        kit.ledger.views.drop(VIEW.name)
        kit.ledger.views.create(VIEW, coverage_start_ms=0)

    return Actor("broker", lambda store: Kit(store, seed=14), run)


@dataclass(frozen=True, slots=True)
class Without(OneByOne):
    """A store that leaves out some operations of every write: what would happen if the ledger did not make them."""

    inner: Store
    left_out: Callable[[Op], bool]

    def read(self, path: str) -> Node | None:
        return self.inner.read(path)

    def read_many(self, wanted: Sequence[str], /) -> list[Node | None]:
        return self.inner.read_many(wanted)

    def read_current(self, path: str, /) -> Node | None:
        return self.inner.read_current(path)

    def children(self, path: str) -> list[str]:
        return self.inner.children(path)

    def commit(self, ops: Sequence[Op]) -> Committed | Conflicted:
        answer = self.inner.commit([op for op in ops if not self.left_out(op)])
        if isinstance(answer, Conflicted):
            return answer
        versions = iter(answer.versions)
        return Committed(tuple(None if self.left_out(op) else next(versions) for op in ops))

    def sync(self) -> None:
        self.inner.sync()


def without_slice_checks(store: Store) -> Store:
    return Without(store, lambda op: isinstance(op, Check) and op.path.startswith(paths.slices(TABLE.name)))


def without_checks_of_the_table(store: Store) -> Store:
    """Only a table's header knows where its data ends."""
    return Without(store, lambda op: isinstance(op, Check) and op.path == paths.table(TABLE.name))


def without_the_slices_own_node(store: Store) -> Store:
    """Parts are written, and the node that every commit checks is not. A new part is not listed then either."""
    prefix = paths.slices(TABLE.name) + "/"
    return Without(store, lambda op: isinstance(op, Set) and op.path.startswith(prefix) and op.path.count("/") == 5)


def without_presence_check(store: Store) -> Store:
    return Without(store, lambda op: isinstance(op, Check) and op.path == paths.touched(VIEW.name))


def without_runs_check(store: Store) -> Store:
    return Without(store, lambda op: isinstance(op, Check) and op.path == paths.runs(VIEW.name))


def without_fence(store: Store) -> Store:
    return Without(store, lambda op: isinstance(op, Check) and op.path.startswith(paths.fences(VIEW.name) + "/"))


def without_checks_of_other_shards(store: Store) -> Store:
    """An absent shard is checked by creating it empty; that goes too."""
    empty = codec.encode_shard(Shard(), VIEW.grid)

    def left_out(op: Op) -> bool:
        only_looked_at = isinstance(op, Check) or (isinstance(op, Create) and op.data == empty)
        return only_looked_at and op.path.startswith(paths.shards(VIEW.name))

    return Without(store, left_out)


# -- how it ends ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=10_000)
def _entries(data: bytes) -> Mapping[int, Entry]:
    return codec.decode_shard(data, VIEW.grid, what="shard").entries


@lru_cache(maxsize=1_000)
def _in_runs(data: bytes) -> Mapping[int, Entry]:
    runs = codec.decode_runs(data, what="runs")
    shards = [run.shard(number, VIEW.grid) for run in runs for number in range(run.first, run.end)]
    return {start: entry for shard in shards for start, entry in shard.entries.items()}


@lru_cache(maxsize=10_000)
def _header(data: bytes) -> ViewHeader:
    return codec.decode_view(data, what="header")


@lru_cache(maxsize=10_000)
def _table(data: bytes) -> TableHeader:
    return codec.decode_table(data, what="table")


@lru_cache(maxsize=10_000)
def _fingerprint(window: Interval, slices: tuple[bytes, ...]) -> Fingerprint:
    listed = (codec.decode_slice_node(s, what="slice").segments for s in slices)
    return fingerprint(segments_in(window, map(Slice.of, listed)).values())


@dataclass(frozen=True, slots=True)
class Picture:
    """What the nodes say, read straight from them and not through the code under test."""

    nodes: Nodes

    @property
    def header(self) -> ViewHeader | None:
        """None as well when the view is going: nobody uses what is left of it."""
        node = self.nodes.get(paths.view(VIEW.name))
        header = None if node is None else _header(node.data)
        return None if header is None or header.status is ViewStatus.DROPPING else header

    @property
    def entries(self) -> dict[int, Entry]:
        prefix = paths.shards(VIEW.name) + "/"
        shards = [node.data for path, node in self.nodes.items() if path.startswith(prefix)]
        return {**self.in_runs, **{start: entry for data in shards for start, entry in _entries(data).items()}}

    @property
    def in_runs(self) -> Mapping[int, Entry]:
        node = self.nodes.get(paths.runs(VIEW.name))
        return {} if node is None else _in_runs(node.data)

    @property
    def twice(self) -> set[int]:
        """The shards that have a node and are in a run."""
        prefix = paths.shards(VIEW.name) + "/"
        numbers = {int(path.removeprefix(prefix)) for path in self.nodes if path.startswith(prefix)}
        return numbers & {VIEW.grid.shard_of(start_ms) for start_ms in self.in_runs}

    @property
    def table(self) -> TableHeader:
        return _table(self.nodes[paths.table(TABLE.name)].data)

    @property
    def last_end_ms(self) -> int:
        last_ms = self.table.max_last_ms
        return 0 if last_ms is None else last_ms + 1

    @property
    def slices(self) -> tuple[bytes, ...]:
        prefix = paths.slices(TABLE.name) + "/"
        return tuple(node.data for path, node in sorted(self.nodes.items()) if path.startswith(prefix))

    def source(self, start_ms: int) -> Fingerprint:
        return _fingerprint(VIEW.grid.window(start_ms), self.slices)


@dataclass(frozen=True, slots=True)
class Note:
    landed: frozenset[Attempt] = frozenset()
    """Every attempt that an entry ever named."""
    broken: str | None = None
    """The first rule that a write broke."""


@dataclass(frozen=True, slots=True)
class LedgerOracle:
    """INV-3, INV-5 and INV-13 at every write; at the end INV-7, the watermark, and that everyone was told the truth."""

    incarnation: str
    """The incarnation that all workers work for."""
    judges_writes: bool = True
    watermark_hour: int | None = None
    """Where the watermark must end; None leaves it to the rules."""

    def begin(self, nodes: Nodes) -> Note:
        return Note()

    def wrote(self, note: Note, before: Nodes, after: Nodes) -> Note:
        old, new = Picture(before), Picture(after)
        was = old.entries
        fresh = {s: e for s, e in new.entries.items() if e.state is State.VALID and was.get(s) != e}
        broken = note.broken
        if self.judges_writes and not broken:
            broken = self._broken_by(fresh, old, new) or _watermark_broken(old, new)
            broken = broken or (_watermark_behind(new) if fresh else None)
        return Note(note.landed | attempts_in(fresh), broken)

    def _broken_by(self, fresh: Mapping[int, Entry], old: Picture, new: Picture) -> str | None:
        if any(entry.fingerprint != new.source(start) for start, entry in fresh.items()):
            return "INV-3: a bucket became VALID with a fingerprint that its source did not have at that instant"
        if fresh and (old.header is None or old.header.incarnation != self.incarnation):
            return "INV-13: an attempt of a dropped view was committed"
        return "3: a shard is a node and in a run" if new.twice else None

    def wrong_at_end(self, note: Note, nodes: Nodes, results: Mapping[str, object]) -> str | None:
        end = Picture(nodes)
        return (
            note.broken
            or self._watermark_wrong(end)
            or self._bucket_wrong(end, note)
            or _registry_wrong(end)
            or _untrue(end, note, results)
        )

    def _watermark_wrong(self, end: Picture) -> str | None:
        header = end.header
        if header is None or header.watermark_ms is None:
            return None
        if self.watermark_hour is not None and header.watermark_ms != self.watermark_hour * HOUR_MS:
            return f"5.4: the watermark is not at hour {self.watermark_hour}"
        return None

    def _bucket_wrong(self, end: Picture, note: Note) -> str | None:
        entries = end.entries
        for start_ms, entry in entries.items():
            if entry.state is State.VALID and entry.fingerprint != end.source(start_ms):
                return "INV-7: a change is neither marked nor reflected: VALID and different from its source"
        replaced = end.header is None or end.header.incarnation != self.incarnation
        if not replaced and not entries.keys() >= {start_ms for start_ms, _, _ in note.landed}:
            return "INV-6: a bucket that was built has no entry"
        return None


def attempts_in(entries: Mapping[int, Entry]) -> frozenset[Attempt]:
    return frozenset((start_ms, entry.attempt_id, entry.files) for start_ms, entry in entries.items())


def _watermark_broken(old: Picture, new: Picture) -> str | None:
    """The end of the source may move back below the watermark, but no write moves the watermark past that end."""
    before, header = old.header, new.header
    if header is None or header.watermark_ms is None or header.coverage_start_ms is None:
        return None
    known = before is not None and before.incarnation == header.incarnation
    stood_ms = before.watermark_ms if known and before is not None else None
    if stood_ms is not None and stood_ms > header.watermark_ms:
        return "INV-5: the watermark went back"
    if header.watermark_ms != stood_ms and header.watermark_ms > max(new.last_end_ms, header.coverage_start_ms):
        return "INV-5: the watermark moved past the end that the source had at that instant"
    if not new.entries.keys() >= set(range(header.coverage_start_ms, header.watermark_ms, HOUR_MS)):
        return "INV-5: a bucket below the watermark is VACANT"
    return None


def _watermark_behind(new: Picture) -> str | None:
    """It moves in the very write that lets it. Where the data grows later, the rebuild of what grew moves it."""
    header = new.header
    if header is None or header.watermark_ms is None:
        return None
    reached_ms = watermark.advanced(header.watermark_ms, VIEW.grid, new.entries.get)
    if min(reached_ms, VIEW.grid.start_of(new.last_end_ms)) > header.watermark_ms:
        return "5.4: the watermark stands before a bucket that was built"
    return None


def _registry_wrong(end: Picture) -> str | None:
    """Every change has its event, also one whose answer was lost, and none happened twice. Nobody acknowledges here."""
    path_of = {s.name: s.path for data in end.slices for s in codec.decode_slice_node(data, what="slice").segments}
    if end.table.segment_count != len(path_of) or end.table.version != event_count(end.nodes):
        return "3: the table's header does not agree with its slices and its outbox"
    if len(set(path_of.values())) < len(path_of):
        return "3: one file is registered under two names"
    return None


def _untrue(end: Picture, note: Note, results: Mapping[str, object]) -> str | None:
    """Who is told of success keeps the files; who is told of a rejection lets them go."""
    named = attempts_in(end.entries)
    verdicts = [pair for told in results.values() if isinstance(told, dict) for pair in told.items()]
    if any(isinstance(decision, Rejected) and attempt in named for attempt, decision in verdicts):
        return "INV-11: the files of an entry belong to an attempt that was told it is rejected"
    if any(not isinstance(decision, Rejected) and attempt not in note.landed for attempt, decision in verdicts):
        return "INV-2: an attempt that never landed was told it is done"
    return None
