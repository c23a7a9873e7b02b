"""Files as real writers write them: each with the times it holds, or with the rule that refuses it.

What a file holds is written down here, not read from it: neither Arrow nor Spark is taken at its word.
"""

import base64
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.parquet import encryption

NS_PER = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
DAY_US = 86_400_000_000
Times = tuple[int | None, ...]
"""Nanoseconds since 1970; None for a row without a time."""


def ns(year: int, month: int = 1, day: int = 1, *clock: int, nano: int = 0) -> int:
    whole = datetime(year, month, day, *clock, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (whole.days * 86_400 + whole.seconds) * 10**9 + nano


MODERN: Times = (
    ns(2024, 5, 1), None, ns(2024, 5, 1, 2, 30, nano=500_000_000), ns(2024, 5, 1, 23, 59, 59, nano=999_000_000),
)  # fmt: skip
AROUND_1970: Times = (ns(1969, 12, 31, 23, 59, 59, nano=999_999_999), -1, 0, 1, 1_999, None)
"""Parts of a microsecond on both sides of 1970: rounded towards zero, the first two would come later than they are."""
YEAR_1: Times = (ns(1), ns(1, 1, 1, 5), None)
YEAR_9999: Times = (ns(9999, 12, 31), ns(9999, 12, 31, 23, 59, 59, nano=999_999_000))
YEAR_1677: Times = (ns(1677, 9, 1), ns(1677, 9, 21, 0, 12, 43))
"""Ends before the first time that 64-bit nanoseconds have."""
YEAR_2262: Times = (ns(2262, 4, 11, 23, 47), ns(2262, 4, 12))
WHOLE_DAYS: Times = (ns(2024, 5, 1), None, ns(2024, 5, 3))


@dataclass(frozen=True)
class Specimen:
    """One file. Its columns are `t`, `n` (0, 1, ...) and `k` ('a' or 'b'), and whatever else its writer adds."""

    name: str
    times: Times
    write: Callable[[Path], object]
    rule: str | None = None
    """Which rule refuses it."""
    unit: str | None = None
    """What whole numbers count."""
    time_column: str = "t"

    @property
    def range_ms(self) -> tuple[int, int]:
        known = [time // 1_000_000 for time in self.times if time is not None]
        return min(known), max(known)

    @property
    def properties(self) -> Mapping[str, str]:
        return {} if self.unit is None else {"time_unit": self.unit}


def in_unit(times: Times, unit: str) -> list[int | None]:
    return [None if time is None else time // NS_PER[unit] for time in times]


def timestamps(times: Times, unit: str, zone: str | None = None) -> pa.Array:
    return pa.array(in_unit(times, unit), pa.int64()).cast(pa.timestamp(unit, zone))


def keys(times: Times) -> list[str]:
    return ["ab"[n % 2] for n in range(len(times))]


def columns(times: Times, column: pa.Array, **more: pa.Array) -> pa.Table:
    return pa.table({"t": column, "n": pa.array(range(len(times)), pa.int64()), "k": pa.array(keys(times)), **more})


def _arrow(
    name: str, times: Times, column: pa.Array, more: Mapping[str, pa.Array] | None = None, **other: Any
) -> Specimen:
    own = {key: other.pop(key) for key in ("rule", "unit") if key in other}
    table = columns(times, column, **(more or {}))
    return Specimen(f"arrow-{name}", times, lambda path: pq.write_table(table, path, **other), **own)


# -- written by Arrow --------------------------------------------------------------------------------------------------


def by_arrow() -> Iterator[Specimen]:
    us, int96 = timestamps(MODERN, "us"), {"use_deprecated_int96_timestamps": True}
    for codec, page, plain in itertools.product(("zstd", "snappy", "gzip", "none"), ("1.0", "2.0"), (True, False)):
        yield _arrow(
            f"{codec}-v{page[0]}-{'plain' if plain else 'dictionary'}", MODERN, us,
            compression=codec, data_page_version=page, use_dictionary=not plain,
        )  # fmt: skip
    for unit, zone in itertools.product(("s", "ms", "us", "ns"), (None, "UTC", "Europe/Berlin")):
        times = tuple(in_whole(MODERN, unit))
        yield _arrow(f"{unit}-{zone}", times, timestamps(times, unit, zone))
    for zone, plain in itertools.product((None, "UTC"), (True, False)):
        told = f"{zone}-{'plain' if plain else 'dictionary'}"
        around = timestamps(AROUND_1970, "ns", zone)
        yield _arrow(f"ns-1970-{told}", AROUND_1970, around, use_dictionary=not plain)
        yield _arrow(f"int96-1970-{told}", AROUND_1970, around, use_dictionary=not plain, **int96)
    for label, times in (("1", YEAR_1), ("9999", YEAR_9999), ("1677", YEAR_1677), ("2262", YEAR_2262)):
        yield _arrow(f"int96-{label}", times, timestamps(times, "us"), **int96)
        yield _arrow(f"int96-zoned-{label}", times, timestamps(times, "us", "UTC"), **int96)
        yield _arrow(f"us-{label}", times, timestamps(times, "us"))
    yield _arrow("ms-9999", tuple(in_ms(YEAR_9999)), timestamps(YEAR_9999, "ms"))
    yield _arrow("int96-small-groups", MODERN, us, row_group_size=1, **int96)
    yield _arrow("no-statistics", MODERN, us, write_statistics=False)
    yield _arrow("no-arrow-schema", MODERN, us, store_schema=False)
    yield _arrow("version-1", MODERN, timestamps(MODERN, "us"), version="1.0")
    yield _arrow("date", WHOLE_DAYS, timestamps(WHOLE_DAYS, "ms").cast(pa.date32()))
    for label, times in (("1", (ns(1), ns(1, 1, 2))), ("9999", (ns(9999, 12, 31),))):
        days = pa.array([time // (DAY_US * 1_000) for time in times], pa.int32()).cast(pa.date32())
        yield _arrow(f"date-{label}", times, days)
    for unit in ("s", "ms", "us", "ns"):
        times = tuple(in_ms(MODERN)) if unit == "ms" else WHOLE_DAYS if unit == "s" else MODERN
        yield _arrow(f"int64-{unit}", times, pa.array(in_unit(times, unit), pa.int64()), unit=unit)
    for unit in ("us", "ns"):
        yield _arrow(f"int64-{unit}-1970", AROUND_1970, pa.array(in_unit(AROUND_1970, unit), pa.int64()), unit=unit)
    yield _arrow("duration", MODERN, pa.array(in_unit(MODERN, "us"), pa.int64()).cast(pa.duration("us")), unit="us")


def in_whole(times: Times, unit: str) -> Iterator[int | None]:
    """Times as this unit keeps them."""
    per = NS_PER[unit]
    return (None if time is None else time // per * per for time in times)


def in_ms(times: Times) -> Iterator[int | None]:
    return in_whole(times, "ms")


def odd_columns() -> Iterator[Specimen]:
    """Ordinary times beside columns of every other kind."""
    us, rows = timestamps(MODERN, "us"), len(MODERN)
    texts = pa.array(keys(MODERN))
    small_ints = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int8())
    others: dict[str, pa.Array] = {
        "string-view": texts.cast(pa.string_view()),
        "large-string": texts.cast(pa.large_string()),
        "binary-view": texts.cast(pa.binary()).cast(pa.binary_view()),
        "dictionary": texts.dictionary_encode(),
        "list": pa.array([[1, 2]] * rows),
        "fixed-list": pa.array([[1, 2]] * rows, pa.list_(pa.int32(), 2)),
        "list-view": pa.array([[1]] * rows, pa.list_view(pa.int32())),
        "struct": pa.array([{"a": 1, "b": ["x"]}] * rows),
        "map": pa.array([[("x", 1)]] * rows, pa.map_(pa.string(), pa.int64())),
        "fixed-binary": pa.array([b"ab"] * rows, pa.binary(2)),
        "uuid": pa.array([b"0123456789abcdef"] * rows, pa.uuid()),
        "json": pa.array(["{}"] * rows, pa.json_()),
        "date64": pa.array([0] * rows, pa.date64()),
        "decimal256": pa.array([1] * rows, pa.decimal256(30, 2)),
        "decimal32": pa.array([1] * rows, pa.decimal32(7, 2)),
        **{str(kind): pa.array(range(rows), kind) for kind in small_ints},
        "ns": timestamps(MODERN, "ns"),
        "duration": pa.array([1] * rows, pa.duration("s")),
    }
    for name, values in others.items():
        yield _arrow(f"beside-{name}", MODERN, us, {"x": values})
    unread = {
        "halffloat": pa.array([1.0] * rows, pa.float16()),
        "time32": pa.array([1] * rows, pa.time32("ms")),
        "time64": pa.array([1] * rows, pa.time64("us")),
        "nested-ns": pa.array([{"a": 1}] * rows, pa.struct({"a": pa.timestamp("ns")})),
    }
    for name, values in unread.items():
        yield _arrow(f"beside-{name}", MODERN, us, {"x": values}, rule="column-type")
    yield _arrow("nothing-but-null", MODERN, us, {"x": pa.nulls(rows)}, rule="column-type")
    yield _arrow("empty-lists", MODERN, us, {"x": pa.array([[]] * rows)}, rule="column-type")
    for name in ("a.b", "a b", "цена", "t.x", "`q`", "T2"):
        yield _arrow(f"beside-name-{name}", MODERN, us, {name: pa.array(range(rows))})
    yield _arrow("beside-the-time-in-capitals", MODERN, us, {"T": pa.array(range(rows))}, rule="schema")
    table = columns(MODERN, us)
    for name in ("n", "N"):
        twice = table.append_column(name, table.column("n"))
        yield Specimen(f"two-{name}", MODERN, lambda path, t=twice: pq.write_table(t, path), "schema")
    for name in ("t.x", "the time", "время", "Z", "a`b"):
        renamed = table.rename_columns([name, "n", "k"])
        yield Specimen(f"time-named-{name}", MODERN, lambda path, r=renamed: pq.write_table(r, path), time_column=name)
    prefixed = columns(MODERN, us).rename_columns(["t.x", "n", "k"]).append_column("t", us)
    yield Specimen("the-time-after-its-prefix", MODERN, lambda path: pq.write_table(prefixed, path))


def stored_oddly() -> Iterator[Specimen]:
    """Every codec and encoding that a writer at hand has, for every type that they apply to."""
    us, rows = timestamps(MODERN, "us"), range(len(MODERN))
    yield _arrow("in-lz4", MODERN, us, compression="lz4")
    yield _arrow("brotli", MODERN, us, compression="brotli", rule="encoding")
    yield _arrow("brotli-beside", MODERN, us, compression={"k": "brotli", "t": "zstd", "n": "zstd"}, rule="encoding")
    split = [pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.float32(), pa.float64(), pa.binary(2)]
    whole = [kind for kind in split if pa.types.is_integer(kind)]
    ways = {
        "BYTE_STREAM_SPLIT": [*split, pa.decimal128(9, 2), pa.decimal128(30, 2), pa.date32(), pa.timestamp("us")],
        "DELTA_BINARY_PACKED": [*whole, pa.uint32(), pa.uint64(), pa.date32(), pa.timestamp("us")],
        "DELTA_BYTE_ARRAY": [pa.string(), pa.binary(), pa.binary(2), pa.decimal128(30, 2)],
        "DELTA_LENGTH_BYTE_ARRAY": [pa.string(), pa.binary()],
        "RLE": [pa.bool_()],
    }
    for way, kind in ((way, kind) for way, kinds in ways.items() for kind in kinds):
        yield _encoded(way, kind, us, _values(kind, rows))
    for unsigned in (pa.uint32(), pa.uint64()):
        yield _encoded("BYTE_STREAM_SPLIT", unsigned, us, _values(unsigned, rows), rule="encoding")
        inside = pa.StructArray.from_arrays([_values(unsigned, rows)], ["a"])
        yield _encoded("BYTE_STREAM_SPLIT", unsigned, us, inside, leaf="x.a", rule="encoding")
    for hidden in ("t", "k"):
        table, its_key = columns(MODERN, us), {"column_keys": {"theirs": [hidden]}}
        yield Specimen(
            f"encrypted-{hidden}", MODERN, lambda path, t=table, k=its_key: _encrypted(path, t, k), "encoding"
        )
    everything = {"uniform_encryption": True}
    yield Specimen("encrypted", MODERN, lambda path: _encrypted(path, columns(MODERN, us), everything), "not-parquet")


def _values(kind: pa.DataType, rows: range) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array([n > 1 for n in rows])
    if pa.types.is_temporal(kind):
        return pa.array(rows, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)
    return pa.array([f"{n:02}" for n in rows]).cast(pa.binary() if kind == pa.binary(2) else kind).cast(kind)


def _encoded(
    way: str, kind: pa.DataType, us: pa.Array, values: pa.Array, *, leaf: str = "x", rule: str | None = None
) -> Specimen:
    name = f"in-{way.lower()}-{leaf}-{kind}"
    return _arrow(name, MODERN, us, {"x": values}, use_dictionary=False, column_encoding={leaf: way}, rule=rule)


class _Keys(encryption.KmsClient):  # type: ignore[misc, unused-ignore]
    """Keeps no secret."""

    def __init__(self, _: object) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, _: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, _: str) -> bytes:
        return base64.b64decode(wrapped_key)


def _encrypted(path: Path, table: pa.Table, which: Mapping[str, Any]) -> None:
    """With a footer for everybody, unless everything is encrypted."""
    wanted = encryption.EncryptionConfiguration(
        footer_key="f", plaintext_footer=True, data_key_length_bits=128, **which
    )
    connection = encryption.KmsConnectionConfig(custom_kms_conf={})
    properties = encryption.CryptoFactory(_Keys).file_encryption_properties(connection, wanted)
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


def refused() -> Iterator[Specimen]:
    us = timestamps(MODERN, "us")
    yield _arrow("text", MODERN, pa.array([str(t) for t in MODERN]), rule="time-type")
    for kind in (pa.int32(), pa.int16(), pa.uint64(), pa.float64()):
        yield _arrow(str(kind), MODERN, pa.array([1, None, 0, 1], kind), rule="time-type")
    yield _arrow("time64", MODERN, pa.array([1] * 4, pa.time64("us")), rule="time-type")
    yield _arrow("zero-rows", (), timestamps((), "us"), rule="time-all-null")
    yield _arrow("all-null", (None, None), timestamps((None, None), "us"), rule="time-all-null")
    yield Specimen("zero-groups", (), _without_groups, rule="time-all-null")
    yield Specimen("group-of-zero-rows", MODERN, lambda path: _with_empty_group(path, columns(MODERN, us)))
    yield Specimen("empty", (), lambda path: path.write_bytes(b""), rule="not-parquet")
    yield Specimen("text-file", (), lambda path: path.write_text("t,n\n1,2\n"), rule="not-parquet")
    yield Specimen("without-a-time", (), lambda path: pq.write_table(pa.table({"n": [1]}), path), rule="no-time-column")
    beyond = pa.array([2**62, 0, 1, 2], pa.int64())
    yield _arrow("ms-beyond", MODERN, beyond.cast(pa.timestamp("ms")), rule="time-range")
    for label, values in (("", in_unit(MODERN, "s")), ("-and-0", [0, *in_unit(MODERN, "s")[1:]])):
        yield _arrow(f"int64-s-as-ms{label}", MODERN, pa.array(values, pa.int64()), rule="time-unit")
    yield _arrow("int64-us-as-ms", MODERN, pa.array(in_unit(MODERN, "us"), pa.int64()), rule="time-range")


def _without_groups(path: Path) -> None:
    with pq.ParquetWriter(path, columns((), timestamps((), "us")).schema):
        pass


def _with_empty_group(path: Path, table: pa.Table) -> None:
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table.slice(0, 0))
        writer.write_table(table)
        writer.write_table(table.slice(0, 0))


# -- written by others -------------------------------------------------------------------------------------------------


def by_pandas() -> Iterator[Specimen]:
    """`to_parquet` as it is called without a thought: nanoseconds, and an index."""
    for label, times in (("modern", MODERN), ("1970", AROUND_1970)):
        for zone in (None, "UTC", "Asia/Kathmandu"):
            frame = pd.DataFrame({"n": range(len(times)), "k": keys(times)})
            frame["t"] = pd.to_datetime(pd.Series(times, dtype="Int64"), unit="ns", utc=zone is not None)
            if zone is not None:
                frame["t"] = frame["t"].dt.tz_convert(zone)
            yield Specimen(f"pandas-{label}-{zone}", times, lambda path, f=frame: f.to_parquet(path))
    frame = pd.DataFrame({"n": range(len(MODERN)), "k": pd.Categorical(keys(MODERN))})
    frame["t"] = pd.to_datetime(pd.Series(MODERN, dtype="Int64"), unit="ns")
    named = frame.set_index(pd.Index(range(len(MODERN)), name="the index"))
    yield Specimen("pandas-index", MODERN, lambda path: named.to_parquet(path, index=True))
    yield Specimen("pandas-us", MODERN, lambda path: frame.to_parquet(path, coerce_timestamps="us"))
    yield Specimen("pandas-int96", MODERN, lambda path: frame.to_parquet(path, use_deprecated_int96_timestamps=True))
    yield Specimen("pandas-time-index", MODERN, frame.set_index("t").to_parquet)


def by_duckdb() -> Iterator[Specimen]:
    for kind, times in (
        ("TIMESTAMP", MODERN), ("TIMESTAMPTZ", MODERN), ("TIMESTAMP_MS", MODERN), ("TIMESTAMP_NS", MODERN),
        ("TIMESTAMP", YEAR_1), ("TIMESTAMP", YEAR_9999), ("DATE", WHOLE_DAYS),
    ):  # fmt: skip
        year = 1970 + (next(t for t in times if t is not None) // 31_556_952_000_000_000)
        yield Specimen(f"duckdb-{kind}-{year}", times, lambda path, k=kind, t=times: _duckdb(path, k, t))


def _duckdb(path: Path, kind: str, times: Times) -> None:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", columns(times, timestamps(times, "us")))
        connection.execute(f"COPY (SELECT CAST(t AS {kind}) AS t, n, k FROM rows) TO '{path}' (FORMAT parquet)")


def by_spark(spark: Any) -> Iterator[Specimen]:
    """INT96 and the calendar of before, which only Spark writes."""
    for stored in ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"):
        for label, times in (("modern", tuple(in_ms(MODERN))), ("1", YEAR_1), ("9999", tuple(in_ms(YEAR_9999)))):
            yield _spark(spark, f"{stored}-{label}", times, "TIMESTAMP_LTZ", stored)
    yield _spark(spark, "ntz", MODERN, "TIMESTAMP_NTZ", "INT96")
    yield _spark(spark, "date", WHOLE_DAYS, "DATE", "INT96")
    for stored in ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"):
        yield _spark(spark, f"legacy-{stored}-modern", tuple(in_ms(MODERN)), "TIMESTAMP_LTZ", stored, legacy=True)
        yield _spark(spark, f"legacy-{stored}-1", YEAR_1, "TIMESTAMP_LTZ", stored, legacy=True, rule="time-calendar")
    yield _spark(spark, "legacy-date", WHOLE_DAYS, "DATE", "INT96", legacy=True)
    yield _spark(spark, "legacy-date-1", (ns(1),), "DATE", "INT96", legacy=True, rule="time-calendar")


def _spark(
    spark: Any, name: str, times: Times, kind: str, stored: str, *, legacy: bool = False, rule: str | None = None
) -> Specimen:
    def write(path: Path) -> None:
        session, mode = spark.newSession(), "LEGACY" if legacy else "CORRECTED"
        session.conf.set("spark.sql.parquet.outputTimestampType", stored)
        session.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", mode)
        session.conf.set("spark.sql.parquet.int96RebaseModeInWrite", mode)
        rows = [(us, n, "ab"[n % 2]) for n, us in enumerate(in_unit(times, "us"))]
        frame = session.createDataFrame(rows, "us bigint, n bigint, k string")
        made = frame.selectExpr(f"CAST(timestamp_micros(us) AS {kind}) AS t", "n", "k")
        directory = path.with_name(f".{path.name}.made")
        made.coalesce(1).write.parquet(str(directory))
        next(directory.glob("part-*.parquet")).rename(path)

    return Specimen(f"spark-{name}", times, write, rule)


def written_otherwise() -> Iterator[Specimen]:
    """As a table with the columns `t`, `n BIGINT` and `k STRING` may have them: narrower, in another order."""
    us = timestamps(MODERN, "us")
    plain = columns(MODERN, us, more=us)
    for name, table in {
        "reordered": plain.select(["k", "more", "n", "t"]),
        "narrower": plain.set_column(1, "n", plain.column("n").cast(pa.int32())),
        "narrowest": plain.set_column(1, "n", plain.column("n").cast(pa.int8())),
        "text-view": plain.set_column(2, "k", plain.column("k").cast(pa.string_view())),
        "dictionary": plain.set_column(2, "k", plain.column("k").dictionary_encode()),
    }.items():
        yield Specimen(f"otherwise-{name}", MODERN, lambda path, t=table: pq.write_table(t, path))


def not_as_declared() -> Iterator[Specimen]:
    """As a table with the columns `t`, `n BIGINT` and `k STRING` may not have them, whatever else the file has."""
    plain = columns(MODERN, timestamps(MODERN, "us"), more=pa.array(range(len(MODERN))))
    for name, table in {
        "lacks-k": plain.drop_columns("k"),
        "lacks-n-and-k": plain.select(["t", "more"]),
        "has-k-as-K": plain.rename_columns(["t", "n", "K", "more"]),
        "has-k-inside": plain.drop_columns("k").append_column("x", pa.array([{"k": "a"}] * len(MODERN))),
        "has-k-as-number": plain.set_column(2, "k", plain.column("n")),
        "has-n-as-text": plain.set_column(1, "n", plain.column("n").cast(pa.string())),
        "has-n-wider": plain.set_column(1, "n", plain.column("n").cast(pa.float64())),
        "has-k-of-nothing": plain.set_column(2, "k", pa.nulls(len(MODERN))),
    }.items():
        yield Specimen(name, MODERN, lambda path, t=table: pq.write_table(t, path), "schema")
    without = plain.drop_columns("t")
    yield Specimen("lacks-t", MODERN, lambda path: pq.write_table(without, path), "no-time-column")


def without_spark() -> list[Specimen]:
    return [*by_arrow(), *odd_columns(), *stored_oddly(), *refused(), *by_pandas(), *by_duckdb()]
