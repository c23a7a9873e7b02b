"""Every statement that is not a query: what it does to the ledger, and what it shows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodmark.catalog.definitions import (
    TableRequest,
    ViewRequest,
    alter_table,
    checked_view,
    create_table,
    create_view,
    replace_view,
    table_definition,
)
from floodmark.catalog.documents import table_request, view_request
from floodmark.catalog.durations import format_duration
from floodmark.catalog.status import table_standings, view_standings
from floodmark.catalog.times import time_ms, utc
from floodmark.core.buckets import ASKED, Cause, Entry, State
from floodmark.core.counting import counted
from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval
from floodmark.core.ports import Clock
from floodmark.core.tables import TableDefinition, ViewDefinition, ViewHeader, ViewStatus
from floodmark.ledger.inspection import kinds_of
from floodmark.ledger.ledger import Ledger
from floodmark.sql.reading import source_of
from floodmark.sql.statements import (
    AlterTable,
    CreateTable,
    CreateView,
    Describe,
    DropTable,
    DropView,
    PauseView,
    RefreshView,
    ResumeView,
    ShowCreate,
    ShowRefusedFiles,
    ShowTables,
    ShowViews,
    Statement,
    WhyStale,
)
from floodmark_broker.texts import create_table_text, create_view_text

ASKED_BY = "asked by user"
SHOWN_BUCKETS_MAX = 1_000


def relation(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """A few rows as a table: numbers stay numbers, everything else is text."""
    cells = [[row[n] for row in rows] for n in range(len(columns))]
    return pa.table([_column(values) for values in cells], names=list(columns))


def _column(values: list[Any]) -> pa.Array:
    if values and all(isinstance(v, int) for v in values if v is not None):
        return pa.array(values, pa.int64())
    return pa.array([None if v is None else str(v) for v in values], pa.string())


def done(what: str) -> pa.Table:
    return relation(("result",), [(what,)])


@dataclass(frozen=True, slots=True)
class Commands:
    """Carries statements out."""

    ledger: Ledger
    clock: Clock
    new_id: Callable[[], str]
    views_location: str
    stored_columns: Callable[[TableDefinition, ViewDefinition], list[tuple[str, str]]]
    """The columns of a view's files with their types."""

    def run(self, statement: Statement) -> pa.Table:
        handler = _HANDLERS[type(statement)]
        return handler(self, statement)

    # -- tables ----------------------------------------------------------------------------------------------------

    def create_table(self, asked: CreateTable) -> pa.Table:
        request = _table_request(asked)
        if asked.dry_run:
            return self._dry_table(request)
        if asked.if_not_exists and "table" in kinds_of(self.ledger, asked.name):
            return done(f"table {asked.name} exists; nothing was changed")
        header = create_table(self.ledger, request)
        return done(f"table {header.definition.name} is defined at {header.definition.location}")

    def _dry_table(self, request: TableRequest) -> pa.Table:
        definition = table_definition(self.ledger, request)
        shown = [("accepted", "yes; nothing was created"), ("location", definition.location)]
        shown += [(f"column {name}", kind) for name, kind in definition.columns]
        return relation(("item", "value"), shown)

    def alter_table(self, asked: AlterTable) -> pa.Table:
        header = alter_table(self.ledger, asked.name, asked.properties)
        properties = ", ".join(f"{k} = {v}" for k, v in sorted(header.definition.properties.items())) or "none"
        return done(f"table {asked.name} has the properties: {properties}")

    def drop_table(self, asked: DropTable) -> pa.Table:
        if not self.ledger.dropping.drop(asked.name):
            if asked.if_exists:
                return done(f"there is no table {asked.name}; nothing was changed")
            raise InvalidInput("unknown-table", f"there is no table {asked.name!r}; SHOW TABLES lists them")
        return done(f"table {asked.name} is dropped; its files are where they were")

    # -- views -----------------------------------------------------------------------------------------------------

    def create_view(self, asked: CreateView) -> pa.Table:
        request = self._view_request(asked)
        if asked.dry_run:
            return self._dry_view(request)
        exists = "view" in kinds_of(self.ledger, asked.name)
        if exists and asked.if_not_exists:
            return done(f"view {asked.name} exists; nothing was changed")
        header = self._replaced(request) if exists and asked.or_replace else create_view(self.ledger, request)
        if header is None:
            return done(f"view {asked.name} is defined like this already; nothing was changed")
        return done(f"view {asked.name} is defined, covering from {utc(header.coverage_start_ms)} on")

    def _replaced(self, request: ViewRequest) -> ViewHeader | None:
        """The successor of a view; None when it would be the same."""
        table = self.ledger.registry.header(request.table).definition
        before = self.ledger.views.header(request.name)
        if before.definition == checked_view(self.ledger, request, table):
            return None
        return replace_view(self.ledger, request, incarnation=before.incarnation)

    def _view_request(self, asked: CreateView) -> ViewRequest:
        fields: dict[str, Any] = {**asked.properties, "name": asked.name, "select": asked.select}
        fields["table"] = source_of(asked.select)
        if asked.location is not None:
            fields["location"] = asked.location
        elif "location" not in fields and self.views_location:
            fields["location"] = f"{self.views_location.rstrip('/')}/{asked.name}"
        return view_request(fields, time_ms=time_ms)

    def _dry_view(self, request: ViewRequest) -> pa.Table:
        header = self.ledger.registry.header(request.table)
        definition = checked_view(self.ledger, request, header.definition)
        rows = [("accepted", "yes; nothing was created"), ("definition", definition.hash)]
        rows += [(f"stores {name}", kind) for name, kind in self.stored_columns(header.definition, definition)]
        return relation(("item", "value"), [*rows, *self._work(request, definition)])

    def _work(self, request: ViewRequest, definition: ViewDefinition) -> list[tuple[str, Any]]:
        """What building the view would take, by what is registered now."""
        snapshot = self.ledger.registry.snapshot(definition.table)
        start_ms, last_ms = snapshot.header.min_start_ms, snapshot.header.max_last_ms
        start_ms = request.coverage_start_ms if request.coverage_start_ms is not None else start_ms
        if start_ms is None or last_ms is None or last_ms < start_ms:
            return [("buckets", 0), ("work", "none: the table has no data there yet")]
        buckets = definition.grid.starts_in(Interval(start_ms, last_ms + 1))
        covered = Interval(buckets[0], buckets[-1] + definition.bucket_ms)
        segments = [s for s in snapshot.by_name.values() if s.overlaps(covered)]
        touched = sum(_buckets_touched(s.interval, definition, covered) for s in segments)
        return [
            ("buckets", f"{len(buckets)} of {format_duration(definition.bucket_ms)}"),
            ("from", utc(buckets[0])),
            ("to", utc(covered.end_ms)),
            ("files", len(segments)),
            ("rows", sum(s.rows for s in segments)),
            ("bytes", sum(s.bytes for s in segments)),
            ("work", f"{counted(len(buckets), 'task')} that read a file {counted(touched, 'time')}"),
        ]

    def refresh(self, asked: RefreshView) -> pa.Table:
        header = self.ledger.views.header(asked.name)
        ranges = _asked_ranges(asked, header.definition)
        now_ms = self.clock.now_ms()
        cause = Cause(ASKED, self.new_id(), now_ms, place=ASKED_BY)
        marked = self.ledger.views.mark_stale(asked.name, ranges, cause)
        return done(f"{counted(marked.count, 'bucket')} of view {asked.name} marked STALE, to be built again")

    def pause(self, asked: PauseView) -> pa.Table:
        self.ledger.views.set_status(asked.name, ViewStatus.PAUSED)
        return done(f"view {asked.name} is paused: nothing of it is built; queries stay right")

    def resume(self, asked: ResumeView) -> pa.Table:
        self.ledger.views.set_status(asked.name, ViewStatus.ACTIVE)
        return done(f"view {asked.name} is active")

    def drop(self, asked: DropView) -> pa.Table:
        if not self.ledger.views.drop(asked.name):
            if asked.if_exists:
                return done(f"there is no view {asked.name}; nothing was changed")
            raise InvalidInput("unknown-view", f"there is no view {asked.name!r}")
        return done(f"view {asked.name} is dropped")

    # -- looking ---------------------------------------------------------------------------------------------------

    def show_tables(self, _: ShowTables) -> pa.Table:
        found = [(s.header, s.refused) for s in table_standings(self.ledger)]
        return relation(
            ("table", "segments", "refused files", "from", "to", "version", "location"),
            [
                (h.definition.name, h.segment_count, refused, utc(h.min_start_ms), utc(h.max_last_ms), h.version,
                 h.definition.location)
                for h, refused in found
            ],
        )  # fmt: skip

    def show_refused_files(self, asked: ShowRefusedFiles) -> pa.Table:
        """The newest first."""
        self.ledger.registry.header(asked.table)
        files = reversed(self.ledger.refusals.read(asked.table).files)
        rows = [(f.path, f.rule, f.reason, utc(f.since_ms)) for f in files]
        return relation(("file", "rule", "reason", "since"), rows)

    def show_views(self, _: ShowViews) -> pa.Table:
        rows = []
        for s in view_standings(self.ledger):
            counts = ", ".join(f"{count} {kind}" for kind, count in s.counts.items()) or "none"
            lag = "-" if s.lag_ms is None else format_duration(s.lag_ms) if s.lag_ms else "0"
            pins = "; ".join(f"{utc(p.start_ms)} {p.condition}: {p.error}" for p in s.pins) or "-"
            rows.append((s.name, s.table, s.status, utc(s.watermark_ms), lag, counts, pins))
        return relation(("view", "table", "status", "watermark", "behind the data", "buckets", "pinned by"), rows)

    def show_create(self, asked: ShowCreate) -> pa.Table:
        if asked.kind == "table":
            text = create_table_text(self.ledger.registry.header(asked.name).definition)
        else:
            text = create_view_text(self.ledger.views.header(asked.name).definition)
        return relation(("statement",), [(text,)])

    def describe(self, asked: Describe) -> pa.Table:
        kinds = [asked.kind] if asked.kind else kinds_of(self.ledger, asked.name)
        if not kinds:
            raise InvalidInput("unknown-name", f"there is no table or view {asked.name!r}; SHOW TABLES lists them")
        if kinds[0] == "table":
            return relation(("column", "type"), self.ledger.registry.header(asked.name).definition.columns)
        definition = self.ledger.views.header(asked.name).definition
        table = self.ledger.registry.header(definition.table).definition
        return relation(("column", "type"), self.stored_columns(table, definition))

    def why_stale(self, asked: WhyStale) -> pa.Table:
        state = self.ledger.views.state(asked.view)
        grid = state.header.definition.grid
        first = {run.window(grid).start_ms: run.entry for run in state.runs}
        stale = {s: e for s, e in sorted((state.entries | first).items()) if e.state is State.STALE}
        if asked.bucket is not None:
            start_ms = grid.start_of(time_ms(asked.bucket))
            entry = state.at(start_ms)
            if entry is None or entry.state is not State.STALE:
                is_ = "VACANT: it was never built" if entry is None else f"VALID since {utc(entry.refreshed_at_ms)}"
                return relation(WHY_COLUMNS, [(utc(start_ms), is_, None, None, None, None)])
            stale = {start_ms: entry}
        return relation(WHY_COLUMNS, [_why(start_ms, e) for start_ms, e in list(stale.items())[:SHOWN_BUCKETS_MAX]])


WHY_COLUMNS = ("bucket", "state", "why", "segments", "event", "marked at")


def _why(start_ms: int, entry: Entry) -> tuple[Any, ...]:
    state = "STALE" if entry.ever_valid else "STALE, never built yet"
    if entry.cause is None:
        return (utc(start_ms), state, "not known", None, None, None)
    cause = entry.cause
    why = {
        ASKED: cause.place or ASKED_BY,
        "event": f"segments changed ({cause.place})",
        "sweep": "the sweep found that its source differs",
        "coverage": "the view came to cover it",
        "import": "the view was imported",
        "meaning": "it was built when the view's query was understood otherwise",
    }.get(cause.kind, cause.kind)
    return (utc(start_ms), state, why, ", ".join(cause.segments), cause.event_id, utc(cause.marked_at_ms))


_HANDLERS: dict[type, Callable[[Commands, Any], pa.Table]] = {
    CreateTable: Commands.create_table,
    AlterTable: Commands.alter_table,
    DropTable: Commands.drop_table,
    CreateView: Commands.create_view,
    RefreshView: Commands.refresh,
    PauseView: Commands.pause,
    ResumeView: Commands.resume,
    DropView: Commands.drop,
    ShowTables: Commands.show_tables,
    ShowRefusedFiles: Commands.show_refused_files,
    ShowViews: Commands.show_views,
    ShowCreate: Commands.show_create,
    Describe: Commands.describe,
    WhyStale: Commands.why_stale,
}


def _table_request(asked: CreateTable) -> TableRequest:
    """The same fields that a definition file has; `scan` alone is not text there."""
    fields: dict[str, Any] = {**asked.properties, "name": asked.name}
    if asked.location is not None:
        fields["location"] = asked.location
    if "scan" in fields:
        if fields["scan"] not in ("true", "false"):
            raise InvalidInput("property", f"scan = {fields['scan']!r} must be 'true' or 'false'")
        fields["scan"] = fields["scan"] == "true"
    if asked.columns:
        fields["columns"] = dict(asked.columns)
        if len(fields["columns"]) < len(asked.columns):
            raise InvalidInput("duplicate-name", f"table {asked.name!r} has two columns of one name; rename one")
    return table_request(fields)


def _asked_ranges(asked: RefreshView, definition: ViewDefinition) -> list[Interval] | None:
    if asked.bucket is not None:
        return [definition.grid.window(definition.grid.start_of(time_ms(asked.bucket)))]
    if asked.start is None or asked.end is None:
        return None
    return [Interval(time_ms(asked.start), time_ms(asked.end))]


def _buckets_touched(interval: Interval | None, definition: ViewDefinition, covered: Interval) -> int:
    if interval is None:
        return (covered.end_ms - covered.start_ms) // definition.bucket_ms
    inside = Interval(max(interval.start_ms, covered.start_ms), min(interval.end_ms, covered.end_ms))
    return len(definition.grid.starts_in(inside))
