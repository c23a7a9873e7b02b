"""Files of real writers: each is found to hold what it holds, or refused by its rule."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.catalog.definitions import TableRequest, table_definition
from floodmark.core.column_types import INT96, TIME_UNITS, UNDECLARED, TimeUnit
from floodmark.core.errors import InvalidInput
from floodmark.parquet import inspection
from floodmark.parquet.inspection import Inspected, inspect
from floodmark.parquet.lake import Lake
from tests.support.ledger_kit import Kit
from tests.support.memory_store import MemoryStore
from tests.support.zoo import Specimen, not_as_declared, without_spark, written_otherwise

ZOO = without_spark()
DECLARED = (("t", "timestamp[us]"), ("n", "int64"), ("k", "string"))


def file_of(specimen: Specimen, directory: Path) -> Lake:
    specimen.write(directory / "a.parquet")
    return Lake(str(directory))


def looked_into(specimen: Specimen, lake: Lake) -> Inspected:
    unit = TIME_UNITS[specimen.unit] if specimen.unit else UNDECLARED
    return inspect(lake, "a.parquet", time_column=specimen.time_column, columns=(), time_unit=unit)


def check(specimen: Specimen, lake: Lake) -> None:
    if specimen.rule is not None:
        with pytest.raises(InvalidInput, match=rf"^{re.escape(specimen.rule)}: "):
            looked_into(specimen, lake)
        return
    found = looked_into(specimen, lake)
    assert (found.start_ms, found.last_ms) == specimen.range_ms
    assert (found.rows, found.timeless_rows) == (len(specimen.times), specimen.times.count(None))


@pytest.mark.scenario("I7")
@pytest.mark.parametrize("specimen", ZOO, ids=lambda s: s.name)
def test_a_file_is_registered_with_its_times_or_refused_by_its_rule(specimen: Specimen, tmp_path: Path) -> None:
    check(specimen, file_of(specimen, tmp_path))


@pytest.mark.scenario("I7")
@pytest.mark.parametrize(
    "specimen", [s for s in ZOO if s.rule not in ("time-all-null", "time-range")], ids=lambda s: s.name
)
def test_a_table_is_refused_over_files_it_could_never_register(specimen: Specimen, tmp_path: Path) -> None:
    """A table that is silently empty is worse than none."""
    file_of(specimen, tmp_path)
    request = TableRequest("zoo", str(tmp_path), specimen.time_column, properties=specimen.properties)
    ledger = Kit(MemoryStore()).ledger
    if specimen.rule is None:
        names = {name for name, _ in table_definition(ledger, request).columns}
        assert {specimen.time_column, "n", "k"} <= names | {"t"}
    else:
        with pytest.raises(InvalidInput, match=rf"^{re.escape(specimen.rule)}: "):
            table_definition(ledger, request)


@pytest.mark.scenario("I7")
@pytest.mark.parametrize("specimen", [*written_otherwise(), *not_as_declared()], ids=lambda s: s.name)
def test_a_file_fits_the_columns_of_its_table_or_is_refused_when_it_is_looked_into(
    specimen: Specimen, tmp_path: Path
) -> None:
    """In another order, beside others and narrower they fit. A missing one is refused: NULL would be no answer."""
    lake = file_of(specimen, tmp_path)

    def looked_into() -> Inspected:
        return inspect(lake, "a.parquet", time_column="t", columns=DECLARED)

    if specimen.rule is None:
        assert (looked_into().start_ms, looked_into().last_ms) == specimen.range_ms
        return
    with pytest.raises(InvalidInput, match=rf"^{re.escape(specimen.rule)}: a.parquet"):
        looked_into()


@pytest.mark.scenario("I7")
@pytest.mark.parametrize("specimen", [*written_otherwise(), *not_as_declared()], ids=lambda s: s.name)
def test_a_table_is_created_with_columns_that_its_file_has_and_with_no_others(
    specimen: Specimen, tmp_path: Path
) -> None:
    file_of(specimen, tmp_path)
    request = TableRequest("zoo", str(tmp_path), "t", columns=DECLARED)
    ledger = Kit(MemoryStore()).ledger
    if specimen.rule is None:
        assert [name for name, _ in table_definition(ledger, request).columns] == ["t", "n", "k"]
        return
    with pytest.raises(InvalidInput, match=rf"^{re.escape(specimen.rule)}: "):
        table_definition(ledger, request)


def test_with_int96_read_as_nanoseconds_the_zoo_finds_the_times_that_wrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: year 9999 is registered as 1816, and whatever prunes by it loses rows."""
    floor_ms = inspection._floor_ms

    def as_nanoseconds(value: int, kind: str, time_unit: TimeUnit) -> int:
        return value // 1_000_000 if kind == INT96 else floor_ms(value, kind, time_unit)

    def opened(source: pa.NativeFile) -> Any:
        return pq.ParquetFile(source, arrow_extensions_enabled=False)

    monkeypatch.setattr(inspection, "_floor_ms", as_nanoseconds)
    monkeypatch.setattr(inspection, "_opened", opened)
    wrong = set()
    for n, specimen in enumerate(ZOO):
        (tmp_path / str(n)).mkdir()
        try:
            check(specimen, file_of(specimen, tmp_path / str(n)))
        except AssertionError:
            wrong.add(specimen.name)
    years = ("1", "9999", "1677", "2262")
    assert wrong == {f"arrow-int96-{zoned}{year}" for zoned in ("", "zoned-") for year in years}
