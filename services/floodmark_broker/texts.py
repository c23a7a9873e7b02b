"""Tables and views as the statements that would create them again."""

import re
from collections.abc import Mapping

from floodmark.catalog.durations import format_duration
from floodmark.core.column_types import NANOS, canonical
from floodmark.core.tables import DAY_MS, CoverageMode, TableDefinition, ViewDefinition

_SQL_TYPES: Mapping[str, str] = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "binary": "BINARY",
    "date32[day]": "DATE",
}


def create_table_text(definition: TableDefinition) -> str:
    """Columns are left out when SQL has no word for one of their types: then they are those of the files."""
    columns = [(name, _sql_type(kind)) for name, kind in definition.columns]
    listed = ", ".join(f"{_name(name)} {kind}" for name, kind in columns)
    known = bool(columns) and all(kind for _, kind in columns)
    properties = {"time_column": definition.time_column, **definition.properties}
    if definition.slice_span_ms != DAY_MS:
        properties["slice_span"] = format_duration(definition.slice_span_ms)
    return (
        f"CREATE TABLE {definition.name}{f' ({listed})' if known else ''} USING parquet "
        f"LOCATION {_text(definition.location)} {_properties(properties)}"
    )


def create_view_text(definition: ViewDefinition) -> str:
    properties = {"bucket": format_duration(definition.bucket_ms), **definition.properties}
    if definition.coverage is not CoverageMode.EXTEND:
        properties["coverage"] = str(definition.coverage)
    return (
        f"CREATE MATERIALIZED VIEW {definition.name} LOCATION {_text(definition.location)} "
        f"{_properties(properties)} AS {definition.select.strip()}"
    )


def _sql_type(kind: str) -> str:
    kind = canonical(kind)
    if kind in NANOS.values():
        return ""
    if match := re.fullmatch(r"timestamp\[\w+(, tz=.+)?\]", kind):
        return "TIMESTAMP" if match[1] else "TIMESTAMP_NTZ"
    if match := re.fullmatch(r"decimal\d+\((\d+), (\d+)\)", kind):
        return f"DECIMAL({match[1]}, {match[2]})"
    return _SQL_TYPES.get(kind, "")


def _properties(properties: Mapping[str, str]) -> str:
    return f"TBLPROPERTIES ({', '.join(f'{_text(k)} = {_text(v)}' for k, v in properties.items())})"


def _name(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
