"""Rows as JSON, as an Arrow stream and as CSV, each with its receipt."""

import base64
import datetime as dt
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyarrow import csv, ipc

from floodmark_broker.outputs import UNCONVERTIBLE, unconvertible

ARROW = "application/vnd.apache.arrow.stream"
CSV = "text/csv"
JSON = "application/json"
FORMATS = {"json": JSON, "arrow": ARROW, "csv": CSV}
RECEIPT_KEY = b"floodmark"
Document = dict[str, Any]

_DAY_US = 86_400_000_000
_ORDINAL_1970 = dt.date(1970, 1, 1).toordinal()
_DAYS_OF_400_YEARS = 146_097
_TICKS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def json_document(rows: pa.Table) -> Document:
    """Columns with their types, and rows as lists. Numbers that JSON has no word for become text."""
    return {
        "columns": [{"name": field.name, "type": str(field.type)} for field in rows.schema],
        "rows": [list(row) for row in zip(*_columns(rows), strict=True)],
    }


def arrow_stream(rows: pa.Table, about: Mapping[str, Any]) -> bytes:
    """An Arrow IPC stream; what is told about the rows is in the schema's metadata."""
    told = rows.replace_schema_metadata({RECEIPT_KEY: json.dumps(about).encode()})
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, told.schema) as writer:
        writer.write_table(told)
    return bytes(sink.getvalue())


def csv_text(rows: pa.Table) -> bytes:
    """RFC 4180 with a header line; what CSV has no form for is written as in JSON."""
    columns = [pa.array([_cell(value) for value in values], pa.string()) for values in _columns(rows)]
    plain = pa.table(columns, names=rows.column_names)
    sink = pa.BufferOutputStream()
    csv.write_csv(plain, sink)
    return bytes(sink.getvalue())


def _cell(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def _columns(rows: pa.Table) -> list[list[Any]]:
    return [_values(name, column) for name, column in zip(rows.column_names, rows.columns, strict=True)]


def _values(name: str, column: pa.ChunkedArray) -> list[Any]:
    """The values of a column as JSON has them."""
    form = _form(column.type)
    try:
        values = [value for chunk in column.chunks for value in chunk.view(form.raw).to_pylist()]
        return values if form.shown is None else [_shown(form, value) for value in values]
    except UNCONVERTIBLE as error:
        raise unconvertible([name], error) from error


# -- how each type is shown --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Form:
    """How values of a type are shown. Times are read as the integers they are: Python ends with the year 9999."""

    raw: pa.DataType
    shown: Callable[[Any], Any] | None = None
    """None: as they are."""


def _shown(form: _Form, value: Any) -> Any:
    return value if value is None or form.shown is None else form.shown(value)


def _form(kind: pa.DataType) -> _Form:
    """Exact numbers and times as text, bytes in base64, a map as a list of pairs."""
    if (nested := _nested_form(kind)) is not None:
        return nested
    types = pa.types
    if types.is_date32(kind):
        return _Form(pa.int32(), _date)
    if types.is_timestamp(kind):
        return _Form(pa.int64(), partial(_timestamp, _TICKS_PER_S[kind.unit], "+00:00" if kind.tz else ""))
    if types.is_duration(kind):
        return _Form(pa.int64(), partial(_seconds, _TICKS_PER_S[kind.unit]))
    return _Form(kind, next((shown for is_kind, shown in _SHOWN if is_kind(kind)), None))


def _nested_form(kind: pa.DataType) -> _Form | None:
    if pa.types.is_map(kind):
        key, item = _form(kind.key_type), _form(kind.item_type)
        raw = pa.map_(kind.key_field.with_type(key.raw), kind.item_field.with_type(item.raw))
        return _Form(raw, lambda pairs: [[_shown(key, k), _shown(item, v)] for k, v in pairs])
    if pa.types.is_list(kind):
        item = _form(kind.value_type)
        return _Form(pa.list_(kind.value_field.with_type(item.raw)), lambda values: [_shown(item, v) for v in values])
    if pa.types.is_struct(kind):
        fields = [kind.field(n) for n in range(kind.num_fields)]
        forms = {field.name: _form(field.type) for field in fields}
        raw = pa.struct([field.with_type(forms[field.name].raw) for field in fields])
        return _Form(raw, lambda values: {name: _shown(form, values[name]) for name, form in forms.items()})
    return None


def _finite(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


_SHOWN: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
    (pa.types.is_floating, _finite),
    (pa.types.is_decimal, "{:f}".format),
    (
        lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
        lambda value: base64.b64encode(value).decode(),
    ),
)


def _date(days: int) -> str:
    """In ISO 8601, and in other years than 1 to 9999 as Spark prints them: +10000-01-01, 0000-12-31, -0001-12-31."""
    # The calendar repeats itself every 400 years, and Python knows it for the first of them.
    cycles, day = divmod(days + _ORDINAL_1970 - 1, _DAYS_OF_400_YEARS)
    date = dt.date.fromordinal(day + 1)
    year = date.year + 400 * cycles
    shown = f"{year:+}" if year > dt.MAXYEAR else f"{year:04}" if year >= 0 else f"{year:05}"
    return f"{shown}-{date.month:02}-{date.day:02}"


def _timestamp(ticks_per_s: int, zone: str, ticks: int) -> str:
    days, us = divmod(ticks * 1_000_000 // ticks_per_s, _DAY_US)
    return f"{_date(days)}T{_clock(us)}{zone}"


def _clock(us: int) -> str:
    minutes, us = divmod(us, 60_000_000)
    whole, fraction = divmod(us, 1_000_000)
    text = f"{minutes // 60:02}:{minutes % 60:02}:{whole:02}"
    return f"{text}.{fraction:06}" if fraction else text


def _seconds(ticks_per_s: int, ticks: int) -> float | str:
    """A number, or text where a number would not be exact."""
    seconds = ticks / ticks_per_s
    if round(seconds * ticks_per_s) == ticks:
        return seconds
    whole, part = divmod(abs(ticks), ticks_per_s)
    return f"{'-' if ticks < 0 else ''}{whole}.{part:0{len(str(ticks_per_s)) - 1}}"
