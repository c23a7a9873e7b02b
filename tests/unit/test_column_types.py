"""Which types of files can stand under which types of tables, whatever the words earlier versions had for them."""

import pytest

from floodmark.core.column_types import (
    INT96,
    NANOS,
    Digits,
    ListOf,
    MapOf,
    StructOf,
    canonical,
    fits,
    readable,
)


@pytest.mark.scenario("I7")
@pytest.mark.parametrize(
    ("of_table", "of_file"),
    [
        ("string", "string"),
        ("string_view", "string"),
        ("large_string", "string"),
        ("dictionary<values=string, indices=int32, ordered=0>", "string"),
        ("fixed_size_binary[16]", "binary"),
        ("duration[us]", "int64"),
        ("timestamp[ms, tz=UTC]", "timestamp[us, tz=UTC]"),
        ("timestamp[us, tz=Europe/Berlin]", "timestamp[ms, tz=UTC]"),
        ("timestamp[ns]", INT96),
        ("timestamp[us]", INT96),
        ("timestamp[us, tz=UTC]", INT96),
        (INT96, "timestamp[us, tz=UTC]"),
        ("int64", "int8"),
        ("double", "float"),
        ("double", "int32"),
        ("decimal128(12, 4)", "decimal128(10, 2)"),
        ("list<item: int64 not null>", "list<element: int64>"),
        ("struct<a: int64, b: list<item: string>>", "struct<a: int64, b: list<element: string>>"),
        ("map<string, int64 ('m')>", "map<string, int64>"),
    ],
)
def test_what_spark_reads_as_the_tables_type_fits(of_table: str, of_file: str) -> None:
    assert fits(of_table, found=of_file)


@pytest.mark.scenario("I7")
@pytest.mark.parametrize(
    ("of_table", "of_file"),
    [
        ("int32", "int64"),
        ("int64", "double"),
        ("int64", "timestamp[us]"),
        ("int64", INT96),
        ("int64", "date32[day]"),
        ("float", "double"),
        ("string", "int64"),
        ("string", "int32"),
        ("timestamp[us]", "timestamp[us, tz=UTC]"),
        ("timestamp[us]", NANOS[False]),
        ("timestamp[ns]", NANOS[False]),
        (NANOS[False], NANOS[True]),
        (NANOS[False], "timestamp[us]"),
        (NANOS[True], INT96),
        ("decimal128(10, 4)", "decimal128(10, 2)"),
        ("decimal128(10, 2)", "decimal128(12, 4)"),
        ("list<element: int64>", "list<element: int32>"),
        ("struct<a: int64>", "struct<b: int64>"),
        ("struct<t: time64[us]>", "struct<t: time64[us]>x"),
    ],
)
def test_what_spark_would_read_as_something_else_or_not_at_all_does_not(of_table: str, of_file: str) -> None:
    assert not fits(of_table, found=of_file)


def test_a_nested_type_is_read_to_its_leaves() -> None:
    text = (
        "struct<user: struct<id: int64 not null> not null, prices: map<string not null, list<item: decimal32(5, 2)>>>"
    )
    assert readable(text) == StructOf(
        (("user", StructOf((("id", "int64"),))), ("prices", MapOf("string", ListOf(Digits(5, 2)))))
    )


@pytest.mark.parametrize(
    "kind",
    [
        "halffloat",
        "time64[us]",
        "INT64 (TIME)",
        "decimal256(50, 2)",
        "list<element: halffloat>",
        "struct<a: timestamp[ns]>",
        "struct<a: int64, A: int64>",
        "struct<a b>",
        "map<string>",
        "",
    ],
)
def test_what_spark_cannot_read_is_known(kind: str) -> None:
    assert readable(kind) is None


def test_one_name_for_one_type() -> None:
    assert {canonical(k) for k in ("timestamp[s]", "timestamp[ms]", "timestamp[us]", "timestamp[ns]")} == {
        "timestamp[us]"
    }
    assert canonical(NANOS[True]) == NANOS[True] == "timestamp[ns, int64, tz=UTC]"
