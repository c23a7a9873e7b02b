"""Creating tables and views from what a person gives: durations as text, columns from a file that is already there."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from floodmark.catalog.durations import parse_duration_ms
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.names import checked_name
from floodmark.core.tables import CoverageMode, TableDefinition, TableHeader, ViewDefinition, ViewHeader
from floodmark.ledger.ledger import Ledger
from floodmark.parquet.inspection import schema_of
from floodmark.parquet.lake import Lake
from floodmark.sql.definition import analyze, canonical

TABLE_PROPERTIES = {"scan": ("true", "false"), "glob": None}
BUCKET_MAX_MS = 366 * 86_400_000


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
    checked_name(request.name, what="table")
    _check_location(request.location, of=f"table {request.name!r}")
    for key, value in request.properties.items():
        allowed = TABLE_PROPERTIES.get(key, ())
        if allowed is not None and value not in allowed:
            known = ", ".join(sorted(TABLE_PROPERTIES))
            raise InvalidInput(
                "property", f"table {request.name!r} has no property {key} = {value!r}; there are {known}"
            )
    columns = request.columns or _columns_found(request)
    if columns and request.time_column not in dict(columns):
        raise InvalidInput("no-time-column", f"table {request.name!r} has no column {request.time_column!r}")
    definition = TableDefinition(
        name=request.name,
        location=request.location,
        time_column=request.time_column,
        slice_span_ms=parse_duration_ms(request.slice_span, what="slice span"),
        columns=columns,
        properties=dict(request.properties),
    )
    return ledger.registry.create_table(definition)


def create_view(ledger: Ledger, request: ViewRequest) -> ViewHeader:
    """Create a view. Its coverage begins with the table's data, or with what comes first, unless it is told."""
    table = ledger.registry.header(checked_name(request.table, what="table"))
    definition = view_definition(request, table.definition)
    start_ms = request.coverage_start_ms if request.coverage_start_ms is not None else table.min_start_ms
    return ledger.views.create(definition, coverage_start_ms=start_ms)


def view_definition(request: ViewRequest, table: TableDefinition) -> ViewDefinition:
    """The view as the ledger keeps it, if its query is one that can be kept over this table."""
    checked_name(request.name, what="view")
    bucket_ms = parse_duration_ms(request.bucket, what="bucket")
    if bucket_ms > BUCKET_MAX_MS:
        raise InvalidInput("bucket", f"view {request.name!r} has buckets of {request.bucket}, at most 366d are allowed")
    if request.coverage not in set(CoverageMode):
        known = ", ".join(CoverageMode)
        raise InvalidInput(
            "coverage", f"view {request.name!r} has coverage {request.coverage!r}, it must be one of {known}"
        )
    _check_location(request.location, of=f"view {request.name!r}")
    if not request.select.strip():
        raise InvalidInput("view", f"view {request.name!r} needs a query")
    columns = dict(table.columns)
    analyze(request.select, table=table.name, time_column=table.time_column, bucket_ms=bucket_ms, columns=columns)
    return ViewDefinition(
        name=request.name,
        table=request.table,
        select=request.select,
        hash=definition_hash(request.table, request.select, bucket_ms),
        bucket_ms=bucket_ms,
        location=request.location,
        coverage=CoverageMode(request.coverage),
        properties=dict(request.properties),
    )


def _check_location(location: str, *, of: str) -> None:
    """Services run in other directories and on other machines: a relative path would mean something else to each."""
    if not location.startswith("/") and "://" not in location:
        raise InvalidInput("location", f"{of} has location {location!r}, it must be an absolute path or a URI")


def definition_hash(table: str, select: str, bucket_ms: int) -> str:
    """Names what a bucket holds: two definitions with the same hash have the same rows."""
    text = json.dumps({"table": table, "select": canonical(select), "bucket_ms": bucket_ms}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _columns_found(request: TableRequest) -> tuple[tuple[str, str], ...]:
    """The columns of the first whole file in the location; none when there is no file yet."""
    lake = Lake(request.location)
    try:
        first = min((f.path for f in lake.files(request.properties.get("glob", "*.parquet"))), default=None)
    except Unavailable:
        return ()  # the location may be made later
    return schema_of(lake, first) if first is not None else ()
