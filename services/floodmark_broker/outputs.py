"""Rows of Spark as Arrow has them. A step of its own, so that a type without a form in Arrow is refused by its column.

frame --sendable--> frame of types that Arrow has --to_arrow--> rows --check_texts--> rows that every reader can read
"""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from floodmark.core.errors import InvalidInput

OUTPUT_TYPE = "output-type"
OUTPUT_TEXT = "output-text"
UNCONVERTIBLE = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""What Arrow and Python raise of a value that they cannot hold."""

_WRITTEN_INSTEAD = {"variant": "to_json({})", "geometry": "st_asbinary({})", "geography": "st_asbinary({})"}
"""Types that Arrow holds as structs of bytes, and only where no row is NULL."""


class _NoForm(Exception):
    """Why a type cannot be sent, and what to write instead."""


def sendable(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """The same rows: VARIANT as JSON text, intervals of months as Spark prints them, and void where Arrow allows it.

    The columns of the frame are called c0, c1 and so on; the names are those that the user knows.
    """
    if not names:
        raise InvalidInput(OUTPUT_TYPE, "the query has no output columns; select at least one")
    return frame.select(*(_sent(fn.col(f.name), f.dataType, n) for f, n in zip(frame.schema, names, strict=True)))


def _sent(column: Column, kind: DataType, name: str) -> Column:
    if isinstance(kind, VariantType):
        return fn.to_json(column)
    try:
        form = _form(kind)
    except _NoForm as error:
        raise InvalidInput(OUTPUT_TYPE, f"column {name[:80]!r} {error}") from error
    return column if form == kind else column.cast(form)


def _form(kind: DataType) -> DataType:
    match kind:
        case YearMonthIntervalType() | CalendarIntervalType():
            return StringType()
        case ArrayType():
            return ArrayType(_form(kind.elementType), kind.containsNull or _is_void(kind.elementType))
        case MapType():
            # Keys are never NULL, so a map with keys of no type is empty: any type is right.
            key = StringType() if _is_void(kind.keyType) else _form(kind.keyType)
            return MapType(key, _form(kind.valueType), kind.valueContainsNull or _is_void(kind.valueType))
        case StructType():
            return _struct_form(kind)
    if written := _WRITTEN_INSTEAD.get(kind.typeName()):
        raise _NoForm(f"holds {kind.simpleString()}, which answers have no form for; write {written.format('...')}")
    return kind


def _struct_form(kind: StructType) -> StructType:
    if twice := sorted({name for name in kind.names if kind.names.count(name) > 1}):
        raise _NoForm(f"is a struct with two fields named {twice[0][:80]!r}; name each field differently")
    # Where the whole struct is NULL its fields are too, which Arrow does not take of fields that are never NULL.
    return StructType([StructField(f.name, _form(f.dataType), nullable=True, metadata=f.metadata) for f in kind.fields])


def _is_void(kind: DataType) -> bool:
    return isinstance(kind, NullType)


def to_arrow(frame: DataFrame, names: Sequence[str]) -> pa.Table:
    """Runs the frame. What only Arrow refuses is told with the columns that it may be about."""
    try:
        return frame.toArrow().rename_columns(list(names))
    except PySparkException:
        raise
    except UNCONVERTIBLE as error:
        nested = [n for f, n in zip(frame.schema, names, strict=True) if f.dataType.typeName() in _NESTED] or names
        raise unconvertible(nested, error) from error


_NESTED = ("array", "map", "struct")


def unconvertible(names: Sequence[str], error: Exception) -> InvalidInput:
    shown = ", ".join(repr(name[:80]) for name in names)
    which = f"column {shown}" if len(names) == 1 else f"one of the columns {shown}"
    return InvalidInput(OUTPUT_TYPE, f"{which} holds a value that cannot be sent: {error}; write CAST(... AS STRING)")


def check_texts(rows: pa.Table) -> None:
    """Spark takes any bytes for text. Readers of Arrow, JSON and CSV take UTF-8 only."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if _has_text(column.type):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                raise InvalidInput(
                    OUTPUT_TEXT,
                    f"column {name[:80]!r} holds text that is not UTF-8; "
                    "write make_valid_utf8(...) to replace such bytes, or CAST(... AS BINARY) to have them",
                ) from error


def _has_text(kind: pa.DataType) -> bool:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return True
    return any(_has_text(kind.field(n).type) for n in range(kind.num_fields))
