"""The columns of a table as Spark types: schemas are passed in, never inferred."""

from collections.abc import Mapping, Sequence

from pyspark.sql import types

from floodmark.core.column_types import (
    INSTANT,
    NANOS,
    WALL_CLOCK,
    Digits,
    ListOf,
    MapOf,
    Readable,
    StructOf,
    canonical,
    readable,
)  # fmt: skip
from floodmark.core.errors import InvalidInput

_PLAIN: Mapping[str, types.DataType] = {
    "bool": types.BooleanType(),
    "int8": types.ByteType(),
    "int16": types.ShortType(),
    "int32": types.IntegerType(),
    "int64": types.LongType(),
    # Spark has no unsigned numbers: the next larger type holds them all.
    "uint8": types.ShortType(),
    "uint16": types.IntegerType(),
    "uint32": types.LongType(),
    "uint64": types.DecimalType(20, 0),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "date32[day]": types.DateType(),
    INSTANT: types.TimestampType(),
    WALL_CLOCK: types.TimestampNTZType(),
    NANOS[True]: types.TimestampType(),
    NANOS[False]: types.TimestampNTZType(),
}


def spark_schema(columns: Mapping[str, str], wanted: Sequence[str], *, table: str) -> types.StructType:
    """The wanted columns, from the types a table definition holds."""
    for name in wanted:
        if name not in columns:
            raise InvalidInput("unknown-column", f"table {table!r} has no column {name!r}")
    return types.StructType([types.StructField(name, _spark_type(table, name, columns[name])) for name in wanted])


def stored_as_nanos(columns: Mapping[str, str], wanted: Sequence[str]) -> frozenset[str]:
    """The columns that files hold as 64-bit nanoseconds, which Spark reads as whole numbers only."""
    return frozenset(name for name in wanted if canonical(columns[name]) in NANOS.values())


def _spark_type(table: str, column: str, kind: str) -> types.DataType:
    found = readable(kind)
    if found is None:
        raise InvalidInput("column-type", f"column {column!r} of table {table!r} is {kind}, which Spark cannot read")
    return _of(found)


def _of(found: Readable) -> types.DataType:
    match found:
        case Digits(precision, scale):
            return types.DecimalType(precision, scale)
        case ListOf(element):
            return types.ArrayType(_of(element))
        case MapOf(key, value):
            return types.MapType(_of(key), _of(value))
        case StructOf(fields):
            return types.StructType([types.StructField(name, _of(kind)) for name, kind in fields])
        case str():
            return _PLAIN[found]
