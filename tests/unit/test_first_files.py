"""What a table is over before and after its first file: what is still open, who settles it, and what stays refused."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.catalog.definitions import TableRequest, ViewRequest, create_table, create_view
from floodmark.core.column_types import NANOS
from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval
from floodmark.ledger.ledger import Ledger
from floodmark_ingester.registrar import Registrar, Request
from floodmark_worker import views
from floodmark_worker.views import ViewBuilders
from tests.support.ledger_kit import HOUR_MS, Kit
from tests.support.memory_store import MemoryStore

DAY_S = 86_400
SECONDS = [19_844 * DAY_S, 19_845 * DAY_S]
TIMES = pa.array([SECONDS[0] * 1_000], pa.int64())
US, NS = (TIMES.cast(pa.timestamp("ms")).cast(pa.timestamp(unit)) for unit in ("us", "ns"))
NTZ, LTZ, BIGINT = "timestamp[us]", "timestamp[us, tz=UTC]", "int64"


class Place:
    """A table, and files that are registered as they are written."""

    def __init__(self, location: Path) -> None:
        self.location = location
        self.store = MemoryStore()
        self.ledger = Kit(self.store).ledger
        self.registrar = Registrar(Kit(self.store, seed=2).ledger, ThreadPoolExecutor(2), lambda _: None)

    def create(self, *columns: tuple[str, str], **properties: str) -> None:
        create_table(self.ledger, TableRequest("rides", str(self.location), "t", columns, properties=properties))

    def write(self, path: str, **columns: Any) -> str:
        pq.write_table(pa.table(columns), self.location / path)
        return path

    def register(self, path: str, **columns: Any) -> str | None:
        """The rule that refuses the file."""
        self.write(path, **columns)
        (trouble,) = self.registrar.register([Request("rides", "add", path, None, None, "1" * 32)])
        listed = {file.path: file.rule for file in self.ledger.refusals.read("rides").files}
        assert listed.get(path) == getattr(trouble, "rule", None), "who asks for refused files is told the same"
        return listed.get(path)

    @property
    def columns(self) -> dict[str, str]:
        return dict(self.ledger.registry.header("rides").definition.columns)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# -- what whole numbers count ------------------------------------------------------------------------------------------


@pytest.mark.scenario("I7")
@pytest.mark.parametrize("declared", [(), (("t", BIGINT),)], ids=["no-columns", "bigint"])
def test_seconds_in_a_table_that_was_there_first_are_refused(place: Place, declared: Any) -> None:
    place.create(*declared)
    assert place.register("a", t=SECONDS) == "time-unit"


@pytest.mark.scenario("I7")
@pytest.mark.parametrize("times", [SECONDS, [0, *SECONDS]], ids=["seconds", "with-a-0-for-unknown"])
def test_seconds_after_milliseconds_are_refused(place: Place, times: list[int]) -> None:
    """Each file is judged by its own numbers, whatever the one that the table was created over held."""
    place.write("a.parquet", t=TIMES)
    place.create()
    assert (place.register("a.parquet", t=TIMES), place.register("b.parquet", t=times)) == (None, "time-unit")


@pytest.mark.scenario("I7")
def test_with_a_declared_unit_every_number_is_what_it_is(place: Place) -> None:
    place.create(time_unit="ms")
    assert place.register("a", t=SECONDS) is None
    assert place.ledger.registry.header("rides").min_start_ms == SECONDS[0]


@pytest.mark.scenario("I7")
@pytest.mark.parametrize("times", [SECONDS, [0, *SECONDS]], ids=["seconds", "with-a-0-for-unknown"])
def test_a_table_is_judged_by_its_first_file_that_has_rows(place: Place, times: list[int]) -> None:
    place.write("0.parquet", t=pa.array([], pa.int64()))
    place.write("1.parquet", t=times)
    with pytest.raises(InvalidInput, match=r"^time-unit: column 't' of 1.parquet counts from"):
        place.create()


# -- how times are stored ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "zone", "stored"), [(NTZ, None, NANOS[False]), (LTZ, "UTC", NANOS[True]), (NTZ, "UTC", None)]
)
def test_the_first_file_settles_how_a_declared_time_is_stored(
    place: Place, declared: str, zone: str | None, stored: str | None
) -> None:
    """As when the file is there before the statement. What pandas writes has no other name in SQL."""
    place.create(("t", declared), ("n", "int64"))
    times = NS.cast(pa.timestamp("ns", zone))
    assert place.register("a", t=times, n=[1]) == (None if stored else "schema")
    assert place.columns == {"t": stored or declared, "n": "int64"}


def test_what_the_first_file_has_settled_stays(place: Place) -> None:
    """A table has nanoseconds in all of its files or in none, also when all of them have gone meanwhile."""
    place.create(("t", NTZ), ("u", NTZ))
    assert place.register("a", t=NS, u=US) is None
    assert place.register("b", t=US, u=US) == "schema"
    place.registrar.register([Request("rides", "delete", "a", None, None, "1" * 32)])
    assert place.ledger.registry.header("rides").segment_count == 0
    assert (place.register("c", t=US, u=US), place.register("d", t=NS, u=US)) == ("schema", None)
    assert place.columns == {"t": NANOS[False], "u": NTZ}


def test_of_two_first_files_in_one_batch_one_settles_it(place: Place) -> None:
    place.create(("t", NTZ))
    requests = [Request("rides", "add", place.write(path, t=times), None, None, "1" * 32) for path, times in
                (("a", NS), ("b", US), ("c", NS))]  # fmt: skip
    assert [getattr(trouble, "rule", None) for trouble in place.registrar.register(requests)] == [None, "schema", None]
    assert place.columns == {"t": NANOS[False]}


def test_a_worker_that_met_the_table_before_its_first_file_builds_with_what_that_settled(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not with what the first file it reads happens to have, which may be narrower."""
    place.create()
    header = create_view(place.ledger, ViewRequest("v", "rides", "1h", "SELECT count(*) AS c FROM rides", "/lake/v"))
    place.ledger.registry.read_window("rides", Interval(0, HOUR_MS))
    builder = ViewBuilders(None, None, place.ledger, None, by_content=False).of(header)  # type: ignore[arg-type]
    assert place.register("a", t=US, n=pa.array([1], pa.int64())) is None
    assert place.register("b", t=US, n=pa.array([1], pa.int32())) is None
    seen: dict[str, Any] = {}
    monkeypatch.setattr(views, "Materializer", lambda *_, **told: seen.update(told))
    builder._prepared(place.ledger.registry.snapshot("rides").by_name["b"])
    assert seen["columns"] == {"t": NTZ, "n": "int64"}


# -- columns -----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("I7")
@pytest.mark.parametrize(
    "nothing", [pa.nulls(1), pa.array([[]]), pa.array([{"a": None}])], ids=["null", "list", "struct"]
)
def test_a_column_without_a_type_does_not_become_numbers_for_ever(place: Place, nothing: pa.Array) -> None:
    """pandas writes `null` for a column of None. Spark reads it as numbers only: text in later files would not fit."""
    place.create()
    assert place.register("a", t=US, note=nothing) == "column-type"
    assert place.register("b", t=US, note=["text"]) is None
    assert place.register("a", t=US, note=nothing) == "schema"
    assert place.columns["note"] == "string"


def test_a_column_without_a_type_fits_under_numbers_and_beside_what_the_table_has(place: Place) -> None:
    place.create(("t", NTZ), ("n", "int64"))
    assert place.register("a", t=US, n=pa.nulls(1), note=pa.nulls(1)) is None


@pytest.mark.scenario("I7")
@pytest.mark.parametrize("names", [("n", "N"), ("n", "n")])
def test_a_file_with_one_name_twice_gives_no_table_its_columns(place: Place, names: tuple[str, str]) -> None:
    twice = pa.table([US, pa.array([1]), pa.array([2])], names=["t", *names])
    place.create()
    pq.write_table(twice, place.location / "a.parquet")
    (trouble,) = place.registrar.register([Request("rides", "add", "a.parquet", None, None, "1" * 32)])
    assert str(trouble).startswith("schema: a.parquet has columns named 'n' or that differ from it only in case")
    with pytest.raises(InvalidInput, match=r"^schema: table 'other' has columns named 'n'"):
        create_table(place.ledger, TableRequest("other", str(place.location), "t"))
    create_table(place.ledger, TableRequest("times", str(place.location), "t", (("t", NTZ),)))


def test_what_spark_cannot_decode_matters_only_in_columns_of_the_table(place: Place) -> None:
    place.create(("t", NTZ))
    table = pa.table({"t": US, "k": ["a"]})
    for path, codec in (("beside", {"t": "zstd", "k": "brotli"}), ("inside", {"t": "brotli", "k": "zstd"})):
        pq.write_table(table, place.location / path, compression=codec)
    requests = [Request("rides", "add", path, None, None, "1" * 32) for path in ("beside", "inside")]
    assert [getattr(trouble, "rule", None) for trouble in place.registrar.register(requests)] == [None, "encoding"]


# -- views -------------------------------------------------------------------------------------------------------------


def test_a_view_reads_no_column_of_a_table_that_has_none_yet(place: Place) -> None:
    """Nothing could check its names, and each of its buckets would fail once there are files."""

    def created(ledger: Ledger, name: str, select: str) -> str:
        request = ViewRequest(name, "rides", "1h", select, f"/lake/{name}")
        return create_view(ledger, request).definition.name

    place.create()
    select = "SELECT k, min(t) AS lo FROM rides GROUP BY k"
    with pytest.raises(InvalidInput, match=r"^no-columns: view 'v' reads column 'k' of table 'rides', which has no"):
        created(place.ledger, "v", select)
    assert created(place.ledger, "times", "SELECT count(*) AS c, min(T) AS lo FROM rides") == "times"
    assert place.register("a", t=US, k=["x"]) is None
    assert created(place.ledger, "v", select) == "v"
    with pytest.raises(InvalidInput, match=r"^unknown-column: "):
        created(place.ledger, "w", "SELECT sum(j) AS s FROM rides")
