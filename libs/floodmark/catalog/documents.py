"""Definitions as documents: a TOML file with `[table]` or `[view]`, in which a command's flags win.

[table]                                  [view]
name = "rides"                           name = "rides_hourly"
location = "/lake/rides"                 table = "rides"
time_column = "event_time"               bucket = "1h"
scan = true                              select = "SELECT count(*) AS n FROM rides"
glob = "*.parquet"                       location = "/lake/views/rides_hourly"
slice_span = "1d"                        coverage = "extend"
retention = "30d"                        coverage_start = 2014-01-01T00:00:00Z
time_unit = "ms"    # of an int64
[table.columns]
event_time = "timestamp[ms, tz=UTC]"
"""

import difflib
import tomllib
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any

from floodmark.catalog.definitions import TableRequest, ViewRequest
from floodmark.core.errors import InvalidInput

Fields = Mapping[str, Any]

_TABLE_KEYS = ("name", "location", "time_column", "slice_span", "scan", "glob", "retention", "time_unit", "columns")
_VIEW_KEYS = ("name", "table", "bucket", "select", "location", "coverage", "coverage_start")


def fields_of(text: str, *, section: str, what: str) -> dict[str, Any]:
    """The one section of a definition file."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput("definition", f"{what} is not TOML: {error}") from error
    found = document.get(section)
    if not isinstance(found, dict) or len(document) > 1:
        raise InvalidInput("definition", f"{what} must have exactly one section, [{section}]")
    return found


def table_request(fields: Fields) -> TableRequest:
    _check_keys(fields, known=_TABLE_KEYS, needed=("name", "location", "time_column"), what="table")
    properties = {}
    if "scan" in fields:
        properties["scan"] = "true" if _typed(fields, "scan", bool) else "false"
    properties |= {key: _typed(fields, key, str) for key in ("glob", "retention", "time_unit") if key in fields}
    columns = _typed(fields, "columns", dict) if "columns" in fields else {}
    return TableRequest(
        name=_typed(fields, "name", str),
        location=_typed(fields, "location", str),
        time_column=_typed(fields, "time_column", str),
        columns=tuple((name, str(kind)) for name, kind in columns.items()),
        slice_span=_typed(fields, "slice_span", str) if "slice_span" in fields else "1d",
        properties=properties,
    )


def view_request(fields: Fields, *, time_ms: Callable[[str], int]) -> ViewRequest:
    """`time_ms` reads a time as people write it."""
    _check_keys(fields, known=_VIEW_KEYS, needed=("name", "table", "bucket", "select", "location"), what="view")
    start = fields.get("coverage_start")
    return ViewRequest(
        name=_typed(fields, "name", str),
        table=_typed(fields, "table", str),
        bucket=_typed(fields, "bucket", str),
        select=_typed(fields, "select", str),
        location=_typed(fields, "location", str),
        coverage=_typed(fields, "coverage", str) if "coverage" in fields else "extend",
        coverage_start_ms=None if start is None else _start_ms(start, time_ms),
    )


def _start_ms(value: object, time_ms: Callable[[str], int]) -> int:
    if isinstance(value, datetime):
        return time_ms(value.isoformat())
    return time_ms(str(value))


def _check_keys(fields: Fields, *, known: Collection[str], needed: Collection[str], what: str) -> None:
    for key in fields:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise InvalidInput("definition", f"a {what} has no {key}{hint}")
    if missing := [key for key in needed if key not in fields]:
        raise InvalidInput("definition", f"{what} {fields.get('name', '')!r} needs {', '.join(missing)}")


def _typed(fields: Fields, key: str, kind: type) -> Any:
    value = fields[key]
    if not isinstance(value, kind):
        raise InvalidInput("definition", f"{key} = {value!r} must be a {_WORDS[kind]}")
    return value


_WORDS = {str: "text", bool: "true or false", dict: "table of names and types"}
