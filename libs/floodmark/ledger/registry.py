"""The registry: which segments a table has, and the outbox of events about their changes.

Writes:  header, slices and outbox node, all created, set and checked in one multi. Every change sets the header,
         so the header's version guards the whole registry.
Reads:   one window reads only the slices it touches; the whole registry is cached and brought up to date from the
         header, which names the slices that moved. A cache whose header has not moved is current.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from floodmark.core.bounds import TIME_MIN_MS
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.fingerprint import fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.ports import new_id
from floodmark.core.registry import Change, Command, Event, Plan, Remove, ReportedChange, plan, rewritten_header
from floodmark.core.segments import EMPTY_SLICE, WIDE, Segment, Slice, segments_in
from floodmark.core.tables import RETENTION, TableDefinition, TableHeader
from floodmark.core.transitions import Source
from floodmark.ledger import codec, paths
from floodmark.ledger.condemned import refuse_condemned
from floodmark.ledger.engine import Budgets, Done, Engine, Outcome, Write
from floodmark.ledger.store import Committed, Conflicted, Create, Delete, Node, Op, Set

COMMANDS_PER_WRITE_MAX = 500
SNAPSHOT_TRIES_MAX = 32


@dataclass(frozen=True, slots=True)
class WindowSource:
    """The live source of one window: its segments, their fingerprint, and the slice versions read."""

    window: Interval
    segments: Mapping[str, Segment]
    source: Source


@dataclass(frozen=True, slots=True)
class Registered:
    """What a batch changed; empty when all of it was already true."""

    version: int
    changes: tuple[Change, ...]
    event: Event | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole registry of a table as of one version."""

    header: TableHeader
    header_node_version: int
    slices: Mapping[str, Slice] = field(default_factory=dict)
    slice_node_versions: Mapping[str, int] = field(default_factory=dict)
    by_name: Mapping[str, Segment] = field(default_factory=dict)


class Registry:
    def __init__(self, engine: Engine, budgets: Budgets) -> None:
        self._engine = engine
        self._store = engine.store
        self._budgets = budgets
        self._snapshots: dict[str, Snapshot] = {}
        self._definitions: dict[str, TableDefinition] = {}
        self._ends: dict[tuple[str, str], tuple[int, int]] = {}
        """For each slice read, its node version then and the end of the data it listed."""

    # -- tables ----------------------------------------------------------------------------------------------------

    def create_table(self, definition: TableDefinition) -> TableHeader:
        """Create a table, or find that exactly this one exists."""
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
            if existing.definition != definition:
                raise InvalidInput("table-exists", f"table {definition.name!r} exists with another definition")
            return Done(existing)

        return self._engine.run(f"create table {definition.name}", self._budgets.critical, attempt).result

    def tables(self) -> list[str]:
        return sorted(self._store.children(paths.TABLES))

    def header(self, table: str) -> TableHeader:
        return self._read_header(table)[0]

    def _read_header(self, table: str) -> tuple[TableHeader, int]:
        path = paths.table(table)
        node = self._store.read(path)
        if node is None:
            raise InvalidInput("unknown-table", f"there is no table {table!r}")
        header = codec.decode_table(node.data, what=path)
        self._definitions[table] = header.definition
        return header, node.version

    # -- changes ---------------------------------------------------------------------------------------------------

    def apply(self, table: str, commands: Iterable[Command], *, trace_id: str = "") -> list[Outcome[Registered]]:
        """Add, replace and delete segments: one atomic write for each few hundred commands."""
        listed = list(commands)
        chunks = [listed[n : n + COMMANDS_PER_WRITE_MAX] for n in range(0, len(listed), COMMANDS_PER_WRITE_MAX)]
        return [outcome for chunk in chunks for outcome in self._apply_chunk(table, chunk, trace_id)]

    def _apply_chunk(self, table: str, commands: Sequence[Command], trace_id: str) -> list[Outcome[Registered]]:
        name = f"register {len(commands)} segments of {table}"
        looked_up = _Once(self._store.sync)

        def attempt() -> Done[Registered] | Write[Registered]:
            snapshot = self.snapshot(table)
            planned = plan(snapshot.header.definition.grid, snapshot.by_name, snapshot.slices, commands)
            if not planned.changes and looked_up.do():
                # A server that lags could show yesterday's registry. "Nothing to do" is said of the newest only.
                snapshot = self.snapshot(table)
                planned = plan(snapshot.header.definition.grid, snapshot.by_name, snapshot.slices, commands)
            if not planned.changes:
                return Done(Registered(snapshot.header.version, (), None))
            if RETENTION in snapshot.header.definition.properties:
                refuse_condemned(self._store, table, commands)
            return self._change(table, snapshot, planned, trace_id)

        try:
            return [self._engine.run(name, self._budgets.critical, attempt)]
        except InvalidInput as error:
            if error.rule != "write-too-large" or len(commands) == 1:
                raise
            half = len(commands) // 2
            return [
                *self._apply_chunk(table, commands[:half], trace_id),
                *self._apply_chunk(table, commands[half:], trace_id),
            ]

    def removal(self, table: str, snapshot: Snapshot, names: Iterable[str], *, trace_id: str) -> Write[Registered]:
        """What forgetting these segments writes, for an operation that has more to put into the same multi."""
        commands = [Remove(name, trace_id) for name in names]
        planned = plan(snapshot.header.definition.grid, snapshot.by_name, snapshot.slices, commands)
        return self._change(table, snapshot, planned, trace_id)

    def _change(self, table: str, snapshot: Snapshot, planned: Plan, trace_id: str) -> Write[Registered]:
        node_versions = self._node_versions(table, snapshot, list(planned.slices))
        header = rewritten_header(snapshot.header, planned, snapshot.by_name)
        event = Event(
            event_id=new_id(self._engine.randomness),
            table=table,
            version=header.version,
            registered_at_ms=self._engine.clock.now_ms(),
            trace_id=trace_id or next((c.trace_id for c in planned.changes if c.trace_id), ""),
            changes=tuple(ReportedChange.of(change) for change in planned.changes),
        )
        ops: list[Op] = [Set(paths.table(table), codec.encode_table(header), snapshot.header_node_version)]
        for key, listed in planned.slices.items():
            data = codec.encode_slice(listed, header.version)
            version = node_versions[key]
            path = paths.slice_(table, key)
            ops.append(Create(path, data) if version is None else Set(path, data, version))
        ops.append(Create(paths.outbox_event(table, header.version), codec.encode_event(event)))
        return Write(ops, Registered(header.version, planned.changes, event))

    def _node_versions(self, table: str, snapshot: Snapshot, keys: Sequence[str]) -> dict[str, int | None]:
        """The version to set each slice at. One the snapshot lacks may have been created, empty, by a reader."""
        unknown = [key for key in keys if key not in snapshot.slice_node_versions]
        return {**snapshot.slice_node_versions, **self.slice_versions(table, unknown)}

    # -- reads -----------------------------------------------------------------------------------------------------

    def read_windows(self, table: str, windows: Sequence[Interval]) -> list[WindowSource]:
        """The live source of each window, reading only the slices they touch, each once.

        Absent slices are created empty first: a commit must be able to check that nothing was added there.
        """
        grid = self.definition(table).grid
        keys = list(dict.fromkeys(key for window in windows for key in grid.keys_for_window(window)))
        nodes = dict(zip(keys, self._read_or_create(table, keys), strict=True))
        slices = {key: codec.decode_slice(node.data, what=paths.slice_(table, key))[0] for key, node in nodes.items()}
        for key, listed in slices.items():
            lasts_ms = [s.last_ms for s in listed if s.last_ms is not None]
            self._ends[table, key] = nodes[key].version, max(lasts_ms, default=TIME_MIN_MS) + 1
        sources = []
        for window in windows:
            touched = grid.keys_for_window(window)
            segments = segments_in(window, (slices[key] for key in touched))
            versions = {key: nodes[key].version for key in touched}
            sources.append(WindowSource(window, segments, Source(fingerprint(segments.values()), versions)))
        return sources

    def read_window(self, table: str, window: Interval) -> WindowSource:
        return self.read_windows(table, [window])[0]

    def slice_versions(self, table: str, keys: Sequence[str]) -> dict[str, int | None]:
        """The live node version of each slice; None where there is no such slice."""
        nodes = self._store.read_many([paths.slice_(table, key) for key in keys])
        return {key: None if node is None else node.version for key, node in zip(keys, nodes, strict=True)}

    def snapshot(self, table: str) -> Snapshot:
        """The whole registry, current as of the header read in here. Reads only what moved since the last time."""
        for _ in range(SNAPSHOT_TRIES_MAX):
            header, node_version = self._read_header(table)
            known = self._snapshots.get(table)
            if known is not None and known.header_node_version == node_version:
                return known
            touched = header.touched_since(known.header.version) if known else None
            if known is None or touched is None:
                known = Snapshot(header, node_version)
                touched = frozenset(self._store.children(paths.slices(table)))
            current = self._caught_up(table, known, header, node_version, touched)
            if current is not None:
                self._snapshots[table] = current
                return current
        raise Unavailable(f"the registry of {table} changed during each of {SNAPSHOT_TRIES_MAX} reads")

    def _caught_up(
        self, table: str, known: Snapshot, header: TableHeader, node_version: int, touched: Iterable[str]
    ) -> Snapshot | None:
        """The snapshot at this header. None when a slice is already newer than the header: read again."""
        keys = sorted(touched)
        slices, versions = dict(known.slices), dict(known.slice_node_versions)
        nodes = self._store.read_many([paths.slice_(table, key) for key in keys])
        for key, node in zip(keys, nodes, strict=True):
            if node is None:
                continue
            slices[key], changed_at = codec.decode_slice(node.data, what=paths.slice_(table, key))
            versions[key] = node.version
            if changed_at > header.version:
                return None
        by_name = {s.name: s for listed in slices.values() for s in listed} if keys else known.by_name
        return Snapshot(header, node_version, slices, versions, by_name)

    def _read_or_create(self, table: str, keys: Sequence[str]) -> list[Node]:
        nodes = self._store.read_many([paths.slice_(table, key) for key in keys])
        absent = [key for key, node in zip(keys, nodes, strict=True) if node is None]
        if not absent:
            return [node for node in nodes if node is not None]
        for key in absent:
            self._create_empty(table, key)
        return self._read_or_create(table, keys)

    def _create_empty(self, table: str, key: str) -> None:
        """Create one slice, or find that someone else did."""
        path = paths.slice_(table, key)

        def attempt() -> Done[None] | Write[None]:
            if self._store.read(path) is not None:
                return Done(None)
            return Write([Create(path, codec.encode_slice(EMPTY_SLICE, 0))], None)

        self._engine.run(f"create slice {key} of {table}", self._budgets.critical, attempt)

    def definition(self, table: str) -> TableDefinition:
        """The definition of a table, which never changes: read once."""
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


class _Once:
    """Does something the first time it is asked; tells whether it did."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    def do(self) -> bool:
        if self._action is None:
            return False
        self._action()
        self._action = None
        return True
