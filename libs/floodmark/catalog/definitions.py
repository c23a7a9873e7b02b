"""Creating tables and views from what a person gives: durations as text, columns from a file that is already there."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from floodmark.catalog.durations import format_duration, parse_duration_ms
from floodmark.catalog.table_columns import table_columns
from floodmark.core.bounds import BUCKET_MAX_MS
from floodmark.core.column_types import TIME_UNITS
from floodmark.core.errors import InvalidInput
from floodmark.core.names import checked_name
from floodmark.core.tables import (
    RETENTION,
    TIME_UNIT,
    CoverageMode,
    TableDefinition,
    TableHeader,
    ViewDefinition,
    ViewHeader,
)
from floodmark.ledger.ledger import Ledger
from floodmark.parquet.locations import Place, overlap, place_of
from floodmark.sql.definition import analyze, definition_hash
from floodmark.sql.meaning import meaning_of

TABLE_PROPERTIES = {"scan": ("true", "false"), "glob": None, RETENTION: None, TIME_UNIT: tuple(TIME_UNITS)}
ALTERABLE = {"scan", "glob"}
SLICE_SPAN_MIN_MS = 60_000
SLICES_PER_BUCKET_MAX = 1_000
"""A bucket's task names every slice of its source, its entry keeps them, and its commit checks them all in one write.
So many take less than a quarter of what a write may have."""
Definition = TableDefinition | ViewDefinition


@dataclass(frozen=True, slots=True)
class TableRequest:
    """A table as asked for. Columns not given are taken from the first file found."""

    name: str
    location: str
    time_column: str
    columns: tuple[tuple[str, str], ...] = ()
    slice_span: str = "1d"
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """A view as asked for."""

    name: str
    table: str
    bucket: str
    select: str
    location: str
    coverage: str = "extend"
    coverage_start_ms: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


def create_table(ledger: Ledger, request: TableRequest) -> TableHeader:
    return ledger.registry.create_table(table_definition(ledger, request))


def table_definition(ledger: Ledger, request: TableRequest) -> TableDefinition:
    """The table as the ledger keeps it, if there can be such a table beside the others."""
    checked_name(request.name, what="table")
    _check_location(request.location, of=f"table {request.name!r}")
    _check_properties(request.name, request.properties)
    columns = table_columns(request.name, request.location, request.time_column, request.columns, request.properties)
    definition = TableDefinition(
        name=request.name,
        location=request.location,
        time_column=request.time_column,
        slice_span_ms=_slice_span_ms(request),
        columns=columns,
        properties=dict(request.properties),
    )
    retention_ms(definition)
    _check_apart(ledger, definition)
    return definition


def _slice_span_ms(request: TableRequest) -> int:
    span_ms = parse_duration_ms(request.slice_span, what="slice span")
    if span_ms < SLICE_SPAN_MIN_MS:
        raise InvalidInput(
            "slice-span", f"table {request.name!r} has a slice_span of {request.slice_span}, it must be at least 1m"
        )
    return span_ms


def alter_table(ledger: Ledger, name: str, changes: Mapping[str, str | None]) -> TableHeader:
    """Set properties of a table; None takes one back to its default. Everything else stays as it was created.

    The retention stays too: a janitor that goes by the one before could delete what the new one keeps.
    """
    before = ledger.registry.header(checked_name(name, what="table")).definition
    if fixed := sorted(changes.keys() - ALTERABLE):
        raise InvalidInput(
            "alter-table", f"{fixed[0]} of table {name!r} cannot be altered; there are {', '.join(sorted(ALTERABLE))}"
        )
    _check_properties(name, {key: value for key, value in changes.items() if value is not None})
    wanted = {key: value for key, value in {**before.properties, **changes}.items() if value is not None}
    return ledger.registry.set_properties(name, wanted)


def _check_properties(table: str, properties: Mapping[str, str]) -> None:
    for key, value in properties.items():
        allowed = TABLE_PROPERTIES.get(key, ())
        if allowed is not None and value not in allowed:
            known = ", ".join(sorted(TABLE_PROPERTIES))
            raise InvalidInput("property", f"table {table!r} has no property {key} = {value!r}; there are {known}")


def create_view(ledger: Ledger, request: ViewRequest) -> ViewHeader:
    """Create a view. Its coverage begins with the table's data, or with what comes first, unless it is told."""
    return _created(ledger, request)


def replace_view(ledger: Ledger, request: ViewRequest, *, incarnation: str) -> ViewHeader:
    """Put a view in the place of this incarnation of its name, in one write: there is always one of the two."""
    return _created(ledger, request, replacing=incarnation)


def _created(ledger: Ledger, request: ViewRequest, *, replacing: str | None = None) -> ViewHeader:
    table = ledger.registry.header(checked_name(request.table, what="table"))
    definition = checked_view(ledger, request, table.definition)
    start_ms = request.coverage_start_ms if request.coverage_start_ms is not None else table.min_start_ms
    return ledger.views.create(definition, coverage_start_ms=start_ms, replacing=replacing)


def checked_view(ledger: Ledger, request: ViewRequest, table: TableDefinition) -> ViewDefinition:
    """The view as the ledger keeps it, if there can be such a view beside the others."""
    definition = view_definition(request, table)
    _check_apart(ledger, definition)
    return definition


def view_definition(request: ViewRequest, table: TableDefinition) -> ViewDefinition:
    """The view as the ledger keeps it, if its query is one that can be kept over this table."""
    checked_name(request.name, what="view")
    bucket_ms = parse_duration_ms(request.bucket, what="bucket")
    if bucket_ms > BUCKET_MAX_MS:
        raise InvalidInput("bucket", f"view {request.name!r} has buckets of {request.bucket}, at most 366d are allowed")
    _check_slices_per_bucket(request, bucket_ms, table)
    if request.coverage not in set(CoverageMode):
        known = ", ".join(CoverageMode)
        raise InvalidInput(
            "coverage", f"view {request.name!r} has coverage {request.coverage!r}, it must be one of {known}"
        )
    _check_location(request.location, of=f"view {request.name!r}")
    if not request.select.strip():
        raise InvalidInput("view", f"view {request.name!r} needs a query")
    columns = dict(table.columns)
    time_column = table.time_column
    query = analyze(request.select, table=table.name, time_column=time_column, bucket_ms=bucket_ms, columns=columns)
    _check_columns_known(request, table, query.columns)
    return ViewDefinition(
        name=request.name,
        table=request.table,
        select=request.select,
        hash=definition_hash(request.table, request.select, bucket_ms),
        bucket_ms=bucket_ms,
        location=request.location,
        coverage=CoverageMode(request.coverage),
        properties=dict(request.properties),
        meaning=meaning_of(request.select),
    )


def _check_slices_per_bucket(request: ViewRequest, bucket_ms: int, table: TableDefinition) -> None:
    widest_ms = SLICES_PER_BUCKET_MAX * table.slice_span_ms
    if bucket_ms > widest_ms:
        raise InvalidInput(
            "bucket",
            f"view {request.name!r} has buckets of {request.bucket}, but a bucket may be at most "
            f"{SLICES_PER_BUCKET_MAX:,} slices of its table wide, which is {format_duration(widest_ms)} with "
            f"the slice_span of {format_duration(table.slice_span_ms)} that table {table.name!r} has; "
            "use smaller buckets, or a table with a larger slice_span",
        )


def _check_columns_known(request: ViewRequest, table: TableDefinition, named: Iterable[str]) -> None:
    """The first file of a table may settle its columns. Until then only its time column is sure to be there."""
    unknown = [] if table.columns else sorted(set(named) - {table.time_column})
    if unknown:
        raise InvalidInput(
            "no-columns",
            f"view {request.name!r} reads column {unknown[0]!r} of table {table.name!r}, which has no columns yet; "
            "create the view when the table's first file is registered, or list the columns in CREATE TABLE",
        )


def _check_location(location: str, *, of: str) -> None:
    """Services run in other directories and on other machines: a relative path would mean something else to each."""
    if not location.startswith("/") and "://" not in location:
        raise InvalidInput("location", f"{of} has location {location!r}, it must be an absolute path or a URI")


def _check_apart(ledger: Ledger, definition: Definition) -> None:
    what = "table" if isinstance(definition, TableDefinition) else "view"
    if neighbour := sharing(Located.of(definition), everything_located(ledger)):
        other = "table" if isinstance(neighbour, TableDefinition) else "view"
        raise InvalidInput(
            "location-overlap",
            f"{what} {definition.name!r} at {definition.location} would share files with {other} {neighbour.name!r} "
            f"at {neighbour.location}, and the files of one could be deleted as garbage of the other",
        )


@dataclass(frozen=True, slots=True)
class Located:
    """A table or a view, and the place its files lie in."""

    definition: Definition
    place: Place

    @classmethod
    def of(cls, definition: Definition) -> "Located":
        return cls(definition, place_of(definition.location))

    @property
    def loses_files(self) -> bool:
        return isinstance(self.definition, ViewDefinition) or RETENTION in self.definition.properties


def everything_located(ledger: Ledger) -> list[Located]:
    """Every table and view there is. One that cannot be read hides nobody else."""
    found: list[Located] = []
    for name in ledger.registry.tables():
        with suppress(InvalidInput):
            found.append(Located.of(ledger.registry.header(name).definition))
    for name in ledger.views.names():
        with suppress(InvalidInput):
            found.append(Located.of(ledger.views.header(name).definition))
    return found


Header = TableHeader | ViewHeader


def standing_at(ledger: Ledger, location: str) -> list[Header]:
    """Every table and view whose files may lie at this location, also one that is being made or dropped.

    Raises InvalidInput when there is one that cannot be read: it may be there.
    """
    place = place_of(location)
    tables = [_unless_gone(ledger.registry.header, name) for name in ledger.registry.tables()]
    views = [_unless_gone(ledger.views.header, name) for name in ledger.views.names()]
    return [h for h in (*tables, *views) if h is not None and overlap(place_of(h.definition.location), place)]


def _unless_gone(look: Callable[[str], Header], name: str) -> Header | None:
    try:
        return look(name)
    except InvalidInput as error:
        if error.rule in ("unknown-table", "unknown-view"):
            return None
        raise


def sharing(one: Located, others: Iterable[Located]) -> Definition | None:
    """Another table or view whose files lie in the same place, where one of the two may have its files deleted.

    Only views and tables with a retention ever lose files; two tables without may well read the same directory.
    """
    for other in others:
        theirs = other.definition
        same = type(theirs) is type(one.definition) and theirs.name == one.definition.name
        if not same and (one.loses_files or other.loses_files) and overlap(one.place, other.place):
            return theirs
    return None


def retention_ms(definition: TableDefinition) -> int | None:
    """How long the data of a table is kept; None for ever."""
    kept = definition.properties.get(RETENTION)
    return None if kept is None else parse_duration_ms(kept, what=f"retention of table {definition.name!r}")
