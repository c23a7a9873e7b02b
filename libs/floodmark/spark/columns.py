"""The columns of a table as Spark types: schemas are passed in, never inferred."""

import re
from collections.abc import Mapping, Sequence

from pyspark.sql import types

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
    "large_string": types.StringType(),
    "binary": types.BinaryType(),
    "large_binary": types.BinaryType(),
    "date32[day]": types.DateType(),
}
# Nanoseconds are what Arrow makes of the INT96 that Spark itself likes to write.
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(, tz=.+)?\]")
_DECIMAL = re.compile(r"decimal\d+\((\d+), (-?\d+)\)")
_DICTIONARY = re.compile(r"dictionary<values=([^,]+), .*>")
_FIXED_BINARY = re.compile(r"fixed_size_binary\[\d+\]")


def spark_schema(columns: Mapping[str, str], wanted: Sequence[str], *, table: str) -> types.StructType:
    """The wanted columns, from the types a table definition holds."""
    for name in wanted:
        if name not in columns:
            raise InvalidInput("unknown-column", f"table {table!r} has no column {name!r}")
    return types.StructType([types.StructField(name, _spark_type(table, name, columns[name])) for name in wanted])


def _spark_type(table: str, column: str, kind: str) -> types.DataType:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if match := _TIMESTAMP.fullmatch(kind):
        return types.TimestampType() if match[2] else types.TimestampNTZType()
    if match := _DECIMAL.fullmatch(kind):
        return types.DecimalType(int(match[1]), int(match[2]))
    if match := _DICTIONARY.fullmatch(kind):
        return _spark_type(table, column, match[1])
    if _FIXED_BINARY.fullmatch(kind):
        return types.BinaryType()
    raise InvalidInput("column-type", f"column {column!r} of table {table!r} is {kind}, which a view cannot use")
