"""The columns of a new table, and whether its files tell the time by them: what cannot be read is refused here."""

from collections.abc import Mapping

from floodmark.core.column_types import NANOS, TIME_UNITS, canonical, fits
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.tables import TIME_UNIT
from floodmark.parquet.inspection import (
    Columns,
    check_columns,
    check_readable,
    check_time_column,
    check_time_type,
    schema_of,
    time_range,
)
from floodmark.parquet.lake import Lake

_SECONDS_LOOK_MS = (100_000_000, 4_200_000_000)
"""Taken for milliseconds, the seconds of the years 1973 to 2103 are these weeks of 1970."""


def table_columns(
    table: str, location: str, time_column: str, declared: Columns, properties: Mapping[str, str]
) -> Columns:
    """The columns as files have them. One declared as TIMESTAMP or STRING may be stored in several ways."""
    if declared and time_column not in dict(declared):
        raise InvalidInput("no-time-column", f"table {table!r} has no column {time_column!r}")
    lake = Lake(location)
    first = _first_file(lake, properties.get("glob", "*.parquet"))
    found = schema_of(lake, first) if first is not None else ()
    columns = _matched(table, declared, dict(found)) if declared and found else declared or found
    if first is not None:
        check_time_column(first, found, time_column)
        check_columns(first, found, columns)
    check_readable(f"table {table!r}", columns)
    if kind := dict(columns).get(time_column):
        check_time_type(f"table {table!r}", time_column, kind)
        if kind != "int64" and TIME_UNIT in properties:
            told = f"column {time_column!r} is {kind} and needs none"
            raise InvalidInput("time-unit", f"table {table!r} has a {TIME_UNIT}, but {told}")
        if kind == "int64" and TIME_UNIT not in properties and first is not None:
            _check_milliseconds(table, time_column, lake, first)
    return columns


def _first_file(lake: Lake, glob: str) -> str | None:
    try:
        return min((file.path for file in lake.files(glob)), default=None)
    except Unavailable:
        return None  # the location may be made later


def _matched(table: str, declared: Columns, found: Mapping[str, str]) -> Columns:
    columns = []
    for name, kind in declared:
        has = found.get(name)
        if has is None or not _is_declared_as(kind, has):
            told = f"the files have it as {has}" if has is not None else f"the files have {', '.join(found)}"
            raise InvalidInput("schema", f"table {table!r} cannot have column {name!r} as {kind}: {told}")
        columns.append((name, has if has in NANOS.values() or canonical(has) == canonical(kind) else kind))
    return tuple(columns)


def _is_declared_as(kind: str, found: str) -> bool:
    """No type of SQL says whether a time is stored in nanoseconds."""
    without_unit = {nanos: canonical(nanos.replace("ns, int64", "us")) for nanos in NANOS.values()}
    return fits(kind, found=found) or without_unit.get(found) == canonical(kind)


def _check_milliseconds(table: str, time_column: str, lake: Lake, path: str) -> None:
    """A whole number says nothing of what it counts. Undeclared, it counts milliseconds unless it looks otherwise."""
    times = time_range(lake, path, time_column=time_column)
    low, high = _SECONDS_LOOK_MS
    if times is not None and low <= times[0] and times[1] < high:
        units = ", ".join(f"'{unit}'" for unit in TIME_UNITS)
        raise InvalidInput(
            "time-unit",
            f"table {table!r}: column {time_column!r} of {path} counts from {times[0]} to {times[1]}, which would be "
            f"milliseconds of early 1970 and may be seconds; declare '{TIME_UNIT}' as one of {units}",
        )
