"""The columns of a Parquet file by what Parquet itself stores: whatever Arrow's own note in the footer says."""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.core.column_types import INT96, NANOS

_PHYSICAL: Mapping[str, str] = {
    "BOOLEAN": "bool", "INT32": "int32", "INT64": "int64", "INT96": INT96, "FLOAT": "float", "DOUBLE": "double",
    "BYTE_ARRAY": "binary", "FIXED_LEN_BYTE_ARRAY": "binary",
}  # fmt: skip
_LOGICAL: Mapping[str, str] = {
    "String": "string", "Enum": "string", "JSON": "string", "BSON": "binary", "UUID": "binary", "Date": "date32[day]",
    "Null": "null",
}  # fmt: skip
_UNITS: Mapping[str, str] = {"milliseconds": "ms", "microseconds": "us"}
_VARIANTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_VIEWS = (pa.types.is_list_view, pa.types.is_large_list_view)


def columns_of(parquet: pq.ParquetFile) -> tuple[tuple[str, str], ...]:
    """Name and type of each column, in order."""
    schema = parquet.schema
    # A column that is no group is a leaf whose path is its name.
    leaves = [schema.column(n) for n in range(len(schema))]
    flat = {leaf.name: leaf for leaf in leaves if leaf.path == leaf.name and leaf.max_repetition_level == 0}
    return tuple(
        (field.name, _flat(flat[field.name]) if field.name in flat else _nested(field.type))
        for field in parquet.schema_arrow
    )


def kinds_of_leaves(parquet: pq.ParquetFile) -> list[str]:
    """The type of each column that has values: of a nested one, what is innermost."""
    return [_flat(parquet.schema.column(n)) for n in range(len(parquet.schema))]


def _flat(leaf: Any) -> str:
    logical = json.loads(leaf.logical_type.to_json())
    match logical["Type"]:
        case "None":
            return _PHYSICAL.get(leaf.physical_type, leaf.physical_type)
        case "Int":
            return f"{'int' if logical['isSigned'] else 'uint'}{logical['bitWidth']}"
        case "Decimal":
            return f"decimal128({logical['precision']}, {logical['scale']})"
        case "Timestamp":
            return _timestamp(logical["timeUnit"], adjusted=logical["isAdjustedToUTC"])
        case other:
            return _LOGICAL.get(other, f"{leaf.physical_type} ({other.upper()})")


def _timestamp(unit: str, *, adjusted: bool) -> str:
    if unit not in _UNITS:
        return NANOS[adjusted]
    return f"timestamp[{_UNITS[unit]}{', tz=UTC' if adjusted else ''}]"


def _nested(kind: pa.DataType) -> str:
    """Arrow's words for groups, without what makes no difference to what is stored."""
    if any(is_one(kind) for is_one in (*_VARIANTS, *_VIEWS)):
        return f"list<element: {_nested(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_nested(kind.key_type)}, {_nested(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_nested(field.type)}' for field in kind)}>"
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return str(pa.timestamp(kind.unit, "UTC"))
    return str(kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind)
