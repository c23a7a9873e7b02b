"""What queries are planned on: current where it must be, held while it is read, cheap to get."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from floodmark.core.buckets import Cause, State
from floodmark.core.errors import Unavailable
from floodmark.core.garbage import AttemptFile, Sighting, Terms, Why, judge, seeing
from floodmark.core.intervals import Interval
from floodmark.core.tables import TableDefinition
from floodmark.core.transitions import Mode
from floodmark.ledger import paths
from floodmark.ledger.registry import Snapshot
from floodmark.ledger.store import Node, Set
from floodmark.query.desk import Desk
from floodmark.query.pictures import Pictures
from floodmark.query.plan import Bounded, QueryPlan, Strict
from floodmark.query.plan import Why as FromBase
from floodmark.query.planner import plan
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, Kit, segment
from tests.support.memory_store import MemoryStore

SELECT = "SELECT date_trunc('HOUR', event_time) AS hour, count(*) AS rides FROM rides GROUP BY 1"
COUNT = "SELECT count(*) FROM rides WHERE event_time IS NOT NULL"
TURN_MS = 300_000
HOLD_MS = 3 * TURN_MS  # time stands still for its keeper, which renews it in real time


class CountingStore(MemoryStore):
    """Counts the round trips of reads, and can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.trips: list[str] = []
        self.away = False

    def _trip(self, what: str) -> None:
        if self.away:
            raise Unavailable("the store is away")
        self.trips.append(what)

    def read_current(self, path: str) -> Node | None:
        self._trip(f"current {path}")
        return self.nodes.get(path)

    def read_many(self, wanted: list[str]) -> list[Node | None]:  # type: ignore[override]
        self._trip(f"read {len(wanted)}")
        return [self.nodes.get(path) for path in wanted]

    def read(self, path: str) -> Node | None:
        self._trip(f"read {path}")
        return self.nodes.get(path)

    def children(self, path: str) -> list[str]:
        self._trip(f"children {path}")
        return super().children(path)


class Place:
    """A table of six hours with a view of them, and a desk before it."""

    def __init__(self) -> None:
        self.store = CountingStore()
        self.kit = Kit(self.store)
        columns = (("event_time", "timestamp[us, tz=UTC]"), ("n", "int64"))
        self.kit.ledger.registry.create_table(replace(TABLE, columns=columns))
        self.kit.ledger.views.create(replace(VIEW, select=SELECT), coverage_start_ms=0)
        for hour in range(6):
            self.kit.put(segment(f"s{hour}", hour, hour + 1, timeless_rows=0))
            self.kit.append(hour)
        self.pictures = Pictures(self.store)
        ledger = self.kit.ledger
        self.desk = Desk(
            ledger.registry, ledger.holds, self.pictures, self.kit.clock, reader="broker-1", hold_ms=HOLD_MS,
            turn_ms=TURN_MS,
        )  # fmt: skip

    def plan(self, freshness: Strict | Bounded | None = None, select: str = COUNT) -> QueryPlan:
        wanted = freshness or Strict()
        with self.desk.reading(["rides"], wanted) as reading:
            return plan(select, tables=reading.tables, views=reading.views, freshness=wanted, now_ms=reading.at_ms)

    def from_base(self, freshness: Strict | Bounded | None = None) -> dict[int, FromBase]:
        """The hours that are read from base, each with its reason."""
        return {
            hour: told.why
            for told in self.plan(freshness).receipt.from_base
            if told.interval is not None
            for hour in range(told.interval.start_ms // HOUR_MS, told.interval.end_ms // HOUR_MS)
        }


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.store.away = False
    made.desk.close()


def test_a_strict_query_costs_one_round_trip(place: Place) -> None:
    """However many buckets it looks at: the table's header says whether anything moved."""
    place.plan()
    place.store.trips.clear()
    made = place.plan()
    assert place.store.trips == [f"current {paths.table('rides')}"]
    assert made.receipt.buckets_from_view == 6


def test_a_change_that_was_tended_to_costs_the_next_query_no_more(place: Place) -> None:
    """Slices and entries are read beside the queries, not by them."""
    place.plan()
    place.kit.put(segment("late", 2, 3, timeless_rows=0))
    place.kit.mark(4)
    place.desk.tend()
    place.store.trips.clear()
    assert place.from_base() == {2: FromBase.CHANGED_SINCE, 4: FromBase.STALE}
    assert len(place.store.trips) == 1


def test_a_bounded_query_that_was_proven_lately_costs_none(place: Place) -> None:
    place.plan()
    place.store.trips.clear()
    place.plan(Bounded(10_000))
    assert place.store.trips == []
    place.kit.clock.ms += 20_000
    place.plan(Bounded(10_000))
    assert len(place.store.trips) == 1


@pytest.mark.scenario("Q6")
def test_a_change_registered_just_before_a_strict_query_is_reflected_without_any_mark(place: Place) -> None:
    """Q6. The bucket is still VALID, and nobody has looked at it since."""
    assert place.from_base() == {}
    place.kit.put(segment("late", 2, 3, timeless_rows=0))
    assert place.kit.state(2) is State.VALID
    made = place.plan()
    assert [f.path for s in made.sources if s.of == "rides" for f in s.files] == ["late.parquet", "s2.parquet"]
    assert place.from_base() == {2: FromBase.CHANGED_SINCE}


@pytest.mark.scenario("Q6")
def test_a_segment_too_long_for_slices_changes_every_bucket_that_it_overlaps(place: Place) -> None:
    """Q6. It is listed apart from the slices of its days, and their versions do not move."""
    assert place.from_base() == {}
    place.kit.put(segment("wide", 2, 24 * 20, timeless_rows=0))
    found = {hour: why for hour, why in place.from_base().items() if hour < 6}
    assert found == dict.fromkeys(range(2, 6), FromBase.CHANGED_SINCE)


def test_a_bounded_query_goes_by_when_the_registry_was_asked_for_not_by_when_it_came(place: Place) -> None:
    """A change registered while the answer was on its way is in it or not; only what was there before surely is."""
    place.plan()
    read = place.kit.ledger.registry.snapshot

    def slowly(table: str, *, synced: bool = False) -> Snapshot:
        found = read(table, synced=synced)
        place.kit.clock.ms += 20_000
        return found

    place.kit.ledger.registry.snapshot = slowly  # type: ignore[method-assign]
    place.desk.tend()
    place.kit.ledger.registry.snapshot = read  # type: ignore[method-assign]
    place.store.trips.clear()
    place.plan(Bounded(10_000))
    assert len(place.store.trips) == 1


def test_a_change_elsewhere_in_the_slice_leaves_a_bucket_usable(place: Place) -> None:
    """Slices move for all buckets of a day; their fingerprints do not."""
    place.kit.put(segment("late", 2, 3, timeless_rows=0))
    assert place.plan().receipt.buckets_from_view == 5


@pytest.mark.scenario("Q5")
def test_states_are_told_apart_in_the_receipt(place: Place) -> None:
    """Q5: stale with its cause, changed since, vacant."""
    place.plan()
    place.kit.mark(1, event_id="e7")
    place.kit.put(segment("late", 3, 4, timeless_rows=0), segment("next", 6, 7, timeless_rows=0))
    place.desk.tend()
    told = {r.why: r for r in place.plan().receipt.from_base}
    assert set(told) == {FromBase.STALE, FromBase.CHANGED_SINCE, FromBase.VACANT}
    cause = told[FromBase.STALE].cause
    assert cause is not None
    assert cause.event_id == "e7"


def test_an_entry_that_was_replaced_is_used_as_long_as_the_source_is_the_same(place: Place) -> None:
    """The picture is late, and its files hold the right rows all the same."""
    before = place.plan()
    place.kit.mark(1)
    place.kit.refresh(1, attempt="again")
    late = place.plan()
    assert late.sources[0].files == before.sources[0].files
    place.desk.tend()
    assert "again/1-0.parquet" in {f.path for f in place.plan().sources[0].files}


def test_a_rebuilt_bucket_is_used_after_the_next_look(place: Place) -> None:
    place.plan()
    place.kit.put(segment("late", 2, 3, timeless_rows=0))
    place.kit.mark(2)
    place.kit.refresh(2)
    place.desk.tend()
    assert place.from_base() == {}


def test_a_bounded_query_takes_a_bucket_that_lacks_a_young_change(place: Place) -> None:
    """What changed less than the bound ago may be missing, and not what changed before."""
    place.plan()
    place.kit.clock.ms += 5_000
    place.kit.put(segment("late", 2, 3, timeless_rows=0))
    place.kit.mark(2)
    place.desk.tend()
    assert place.from_base() == {2: FromBase.STALE}
    assert place.from_base(Bounded(10_000)) == {}
    place.kit.clock.ms += 20_000
    assert place.from_base(Bounded(10_000)) == {2: FromBase.STALE}


def test_a_bounded_query_does_not_take_what_someone_asked_to_be_rebuilt(place: Place) -> None:
    """Its source has not changed at all, and yet its files are not trusted."""
    place.plan()
    place.kit.put(segment("late", 2, 3, timeless_rows=0))
    hour_two = Interval(2 * HOUR_MS, 3 * HOUR_MS)
    place.kit.ledger.views.mark_stale("rides_hourly", [hour_two], Cause("refresh", "someone", 1))
    place.desk.tend()
    place.plan()
    assert place.from_base(Bounded(600_000)) == {2: FromBase.STALE}


# -- holds -------------------------------------------------------------------------------------------------------------


def held(place: Place) -> list[int]:
    return sorted(h.taken_at_ms for h in place.kit.ledger.holds.all("rides"))


def test_many_queries_share_one_hold(place: Place) -> None:
    for _ in range(5):
        place.plan()
    assert len(held(place)) == 1


def test_a_turn_takes_another_hold_and_lets_go_of_the_old_one_when_its_queries_have_ended(place: Place) -> None:
    """INV-11: what a running query was planned on stays, and what nobody reads can go."""
    start_ms = place.kit.clock.now_ms()
    with place.desk.reading(["rides"], Strict()) as reading:
        place.kit.clock.ms += TURN_MS
        place.desk.tend()
        assert held(place) == [start_ms, start_ms + TURN_MS]
        assert reading.stands
    assert held(place) == [start_ms + TURN_MS]


def test_the_old_hold_stands_while_everything_is_read_again(place: Place) -> None:
    """INV-11: a query that begins meanwhile is planned on what only the old hold protects."""
    start_ms = place.kit.clock.now_ms()
    place.plan()
    while_reading = []
    registry, attend = place.kit.ledger.registry.snapshot, place.pictures.attend

    def reading_the_registry(table: str, *, synced: bool = False) -> Snapshot:
        while_reading.append(held(place))
        return registry(table, synced=synced)

    def reading_the_views(definition: TableDefinition) -> None:
        while_reading.append(held(place))
        attend(definition)
        while_reading.append(held(place))

    place.kit.clock.ms += TURN_MS
    place.kit.ledger.registry.snapshot = reading_the_registry  # type: ignore[method-assign]
    place.pictures.attend = reading_the_views  # type: ignore[method-assign]
    place.desk.tend()
    assert while_reading[:3] == [[start_ms, start_ms + TURN_MS]] * 3, "the new one is taken first, the old one stands"
    assert held(place) == [start_ms + TURN_MS]


def test_a_turn_that_cannot_read_leaves_the_old_hold_in_use(place: Place) -> None:
    """INV-11, INV-14: the next one tries again; until then queries begin under the hold there is."""
    start_ms = place.kit.clock.now_ms()
    attend = place.pictures.attend

    def away(_: TableDefinition) -> None:
        raise Unavailable("the store is away")

    with place.desk.reading(["rides"], Strict()) as reading:
        place.kit.clock.ms += TURN_MS
        place.pictures.attend = away  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            place.desk.tend()
        assert reading.stands
        assert held(place) == [start_ms]
    place.plan()
    assert held(place) == [start_ms]
    place.pictures.attend = attend  # type: ignore[method-assign]
    place.desk.tend()
    assert held(place) == [start_ms + TURN_MS]


def test_a_turn_reads_the_entries_again_after_taking_its_hold(place: Place) -> None:
    """SUBTLE in desk.py: a picture older than the hold may name a file that died before it.

    The watch is made deaf; without the second reading the file of the old attempt would still be planned.
    """
    place.plan()
    place.store._data_watches.clear()
    place.store._child_watches.clear()
    place.kit.mark(1)
    place.kit.refresh(1, attempt="again")
    died_ms = place.kit.clock.now_ms()
    place.kit.clock.ms += TURN_MS
    place.desk.tend()
    place.desk.tend()
    files = {f.path for f in place.plan().sources[0].files}
    old = AttemptFile("a1/1-0.parquet", HOUR_MS, "a1", 1, 0)
    verdict = judge(
        old, Sighting(died_ms, died_ms), holds=place.kit.ledger.holds.all("rides"),
        now_ms=place.kit.clock.now_ms() + 86_400_000, terms=Terms(1, 1),
    )  # fmt: skip
    assert verdict.why is Why.GARBAGE, "the janitor may delete it now"
    assert old.path not in files
    assert "again/1-0.parquet" in files


def test_a_lost_hold_is_noticed_by_a_running_query_and_taken_anew_by_the_next(place: Place) -> None:
    """A process that was frozen for longer than its hold stands."""
    with place.desk.reading(["rides"], Strict()) as reading:
        assert reading.stands
        place.kit.clock.ms += HOLD_MS + 1
        assert not reading.stands
    place.kit.ledger.holds.remove_expired("rides")
    with place.desk.reading(["rides"], Strict()) as reading:
        assert reading.stands
    assert held(place) == [place.kit.clock.now_ms()]


def test_a_retired_segment_that_a_running_query_lists_is_held(place: Place) -> None:
    """INV-11, for segments: forgotten after the query's registry was read, so the hold's version is lower."""
    with place.desk.reading(["rides"], Strict()) as reading:
        retired = place.kit.ledger.retention.retire("rides", before_ms=HOUR_MS, batch_max=10)
        assert retired is not None
        assert "s0.parquet" in {s.path for s in reading.tables[0].everything()}
        assert seeing(place.kit.ledger.holds.all("rides"), retired.version)


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_a_look_that_fails_is_made_up_for_by_the_next(place: Place) -> None:
    """Watches fire once: what they told must not be forgotten because the store was away."""
    place.plan()
    place.kit.mark(1)
    place.store.away = True
    with pytest.raises(Unavailable):
        place.desk.tend()
    place.store.away = False
    place.desk.tend()
    assert place.from_base() == {1: FromBase.STALE}


def test_the_name_of_a_view_is_as_good_as_its_tables(place: Place) -> None:
    with place.desk.reading(["rides_hourly", "rides", "nowhere"], Strict()) as reading:
        assert [table.definition.name for table in reading.tables] == ["rides"]
        made = plan(
            "SELECT * FROM rides_hourly",
            tables=reading.tables,
            views=reading.views,
            freshness=Strict(),
            now_ms=reading.at_ms,
        )
    assert (made.receipt.view, made.receipt.rewrite) == ("rides_hourly", "exact")


def test_a_view_that_was_dropped_is_not_used(place: Place) -> None:
    place.plan()
    place.kit.ledger.views.drop("rides_hourly")
    place.desk.tend()
    assert place.plan().receipt.view is None


@pytest.mark.scenario("Q9")
def test_a_view_made_anew_elsewhere_is_read_where_it_is(place: Place) -> None:
    """Q9: never the files of one incarnation in the place of the other."""
    place.plan()
    place.kit.ledger.views.drop("rides_hourly")
    moved = replace(VIEW, select=SELECT, location="/lake/elsewhere")
    place.kit.ledger.views.create(moved, coverage_start_ms=0)
    place.kit.append(0, attempt="new")
    place.desk.tend()
    (view, _base) = place.plan().sources
    assert (view.location, [f.path for f in view.files]) == ("/lake/elsewhere", ["new/0-0.parquet"])


def test_a_view_replaced_in_one_write_by_one_of_another_table_is_not_its_tables_any_more(place: Place) -> None:
    """Between the two there is no moment at which it is gone."""
    place.plan()
    ledger = place.kit.ledger
    ledger.registry.create_table(replace(TABLE, name="trips", location="/lake/trips"))
    before = place.kit.header.incarnation
    ledger.views.create(replace(VIEW, table="trips", select="SELECT 1"), coverage_start_ms=0, replacing=before)
    place.desk.tend()
    assert place.pictures.of("rides") == ()
    assert place.plan().receipt.view is None


def test_a_view_reborn_between_its_header_and_its_shards_is_not_mixed_up(place: Place) -> None:
    """SUBTLE in pictures.py, step by step."""
    read_watched, done = place.store.read_watched, []

    def reborn_meanwhile(wanted, on_change):  # type: ignore[no-untyped-def]
        if "/shards/" in "".join(wanted) and not done:
            done.append(True)
            place.kit.ledger.views.drop("rides_hourly")
            moved = replace(VIEW, select=SELECT, location="/lake/elsewhere")
            place.kit.ledger.views.create(moved, coverage_start_ms=0)
            place.kit.append(0, attempt="new")
        return read_watched(wanted, on_change)

    # Watches are late: nothing but the second look at the header can tell.
    place.store._tell = lambda watches, path: None  # type: ignore[method-assign]

    place.store.read_watched = reborn_meanwhile  # type: ignore[method-assign]
    for _ in range(3):
        for source in place.plan().sources:
            old_place = source.location == "/lake/views/rides_hourly"
            wrong = old_place and "new/0-0.parquet" in {f.path for f in source.files}
            assert not wrong, "a file of the new view is looked for where the old one lay"
        place.desk.tend()
    assert done
    assert place.plan().sources[0].location == "/lake/elsewhere"


def test_a_view_whose_definition_cannot_be_analysed_is_named_with_the_reason(place: Place) -> None:
    place.kit.ledger.views.create(
        replace(VIEW, name="odd", location="/lake/odd", select="SELECT rand() AS r FROM rides"), coverage_start_ms=0
    )
    unused = {u.view: (u.rule, u.message) for u in place.plan().receipt.unused}
    assert unused["odd"][0] == "no-definition"
    assert "nondeterministic" in unused["odd"][1]


def test_a_damaged_table_is_no_reason_to_neglect_the_others(place: Place) -> None:
    """INV-14."""
    other = replace(TABLE, name="another", location="/lake/another", columns=(("event_time", "int64"),))
    place.kit.ledger.registry.create_table(other)
    for name in ("another", "rides"):
        with place.desk.reading([name], Strict()):
            pass
    place.store.commit([Set(paths.table("another"), b"damage", -1)])
    place.kit.clock.ms += TURN_MS
    place.desk.tend()
    assert held(place) == [place.kit.clock.now_ms()]


def test_a_dropped_table_is_unknown_and_no_longer_tended(place: Place) -> None:
    place.plan()
    place.kit.ledger.views.drop(VIEW.name)
    place.kit.ledger.dropping.drop("rides")
    with capture_logs() as logs:
        place.desk.tend()
        place.desk.tend()
    assert logs == []
    with place.desk.reading(["rides"], Strict()) as reading:
        assert reading.tables == ()


@pytest.mark.parametrize("tended", [False, True])
def test_a_table_created_again_is_read_as_what_it_is_now_under_a_hold_of_its_own(place: Place, *, tended: bool) -> None:
    """Whatever was known of the old one: its files, its columns, the answer for queries that accept older versions."""
    bounded = Bounded(10_000)
    place.plan(bounded)
    place.kit.ledger.views.drop(VIEW.name)
    place.kit.ledger.dropping.drop("rides")
    again = replace(TABLE, location="/lake/elsewhere", columns=(("event_time", "timestamp[us, tz=UTC]"),))
    place.kit.ledger.registry.create_table(again)
    place.kit.put(segment("new", 0, 1, timeless_rows=0))
    place.kit.clock.ms += 20_000
    if tended:
        place.desk.tend()
    for freshness in (Strict(), bounded):
        made = place.plan(freshness)
        assert [(source.location, [f.path for f in source.files]) for source in made.sources] == [
            ("/lake/elsewhere", ["new.parquet"])
        ]
    (hold,) = place.kit.ledger.holds.all("rides")
    assert hold.registry_version >= place.kit.ledger.registry.header("rides").version


def test_a_view_of_the_old_table_that_is_still_pictured_serves_nothing_of_the_new(place: Place) -> None:
    """The watch that tells of the drops is late; the slices have the same versions, and are others."""
    place.plan()
    seen = place.pictures.of("rides")
    place.kit.ledger.views.drop(VIEW.name)
    place.kit.ledger.dropping.drop("rides")
    columns = (("event_time", "timestamp[us, tz=UTC]"), ("n", "int64"))
    place.kit.ledger.registry.create_table(replace(TABLE, columns=columns))
    for hour in range(6):
        place.kit.put(segment(f"other{hour}", hour, hour + 1, crc=9, timeless_rows=0))
    with place.desk.reading(["rides"], Strict()) as reading:
        made = plan(COUNT, tables=reading.tables, views=seen, freshness=Strict(), now_ms=reading.at_ms)
    assert made.receipt.view is None


def test_a_table_defined_before_its_first_file_has_the_columns_of_its_files(tmp_path: Path) -> None:
    """And its views are understood by them, as soon as they are known."""
    kit = Kit(CountingStore())
    kit.ledger.registry.create_table(replace(TABLE, location=str(tmp_path)))
    select = "SELECT Zone, sum(n) AS total FROM rides GROUP BY Zone"
    kit.ledger.views.create(replace(VIEW, select=select), coverage_start_ms=0)
    desk = Desk(kit.ledger.registry, kit.ledger.holds, Pictures(kit.store), kit.clock, reader="b", turn_ms=1)  # type: ignore[arg-type]
    ask = "SELECT zone, sum(n) FROM rides WHERE event_time < 99999999 GROUP BY zone"
    with desk.reading(["rides"], Strict()) as reading:
        plan(ask, tables=reading.tables, views=reading.views, freshness=Strict(), now_ms=reading.at_ms)
    pq.write_table(
        pa.table({"event_time": pa.array([1], pa.int64()), "zone": ["a"], "n": [2]}), tmp_path / "s0.parquet"
    )
    kit.put(segment("s0", 0, 1, timeless_rows=0))
    kit.append(0)
    with desk.reading(["rides"], Strict()):
        pass
    kit.clock.ms += 2
    desk.tend()
    with desk.reading(["rides"], Strict()) as reading:
        made = plan(ask, tables=reading.tables, views=reading.views, freshness=Strict(), now_ms=reading.at_ms)
    assert made.receipt.view == "rides_hourly", made.receipt.unused
    desk.close()


def test_an_emptied_bucket_is_read_as_empty(place: Place) -> None:
    """VALID-empty: processed, and the source has nothing; it is not read from base."""
    place.kit.remove("s2")
    place.kit.mark(2)
    assert place.kit.commit_one(place.kit.build(2, Mode.DELETE, "cleared"))
    place.plan()
    place.desk.tend()
    assert place.from_base() == {}
