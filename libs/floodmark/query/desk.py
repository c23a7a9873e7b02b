"""Where queries get what they are planned on: the registry as it is now, views as last seen, and a hold on both.

    with desk.reading(tables, freshness) as reading:     one round trip to ZooKeeper, if the freshness is strict
        plan(..., tables=reading.tables, views=reading.views, ...)
        run the plan                                     no file that it names is deleted meanwhile (INV-11)

One hold stands for all queries of a table, so that none of them takes its own. It cannot stand for ever: what was
replaced since it was taken could never be deleted. So it is taken anew every few minutes, in turns.

SUBTLE: in what order. A file of a view is deleted when it is dead and no hold from before its death is left
(core/garbage.py). A picture of the views that is older than the hold may name a file that died before the hold:

    broker   has read that bucket B is in F; holds H1
    worker   builds B anew: F is in no entry; the watch that tells the broker is late
    janitor  sees F dead
    broker   takes H2, lets go of H1
    janitor  H2 is younger than F's death, and no other hold is left: deletes F
    broker   plans a query with F

So a turn takes H2, then reads every entry again, and only then lets queries begin under H2. Every entry they see was
read after H2 was taken; a file it names was alive then, and dies after H2 if it dies. H1 is let go of when the last
query that began under it has ended: its plan may name what only H1 protects.

The same for segments: a hold protects what the registry forgets after the version the hold was taken at. A query under
H2 is planned on a registry that was read after H2 was taken, so what it lists was forgotten later, if at all.

A hold that is lost (this process was frozen for longer than it stands) protects nothing from then on: no query begins
under it, and `Reading.stands` tells one that is running that a missing file may be missing rightly.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import structlog

from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.intervals import Interval
from floodmark.core.ports import Clock
from floodmark.core.tables import TableDefinition
from floodmark.ledger.holds import HoldKeeper, Holds
from floodmark.ledger.registry import Registry, Snapshot
from floodmark.parquet.inspection import schema_of
from floodmark.parquet.lake import Lake
from floodmark.query.pictures import Pictures
from floodmark.query.plan import Bounded, Freshness
from floodmark.query.routing import Router
from floodmark.query.snapshots import TableSnapshot, ViewSnapshot

log = structlog.get_logger()

EARLIER_MAX = 64
"""Registry versions remembered for queries that accept older ones."""


@dataclass(slots=True)
class _Turn:
    """A hold, and the queries that began under it."""

    keeper: HoldKeeper
    holds: Holds
    taken_at_ms: int
    generation: int = 0
    """Of the table it is of."""
    readers: int = 0
    over: bool = False
    """No further query begins under it."""

    @property
    def stands(self) -> bool:
        # The clock as well: a process that was frozen may ask before its keeper has noticed.
        return not self.keeper.lost and not self.holds.ran_out(self.keeper.hold)


@dataclass(slots=True)
class _Proven:
    """A registry version, and when it was last known to be the newest."""

    snapshot: TableSnapshot
    at_ms: int


@dataclass(slots=True)
class _Table:
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Of turns; taken before the desk's own."""
    turn: _Turn | None = None
    history: list[_Proven] = field(default_factory=list)
    """Oldest first."""
    columns: tuple[tuple[str, str], ...] = ()
    bounded: dict[str, Router] = field(default_factory=dict)
    """For queries that accept older versions: their routes are others."""


@dataclass(frozen=True, slots=True)
class Reading:
    tables: tuple[TableSnapshot, ...]
    views: tuple[ViewSnapshot, ...]
    at_ms: int
    """What a query that asks for the time gets."""
    _turns: tuple[_Turn, ...]

    @property
    def stands(self) -> bool:
        """Whether everything planned on this is still protected."""
        return all(turn.stands for turn in self._turns)


class Desk:
    def __init__(
        self,
        registry: Registry,
        holds: Holds,
        pictures: Pictures,
        clock: Clock,
        *,
        reader: str,
        hold_ms: int = 60_000,
        turn_ms: int = 300_000,
    ) -> None:
        self._registry = registry
        self._holds = holds
        self._pictures = pictures
        self._clock = clock
        self._reader = reader
        self._hold_ms = hold_ms
        self._turn_ms = turn_ms
        self._tables: dict[str, _Table] = {}
        self._lock = threading.Lock()

    @contextmanager
    def reading(self, names: Sequence[str], freshness: Freshness) -> Iterator[Reading]:
        """Everything there is to know about these tables, and about the tables of these views.

        Unknown ones are left out: the planner says so.
        """
        turns: list[_Turn] = []
        tables: list[TableSnapshot] = []
        views: list[ViewSnapshot] = []
        try:
            for name in dict.fromkeys(filter(None, map(self._table_named, names))):
                found = self._read(name, freshness, turns)
                if found is None:
                    continue
                table, snapshot, earlier = found
                tables.append(snapshot)
                views += self._views(name, table, earlier)
            yield Reading(tuple(tables), tuple(views), self._clock.now_ms(), tuple(turns))
        finally:
            for turn in turns:
                self._ended(turn)

    def _read(
        self, name: str, freshness: Freshness, turns: list[_Turn]
    ) -> tuple[_Table, TableSnapshot, TableSnapshot | None] | None:
        """A table as of now, under a hold that is counted in. None: it was dropped.

        The hold of a table that was dropped and created again went with the old one, and so has all that is known.
        """
        for _ in range(2):
            with self._lock:
                table = self._tables.setdefault(name, _Table())
            try:
                turn = self._begun(name, table)
                turns.append(turn)
                # After the hold: what this lists, the hold protects.
                snapshot, earlier = self._proven(name, table, freshness)
            except InvalidInput as error:
                if error.rule != "unknown-table":
                    raise
                self._forget(name, table)
                return None
            if snapshot.definition.generation == turn.generation:
                return table, snapshot, earlier
            self._forget(name, table)
        raise Unavailable(f"table {name} was dropped and created again while it was read")

    def _forget(self, name: str, table: _Table) -> None:
        with self._lock:
            if self._tables.get(name) is table:
                del self._tables[name]
        with table.lock:
            if table.turn is not None:
                self._end(table.turn)
                table.turn = None

    def tend(self) -> None:
        """Bring everything up to date and take holds anew that are due. To be called about once a second.

        What queries have used is routed again here, so that the next one need not.
        """
        self._pictures.look()
        for name, table in list(self._tables.items()):
            turn = table.turn
            if turn is not None:
                try:
                    self._tend(name, table, turn)
                except InvalidInput as error:  # a damaged table is no reason to neglect the others (INV-14)
                    if error.rule == "unknown-table":
                        self._forget(name, table)
                    else:
                        log.warning("table_not_tended", table=name, error=str(error))

    def _tend(self, name: str, table: _Table, turn: _Turn) -> None:
        if not turn.stands or self._clock.monotonic_ms() - turn.taken_at_ms >= self._turn_ms:
            with table.lock:
                if table.turn is turn:
                    self._take_turn(name, table)
        snapshot = self._prove(name, table)
        if table.turn is None or snapshot.definition.generation != table.turn.generation:
            self._forget(name, table)
            return
        for view in self._pictures.of(name):
            if view.router.latest is not None:
                view.routes(snapshot)

    def close(self) -> None:
        """Let go of every hold."""
        for table in list(self._tables.values()):
            with table.lock:
                if table.turn is not None:
                    self._end(table.turn)
                    table.turn = None

    # -- turns -----------------------------------------------------------------------------------------------------

    def _table_named(self, name: str) -> str | None:
        """The table of this name, or of the view of this name."""
        if name in self._tables or self._is_table(name):
            return name
        table = self._pictures.table_of(name)
        return table if table is not None and (table in self._tables or self._is_table(table)) else None

    def _is_table(self, name: str) -> bool:
        try:
            self._registry.definition(name)
        except InvalidInput as error:
            if error.rule in ("unknown-table", "name"):
                return False
            raise
        with self._lock:
            self._tables.setdefault(name, _Table())
        return True

    def _begun(self, name: str, table: _Table) -> _Turn:
        """The turn this query belongs to, counted in."""
        for _ in range(2):
            with self._lock:
                turn = table.turn
                if turn is not None and turn.stands and not turn.over:
                    turn.readers += 1
                    return turn
            with table.lock:
                if table.turn is None or not table.turn.stands:
                    self._take_turn(name, table)
        raise Unavailable(f"the hold on table {name} was lost as soon as it was taken")

    def _take_turn(self, name: str, table: _Table) -> None:
        """SUBTLE: the hold first, then everything that it is to protect; see above."""
        taken_at_ms = self._clock.monotonic_ms()
        hold = self._holds.take(name, self._reader, ttl_ms=self._hold_ms)
        keeper = HoldKeeper(self._holds, hold, ttl_ms=self._hold_ms, on_lost=lambda: None)
        keeper.__enter__()
        turn = _Turn(keeper, self._holds, taken_at_ms)
        try:
            turn.generation = self._prove(name, table).definition.generation
            self._pictures.attend(self._definition(name, table))
        except BaseException:
            keeper.__exit__()
            raise
        before, table.turn = table.turn, turn
        if before is not None:
            self._end(before)

    def _end(self, turn: _Turn) -> None:
        with self._lock:
            turn.over = True
            idle = turn.readers == 0
        if idle:
            turn.keeper.__exit__()

    def _ended(self, turn: _Turn) -> None:
        with self._lock:
            turn.readers -= 1
            last = turn.over and turn.readers == 0
        if last:
            turn.keeper.__exit__()

    # -- the registry ----------------------------------------------------------------------------------------------

    def _proven(self, name: str, table: _Table, freshness: Freshness) -> tuple[TableSnapshot, TableSnapshot | None]:
        """The registry to plan on, and the oldest one whose lack of later changes is accepted."""
        if not isinstance(freshness, Bounded):
            return self._prove(name, table), None
        oldest_ms = self._clock.now_ms() - freshness.ms
        with self._lock:
            newest = table.history[-1] if table.history else None
        snapshot = newest.snapshot if newest and newest.at_ms >= oldest_ms else self._prove(name, table)
        with self._lock:
            earlier = next((p.snapshot for p in table.history if p.at_ms >= oldest_ms), None)
        return snapshot, earlier or snapshot

    def _prove(self, name: str, table: _Table) -> TableSnapshot:
        """The registry as it is now: one round trip when it has not moved."""
        asked_at_ms = self._clock.now_ms()
        found = self._registry.snapshot(name, synced=True)
        with self._lock:
            for proven in reversed(table.history):
                if proven.snapshot.version == found.header.version:
                    proven.at_ms = proven.snapshot.read_at_ms = max(proven.at_ms, asked_at_ms)
                    return proven.snapshot
            made = _table_snapshot(found, self._defined(found, table), asked_at_ms)
            table.history.append(_Proven(made, asked_at_ms))
            table.history.sort(key=lambda proven: proven.snapshot.version)
            del table.history[:-EARLIER_MAX]
            return made

    def _definition(self, name: str, table: _Table) -> TableDefinition:
        definition = self._registry.definition(name)
        return definition if definition.columns else replace(definition, columns=table.columns)

    def _defined(self, found: Snapshot, table: _Table) -> TableDefinition:
        """A table that was defined before it had a file has no columns; all of its files have the same."""
        definition = found.header.definition
        if not definition.columns and not table.columns and found.by_name:
            sample = min(segment.path for segment in found.by_name.values())
            table.columns = schema_of(Lake(definition.location), sample)
        return definition if definition.columns else replace(definition, columns=table.columns)

    def _views(self, name: str, table: _Table, earlier: TableSnapshot | None) -> list[ViewSnapshot]:
        views = self._pictures.of(name)
        if earlier is None:
            return list(views)
        return [replace(v, earlier=earlier, router=table.bounded.setdefault(v.name, Router())) for v in views]


def _table_snapshot(found: Snapshot, definition: TableDefinition, read_at_ms: int) -> TableSnapshot:
    header = found.header
    extent = None
    if header.min_start_ms is not None and header.max_last_ms is not None:
        extent = Interval(header.min_start_ms, header.max_last_ms + 1)
    return TableSnapshot(definition, header.version, found.slices, found.slice_node_versions, read_at_ms, extent)
