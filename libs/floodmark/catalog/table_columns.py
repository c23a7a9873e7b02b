"""The columns of a new table, and whether its files tell the time by them: what cannot be read is refused here."""

from collections.abc import Mapping

from floodmark.core.column_types import canonical, fits, has_type, stored_as
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.tables import TIME_UNIT
from floodmark.parquet.inspection import (
    Columns,
    check_columns,
    check_decodable,
    check_readable,
    check_time_column,
    check_time_type,
    row_count,
    schema_of,
    time_range,
)
from floodmark.parquet.lake import Lake

FILES_LOOKED_AT_MAX = 100
"""So many files without rows are passed over. The ingester refuses them, and checks all others as this one."""


def table_columns(
    table: str, location: str, time_column: str, declared: Columns, properties: Mapping[str, str]
) -> Columns:
    """The columns as files have them. One declared as TIMESTAMP or STRING may be stored in several ways."""
    if declared and time_column not in dict(declared):
        raise InvalidInput("no-time-column", f"table {table!r} has no column {time_column!r}")
    lake = Lake(location)
    first = _first_file(lake, properties.get("glob", "*.parquet"))
    found = schema_of(lake, first) if first is not None else ()
    if first is not None:  # as the ingester will, and by the same rule
        check_time_column(first, found, time_column)
    columns = _matched(table, declared, dict(found)) if declared and found else declared or found
    if first is not None:
        check_columns(first, found, columns)
        check_decodable(lake, first, dict(columns))
    check_readable(f"table {table!r}", columns)
    if kind := dict(columns).get(time_column):
        check_time_type(f"table {table!r}", time_column, kind)
        if kind != "int64" and TIME_UNIT in properties:
            told = f"column {time_column!r} is {kind} and needs none"
            raise InvalidInput("time-unit", f"table {table!r} has a {TIME_UNIT}, but {told}")
        if kind == "int64" and TIME_UNIT not in properties and first is not None:
            time_range(lake, first, time_column=time_column)
    return columns


def _first_file(lake: Lake, glob: str) -> str | None:
    """The first file by name that has rows; if none has, the first."""
    try:
        paths = sorted(file.path for file in lake.files(glob))
    except Unavailable:
        return None  # the location may be made later
    looked_at = paths[:FILES_LOOKED_AT_MAX]
    return next((path for path in looked_at if row_count(lake, path)), next(iter(paths), None))


def _matched(table: str, declared: Columns, found: Mapping[str, str]) -> Columns:
    columns = []
    for name, kind in declared:
        has = found.get(name)
        stored = kind if has is None else stored_as(kind, found=has)
        if has is None or not fits(stored, found=has):
            told = f"the files have it as {has}" if has is not None else f"the files have {', '.join(found)}"
            raise InvalidInput("schema", f"table {table!r} cannot have column {name!r} as {kind}: {told}")
        columns.append((name, has if has_type(has) and canonical(has) == canonical(stored) else stored))
    return tuple(columns)
