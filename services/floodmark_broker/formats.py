"""Rows as JSON, as an Arrow stream and as CSV, each with its receipt."""

import base64
import datetime as dt
import decimal
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import csv, ipc

ARROW = "application/vnd.apache.arrow.stream"
CSV = "text/csv"
JSON = "application/json"
FORMATS = {"json": JSON, "arrow": ARROW, "csv": CSV}
RECEIPT_KEY = b"floodmark"
Document = dict[str, Any]


def json_document(rows: pa.Table) -> Document:
    """Columns with their types, and rows as lists. Numbers that JSON has no word for become text."""
    return {
        "columns": [{"name": field.name, "type": str(field.type)} for field in rows.schema],
        "rows": [list(row) for row in zip(*(_values(column) for column in rows.columns), strict=True)],
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
    columns = [pa.array([_cell(v) for v in _values(column)], pa.string()) for column in rows.columns]
    plain = pa.table(columns, names=rows.column_names)
    sink = pa.BufferOutputStream()
    csv.write_csv(plain, sink)
    return bytes(sink.getvalue())


def _cell(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def _values(column: pa.ChunkedArray) -> list[Any]:
    values = column.to_pylist()
    if pa.types.is_integer(column.type) or pa.types.is_string(column.type) or pa.types.is_boolean(column.type):
        return list(values)
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    """A value as JSON has it: exact numbers and times as text, bytes in base64."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    form = next((form for kind, form in _FORMS if isinstance(value, kind)), None)
    return value if form is None else form(value)


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _moment(value: dt.datetime | dt.date | dt.time) -> str:
    return value.isoformat()


_FORMS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (float, _finite),
    (decimal.Decimal, str),
    (dt.datetime | dt.date | dt.time, _moment),
    (dt.timedelta, dt.timedelta.total_seconds),
    (bytes, lambda value: base64.b64encode(value).decode()),
)
