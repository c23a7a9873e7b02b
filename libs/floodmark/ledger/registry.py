"""The registry: which segments a table has, and the outbox of events about their changes.

Writes:  header, slices and outbox node, all created, set and checked in one multi. Every change sets the header,
         so the header's version guards the whole registry.
Reads:   one window reads only the slices it touches; the whole registry is cached and brought up to date from the
         header, which names the slices that moved. A cache whose header has not moved is current.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.fingerprint import fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.layers import Layered
from floodmark.core.ports import new_id
from floodmark.core.registry import (
    Change,
    Command,
    CommandsRefused,
    Contents,
    Event,
    Plan,
    Remove,
    plan,
    rewritten_header,
    settled,
    splitting,
)
from floodmark.core.segments import EMPTY_SLICE, WIDE, Segment, Slice, SliceGrid, segments_in
from floodmark.core.tables import RETENTION, TableDefinition, TableHeader
from floodmark.core.transitions import Source
from floodmark.ledger import codec, paths
from floodmark.ledger.condemned import refuse_condemned
from floodmark.ledger.dropping import clear_away
from floodmark.ledger.engine import Budgets, Done, Engine, Outcome, Write
from floodmark.ledger.halving import halved
from floodmark.ledger.slices import SeenSlice, Slices
from floodmark.ledger.store import ANY_VERSION, Check, Committed, Conflicted, Create, Delete, Op, Set, TooLarge

COMMANDS_PER_WRITE_MAX = 500
SNAPSHOT_TRIES_MAX = 32

Confirm = Callable[[TableDefinition, Sequence[Change]], None]
"""Asked within each attempt, after the registry was read: raises CommandsRefused for what no longer holds."""


@dataclass(frozen=True, slots=True)
class WindowSource:
    """The live source of one window: its segments, their fingerprint, and the slice versions read."""

    window: Interval
    segments: Mapping[str, Segment]
    source: Source


@dataclass(frozen=True, slots=True)
class Registered:
    """What a batch changed that is news; empty when all of it was already true."""

    version: int
    changes: tuple[Change, ...]
    event: Event | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole registry of a table as of one version."""

    header: TableHeader
    header_node_version: int
    contents: Contents = field(default_factory=Contents)
    slice_node_versions: Layered[int] = field(default_factory=Layered)

    @property
    def slices(self) -> Mapping[str, Slice]:
        return self.contents.slices

    @property
    def by_name(self) -> Mapping[str, Segment]:
        return self.contents.by_name


class Registry:
    def __init__(self, engine: Engine, budgets: Budgets) -> None:
        self._engine = engine
        self._store = engine.store
        self._budgets = budgets
        self._slices = Slices(engine.store)
        self._snapshots: dict[str, Snapshot] = {}
        self._definitions: dict[str, TableDefinition] = {}
        self._ends: dict[tuple[str, str], tuple[int, int]] = {}
        """For each slice read, its node version then and the end of the data it listed."""

    # -- tables ----------------------------------------------------------------------------------------------------

    def create_table(self, definition: TableDefinition) -> TableHeader:
        """Create a table, or find that exactly this one exists. One of this name that was dropped leaves nothing in it
        but that versions go on from there."""
        header = TableHeader(definition)
        ops: list[Op] = [
            Create(paths.table(definition.name), codec.encode_table(header)),
            Create(paths.slices(definition.name), b""),
            Create(paths.slice_(definition.name, WIDE), codec.encode_slice(EMPTY_SLICE, 0)),
            Create(paths.outbox(definition.name), b""),
            Create(paths.holds(definition.name), b""),
        ]

        def attempt() -> Done[TableHeader] | Write[TableHeader]:
            found = self._store.read(paths.table(definition.name))
            if found is None:
                return Write(ops, header)
            existing = codec.decode_table(found.data, what=paths.table(definition.name))
            if existing.dropped:
                return self._created_again(definition, existing, found.version)
            if replace(existing.definition, generation=0) != definition:
                raise InvalidInput("table-exists", f"table {definition.name!r} exists with another definition")
            return Done(existing)

        return self._engine.run(f"create table {definition.name}", self._budgets.critical, attempt).result

    def _created_again(self, definition: TableDefinition, gone: TableHeader, node_version: int) -> Write[TableHeader]:
        clear_away(self._store, definition.name, node_version)
        again = replace(definition, generation=gone.definition.generation + 1)
        header = TableHeader(again, gone.version)
        ops: list[Op] = [
            Set(paths.table(definition.name), codec.encode_table(header), node_version),
            Create(paths.slice_(definition.name, again.grid.wide), codec.encode_slice(EMPTY_SLICE, 0)),
        ]
        return Write(ops, header)

    def set_properties(self, table: str, properties: Mapping[str, str]) -> TableHeader:
        """Give a table these properties. No segment changes, so the table keeps its version."""

        def attempt() -> Done[TableHeader] | Write[TableHeader]:
            header, node_version = self.read_header(table)
            changed = replace(header, definition=replace(header.definition, properties=dict(properties)))
            if changed == header:
                return Done(header)
            return Write([Set(paths.table(table), codec.encode_table(changed), node_version)], changed)

        changed = self._engine.run(f"set properties of {table}", self._budgets.critical, attempt).result
        self._definitions[table] = changed.definition
        return changed

    def tables(self) -> list[str]:
        names = sorted(self._store.children(paths.TABLES))
        nodes = zip(names, self._store.read_many([paths.table(name) for name in names]), strict=True)
        return [n for n, node in nodes if node is not None and not codec.is_dropped(node.data, what=paths.table(n))]

    def header(self, table: str) -> TableHeader:
        return self.read_header(table)[0]

    def read_header(self, table: str, *, synced: bool = False) -> tuple[TableHeader, int]:
        """The header, and the version of its node: every registration changes it."""
        path = paths.table(table)
        node = self._store.read_current(path) if synced else self._store.read(path)
        header = None if node is None else codec.decode_table(node.data, what=path)
        if node is None or header is None or header.dropped:
            self._forget(table)
            raise InvalidInput("unknown-table", f"there is no table {table!r}")
        self._definitions[table] = header.definition
        return header, node.version

    def _forget(self, table: str) -> None:
        self._definitions.pop(table, None)
        self._snapshots.pop(table, None)

    # -- changes ---------------------------------------------------------------------------------------------------

    def apply(
        self,
        table: str,
        commands: Iterable[Command],
        *,
        trace_id: str = "",
        confirm: Confirm = lambda _definition, _changes: None,
    ) -> list[Outcome[Registered]]:
        """Add, replace and delete segments: one atomic write for each few hundred commands, or for fewer if those
        would be too large.

        SUBTLE: what `confirm` looks at must be looked at in here. The write lands only if the registry is as it was
        read, and `confirm` runs after that read, so it sees the world later than whoever registered before:

            ingester a   looks at a file
            somebody     replaces the file
            ingester b   looks at it, registers it
            ingester a   registers what it saw: the file as it was before, unless it looks again here
        """
        listed = list(commands)
        outcomes: list[Outcome[Registered]] = []

        def write(part: Sequence[Command]) -> Outcome[Registered]:
            # What the write before left is most likely still there: only the first one reads it.
            chunk = _Chunk(part, trace_id, trusting=bool(outcomes), confirm=confirm)
            name = f"register {len(part)} segments of {table}"
            return self._engine.run(name, self._budgets.critical, lambda: self._attempt(table, chunk))

        def alone(command: Command, error: TooLarge) -> Outcome[Registered]:
            if not self.split_oversized(table, command):
                raise error
            return write([command])

        for n in range(0, len(listed), COMMANDS_PER_WRITE_MAX):
            for outcome in halved(listed[n : n + COMMANDS_PER_WRITE_MAX], write, alone=alone):
                outcomes.append(outcome)  # one by one: the next write looks whether there was one before
        return outcomes

    def _attempt(self, table: str, chunk: "_Chunk") -> Done[Registered] | Write[Registered]:
        chunk.tries += 1
        snapshot = self._snapshots[table] if chunk.trusts_memory else self.snapshot(table)
        planned = chunk.planned(snapshot)
        if isinstance(planned, CommandsRefused) or not planned.changes:
            # What was seen earlier, or by a server that lags, may be yesterday's registry. That there is nothing to do,
            # and that something cannot be done, is said of the newest only.
            self._store.sync()
            snapshot = self.snapshot(table)
            planned = chunk.planned(snapshot)
        if isinstance(planned, CommandsRefused):
            raise planned
        if not planned.changes:
            return Done(Registered(snapshot.header.version, (), None))
        if RETENTION in snapshot.header.definition.properties:
            refuse_condemned(self._store, table, chunk.commands)
        definition = settled(snapshot.header, chunk.commands)
        chunk.confirm(definition, planned.changes)
        decided = replace(snapshot, header=replace(snapshot.header, definition=definition))
        return self._write(table, decided, planned, chunk)

    def split_oversized(self, table: str, command: Command) -> bool:
        """Cut the slices that a command touches and that were full before there were parts, each in its own write.

        Together they may be more than one write holds. Nothing that is registered changes, so there is no event, but
        there is a new version: whoever knows the slices as they were has to read them again.
        """

        def attempt() -> Done[bool] | Write[bool]:
            snapshot = self.snapshot(table)
            chunk = _Chunk([command], "", trusting=False)
            planned = chunk.planned(snapshot)
            large = [] if isinstance(planned, CommandsRefused) else planned.slices
            key = next((key for key in large if snapshot.slices.get(key, EMPTY_SLICE).is_oversized), None)
            if key is None:
                return Done(result=False)
            cut = splitting(snapshot.contents, key, version=snapshot.header.version + 1)
            write = self._write(table, snapshot, cut, chunk)
            return Write(write.ops, result=True, on_committed=write.on_committed)

        is_cut = False
        while self._engine.run(f"split a slice of {table}", self._budgets.critical, attempt).result:
            is_cut = True
        return is_cut

    def removal(self, table: str, snapshot: Snapshot, names: Iterable[str], *, trace_id: str) -> Write[Registered]:
        """What forgetting these segments writes, for an operation that has more to put into the same multi."""
        chunk = _Chunk([Remove(name, trace_id) for name in names], trace_id, trusting=False)
        grid, version = snapshot.header.definition.grid, snapshot.header.version + 1
        return self._write(table, snapshot, plan(grid, snapshot.contents, chunk.commands, version=version), chunk)

    def _write(self, table: str, snapshot: Snapshot, planned: Plan, chunk: "_Chunk") -> Write[Registered]:
        contents = planned.applied_to(snapshot.contents)
        header = rewritten_header(snapshot.header, planned, contents)
        news = tuple(change for change in planned.changes if change.is_news)
        event = self._event(table, header, news, chunk.trace_id) if news else None
        versions = self._node_versions(table, snapshot, planned.slices, chunk)
        ops: list[Op] = [Set(paths.table(table), codec.encode_table(header), snapshot.header_node_version)]
        for key, listed in planned.slices.items():
            ops += _slice_ops(table, key, listed, versions[key], before=snapshot.slices.get(key), at=header.version)
        if event is not None:
            ops.append(Create(paths.outbox_event(table, header.version), codec.encode_event(event)))

        def keep(committed: Committed) -> None:
            """What was written need not be read: whatever is decided on it next checks the header's version."""
            # Another operation may have put more behind these.
            left = {op.path: version for op, version in zip(ops, committed.versions, strict=False)}
            changed = {key: left[paths.slice_(table, key)] for key in planned.slices}
            node_version = left[paths.table(table)]
            assert node_version is not None, "the header was set"
            self._snapshots[table] = Snapshot(
                header, node_version, contents, snapshot.slice_node_versions.updated(changed)
            )

        from_memory = chunk.trusts_memory or (chunk.tries == 1 and None in versions.values())
        return Write(ops, Registered(header.version, news, event), keep, from_memory)

    def _event(self, table: str, header: TableHeader, news: tuple[Change, ...], trace_id: str) -> Event:
        return Event(
            event_id=new_id(self._engine.randomness),
            table=table,
            version=header.version,
            registered_at_ms=self._engine.clock.now_ms(),
            trace_id=trace_id or next((c.trace_id for c in news if c.trace_id), ""),
            changes=news,
        )

    def _node_versions(
        self, table: str, snapshot: Snapshot, keys: Iterable[str], chunk: "_Chunk"
    ) -> dict[str, int | None]:
        """The version to set each slice at, None to create it.

        One that the snapshot lacks is absent, unless a reader created it, empty, since. That is rare: it is looked for
        only after a write was lost.
        """
        known: dict[str, int | None] = {key: snapshot.slice_node_versions.get(key) for key in keys}
        unknown = [key for key, version in known.items() if version is None]
        return known | self.slice_versions(table, unknown) if chunk.tries > 1 else known

    # -- reads -----------------------------------------------------------------------------------------------------

    def read_windows(self, table: str, windows: Sequence[Interval]) -> list[WindowSource]:
        """The live source of each window, reading only the slices they touch, each once.

        Absent slices are created empty first: a commit must be able to check that nothing was added there.
        """
        if not windows:
            return []
        grid, seen = self._slices_of(table, windows)
        for key, found in seen.items():
            self._ends[table, key] = found.node_version, found.listed.end_ms
        sources = []
        versions: dict[tuple[str, ...], dict[str, int]] = {}  # neighbours touch the same slices and share what says so
        for window in windows:
            touched = tuple(grid.keys_for_window(window))
            segments = segments_in(window, (seen[key].listed for key in touched))
            read_at = versions.setdefault(touched, {key: seen[key].node_version for key in touched})
            sources.append(WindowSource(window, segments, Source(fingerprint(segments.values()), read_at)))
        return sources

    def _slices_of(self, table: str, windows: Sequence[Interval]) -> tuple[SliceGrid, dict[str, SeenSlice]]:
        """The slices that these windows touch, and where those of this table lie.

        SUBTLE: where they lie is remembered. A table that was dropped, and perhaps created again, has its `wide`
        elsewhere, and no window is read without that one: so a memory that is out of date is noticed here.
        """
        for _ in range(SNAPSHOT_TRIES_MAX):
            grid = self.definition(table).grid
            keys = list(dict.fromkeys(key for window in windows for key in grid.keys_for_window(window)))
            seen = self._read_or_create(table, keys, grid.wide)
            if grid.wide in seen:
                return grid, seen
            self._forget(table)
            self._store.sync()
        raise Unavailable(f"table {table} was dropped and created again during each of {SNAPSHOT_TRIES_MAX} reads")

    def read_window(self, table: str, window: Interval) -> WindowSource:
        return self.read_windows(table, [window])[0]

    def slice_versions(self, table: str, keys: Sequence[str]) -> dict[str, int | None]:
        """The live node version of each slice; None where there is no such slice."""
        nodes = self._store.read_many([paths.slice_(table, key) for key in keys])
        return {key: None if node is None else node.version for key, node in zip(keys, nodes, strict=True)}

    def snapshot(self, table: str, *, synced: bool = False) -> Snapshot:
        """The whole registry, current as of the header read in here. Reads only what moved since the last time.

        `synced` makes sure that the header is not an old one, from a server that lags.
        """
        for _ in range(SNAPSHOT_TRIES_MAX):
            header, node_version = self.read_header(table, synced=synced)
            known = self._snapshots.get(table)
            if known is not None and known.header_node_version == node_version:
                return known
            grid = header.definition.grid
            if known is not None and known.header.definition.grid != grid:
                known = None
            touched = header.touched_since(known.header.version) if known else None
            if known is None or touched is None:
                known = Snapshot(header, node_version)
                touched = frozenset(filter(grid.owns, self._store.children(paths.slices(table))))
            current = self._caught_up(table, known, header, node_version, touched)
            if current is not None:
                self._snapshots[table] = current
                return current
        raise Unavailable(f"the registry of {table} changed during each of {SNAPSHOT_TRIES_MAX} reads")

    def _caught_up(
        self, table: str, known: Snapshot, header: TableHeader, node_version: int, touched: Iterable[str]
    ) -> Snapshot | None:
        """The snapshot at this header. None when a slice is already newer than the header: read again."""
        seen = self._slices.read(table, sorted(touched), known=known.slices)
        if any(found.at > header.version for found in seen.values()):
            return None
        contents = known.contents.with_read({key: found.listed for key, found in seen.items()})
        versions = {key: found.node_version for key, found in seen.items()}
        return Snapshot(header, node_version, contents, known.slice_node_versions.updated(versions))

    def _read_or_create(self, table: str, keys: Sequence[str], wide: str) -> dict[str, SeenSlice]:
        """These slices; if `wide` is not there, nothing is, and nothing is created."""
        seen = self._slices.read(table, keys)
        while wide in seen and (absent := [key for key in keys if key not in seen]):
            for key in absent:
                self._create_empty(table, key, wide)
            seen = self._slices.read(table, keys)
        return seen

    def _create_empty(self, table: str, key: str, wide: str) -> None:
        """Create one slice, or find that someone else did, or that the table is gone."""
        path, always = paths.slice_(table, key), paths.slice_(table, wide)

        def attempt() -> Done[None] | Write[None]:
            found, standing = self._store.read_many([path, always])
            if found is not None or standing is None:
                return Done(None)
            return Write([Check(always, ANY_VERSION), Create(path, codec.encode_slice(EMPTY_SLICE, 0))], None)

        self._engine.run(f"create slice {key} of {table}", self._budgets.critical, attempt)

    def definition(self, table: str) -> TableDefinition:
        """The definition of a table, read once: all of it that is used here never changes while there is the table."""
        return self._definitions.get(table) or self.header(table).definition

    def listed_end(self, table: str, slice_versions: Mapping[str, int]) -> int | None:
        """The end of the data that these slices list at exactly these versions, as far as this process has read them.

        The data ends there or later, for as long as none of the slices moves.
        """
        seen = [(self._ends.get((table, key)), version) for key, version in slice_versions.items()]
        return max((known[1] for known, version in seen if known and known[0] == version), default=None)

    # -- outbox ----------------------------------------------------------------------------------------------------

    def outbox(self, table: str) -> list[Event]:
        """Events not yet acknowledged by the bus, oldest first."""
        names = sorted(self._store.children(paths.outbox(table)))
        nodes = self._store.read_many([f"{paths.outbox(table)}/{name}" for name in names])
        pairs = zip(names, nodes, strict=True)
        return [codec.decode_event(n.data, what=f"{paths.outbox(table)}/{name}") for name, n in pairs if n is not None]

    def acknowledge(self, table: str, event: Event) -> None:
        """The bus has this event. Acknowledging it twice changes nothing."""
        answer = self._store.commit([Delete(paths.outbox_event(table, event.version))])
        assert isinstance(answer, Committed | Conflicted)


def _slice_ops(
    table: str, key: str, listed: Slice, version: int | None, *, before: Slice | None, at: int
) -> Iterator[Op]:
    """Write a slice and the parts that change. The version of its own node guards all of them."""
    path, data = paths.slice_(table, key), codec.encode_slice(listed, at)
    yield Create(path, data) if version is None else Set(path, data, version)
    standing = before.parts.keys() if before is not None else ()
    for number, part in listed.parts.items() if listed.is_split else ():
        if part.at == at:
            place, data = paths.part(table, key, number), codec.encode_part(part)
            yield Set(place, data, ANY_VERSION) if number in standing else Create(place, data)


@dataclass(slots=True)
class _Chunk:
    """Commands for one write, and how far it is."""

    commands: Sequence[Command]
    trace_id: str
    trusting: bool
    """Whether the first try goes by what this process knows already. If that is no longer so, its write fails."""
    tries: int = 0
    confirm: Confirm = lambda _definition, _changes: None

    @property
    def trusts_memory(self) -> bool:
        return self.trusting and self.tries == 1

    def planned(self, snapshot: Snapshot) -> Plan | CommandsRefused:
        try:
            version = snapshot.header.version + 1
            return plan(snapshot.header.definition.grid, snapshot.contents, self.commands, version=version)
        except CommandsRefused as refusal:
            return refusal
