"""The columns of a table as Spark types: schemas are passed in, never inferred."""

import re
from collections.abc import Mapping, Sequence

from pyspark.sql import types as T

from floodmark.core.errors import InvalidInput

_PLAIN: Mapping[str, T.DataType] = {
    "bool": T.BooleanType(),
    "int8": T.ByteType(),
    "int16": T.ShortType(),
    "int32": T.IntegerType(),
    "int64": T.LongType(),
    # Spark has no unsigned numbers: the next larger type holds them all.
    "uint8": T.ShortType(),
    "uint16": T.IntegerType(),
    "uint32": T.LongType(),
    "uint64": T.DecimalType(20, 0),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "large_string": T.StringType(),
    "binary": T.BinaryType(),
    "large_binary": T.BinaryType(),
    "date32[day]": T.DateType(),
}
# Nanoseconds are what Arrow makes of the INT96 that Spark itself likes to write.
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(, tz=.+)?\]")
_DECIMAL = re.compile(r"decimal\d+\((\d+), (-?\d+)\)")
_DICTIONARY = re.compile(r"dictionary<values=([^,]+), .*>")
_FIXED_BINARY = re.compile(r"fixed_size_binary\[\d+\]")


def spark_schema(columns: Mapping[str, str], wanted: Sequence[str], *, table: str) -> T.StructType:
    """The wanted columns, from the types a table definition holds."""
    for name in wanted:
        if name not in columns:
            raise InvalidInput("unknown-column", f"table {table!r} has no column {name!r}")
    return T.StructType([T.StructField(name, _spark_type(table, name, columns[name])) for name in wanted])


def _spark_type(table: str, column: str, kind: str) -> T.DataType:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if match := _TIMESTAMP.fullmatch(kind):
        return T.TimestampType() if match[2] else T.TimestampNTZType()
    if match := _DECIMAL.fullmatch(kind):
        return T.DecimalType(int(match[1]), int(match[2]))
    if match := _DICTIONARY.fullmatch(kind):
        return _spark_type(table, column, match[1])
    if _FIXED_BINARY.fullmatch(kind):
        return T.BinaryType()
    raise InvalidInput("column-type", f"column {column!r} of table {table!r} is {kind}, which a view cannot use")
