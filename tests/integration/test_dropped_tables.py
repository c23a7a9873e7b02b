"""DROP TABLE: refused while views use it; and whoever knew the table before cannot take the next one for it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from floodmark.core.buckets import Entry, State
from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval
from floodmark.core.refusals import RefusedFiles
from floodmark.core.registry import Put
from floodmark.core.tables import RETENTION, TableDefinition
from floodmark.core.transitions import Changed, Mode
from floodmark.ledger import paths
from floodmark.ledger.inspection import kinds_of
from floodmark.ledger.store import Committed, Conflicted, Op, Store
from floodmark.parquet.lake import Lake
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, Kit, segment
from tests.support.memory_store import MemoryStore, Watched
from tests.support.yard import Yard

NAME = TABLE.name
HOUR = Interval(0, HOUR_MS)


def rule_of(act: object) -> str:
    with pytest.raises(InvalidInput) as refusal:
        act()  # type: ignore[operator]
    return refusal.value.rule


def below(store: Store, path: str) -> set[str]:
    found = set()
    for name in store.children(path):
        found |= {f"{path}/{name}"} | below(store, f"{path}/{name}")
    return found


@pytest.fixture
def table(store: Store) -> Kit:
    """A table without views, with data, holds and events."""
    kit = Kit(store)
    kit.ledger.registry.create_table(TABLE)
    kit.put(*(segment(f"s{n}", n, n + 1) for n in range(30)))
    kit.ledger.holds.take(NAME, "reader", ttl_ms=60_000)
    kit.ledger.refusals.update(NAME, {"odd.parquet": ("schema", "it does not fit")}, ())
    return kit


def test_a_dropped_table_is_gone_for_everyone(table: Kit) -> None:
    peer = Kit(table.store, seed=2)
    peer.ledger.registry.read_window(NAME, HOUR)
    peer.ledger.registry.snapshot(NAME)
    assert table.ledger.dropping.drop(NAME)
    for kit in (table, peer):
        registry = kit.ledger.registry
        assert registry.tables() == []
        assert kinds_of(kit.ledger, NAME) == []
        assert rule_of(lambda r=registry: r.header(NAME)) == "unknown-table"
        assert rule_of(lambda r=registry: r.snapshot(NAME)) == "unknown-table"
        assert rule_of(lambda r=registry: r.read_window(NAME, HOUR)) == "unknown-table"
        assert rule_of(lambda r=registry: r.set_properties(NAME, {})) == "unknown-table"
        assert rule_of(lambda k=kit: k.put(segment("late", 0, 1))) == "unknown-table"
        assert rule_of(lambda k=kit: k.ledger.holds.take(NAME, "reader", ttl_ms=1)) == "unknown-table"
        assert rule_of(lambda k=kit: k.ledger.views.create(VIEW)) == "unknown-table"
    assert not table.ledger.dropping.drop(NAME)
    assert not table.ledger.dropping.drop("never_was")
    (hold,) = table.ledger.holds.all(NAME)
    table.ledger.refusals.update(NAME, {"odd.parquet": ("schema", "it does not fit")}, ())
    assert below(table.store, paths.table(NAME)) == {
        paths.slices(NAME),
        paths.outbox(NAME),
        paths.holds(NAME),
        hold.path,
        paths.dependents(NAME),
    }, "a hold also protects the files of dropped views"


def test_a_table_that_views_use_is_not_dropped_and_the_refusal_names_them(kit: Kit) -> None:
    kit.ledger.views.create(replace(VIEW, name="daily"))
    with pytest.raises(InvalidInput, match="views daily, rides_hourly"):
        kit.ledger.dropping.drop(NAME)
    kit.ledger.views.drop("daily")
    with pytest.raises(InvalidInput, match=r"^table-in-use: table 'rides' is used by view rides_hourly; "):
        kit.ledger.dropping.drop(NAME)
    kit.ledger.views.drop(VIEW.name)
    assert kit.ledger.dropping.drop(NAME)


def test_a_table_of_the_same_name_begins_empty_and_is_another_one(table: Kit) -> None:
    """Other columns, another span, nothing of the old one; versions go on."""
    peer = Kit(table.store, seed=2)
    peer.ledger.registry.snapshot(NAME)
    peer.ledger.registry.read_window(NAME, HOUR)
    version = table.ledger.registry.header(NAME).version
    table.ledger.dropping.drop(NAME)
    again = TableDefinition(NAME, "/lake/elsewhere", "at", slice_span_ms=HOUR_MS, columns=(("at", "timestamp[us]"),))
    header = table.ledger.registry.create_table(again)
    assert (header.segment_count, header.min_start_ms, header.definition.location) == (0, None, "/lake/elsewhere")
    assert header.version > version
    assert table.ledger.registry.create_table(again) == header, "it exists now"
    assert rule_of(lambda: table.ledger.registry.create_table(TABLE)) == "table-exists"
    assert peer.ledger.registry.outbox(NAME) == []
    assert peer.ledger.refusals.read(NAME) == RefusedFiles()
    found = peer.ledger.registry.read_window(NAME, HOUR)
    assert found.segments == {}
    assert found.source.slice_versions == {"0@1": 0, "wide@1": 0}
    peer.put(segment("new", 0, 1))
    assert set(table.ledger.registry.snapshot(NAME).by_name) == {"new"}
    assert set(Kit(table.store, seed=3).ledger.registry.snapshot(NAME).by_name) == {"new"}
    (event,) = peer.ledger.registry.outbox(NAME)
    assert event.version > version


def test_a_process_that_remembers_the_old_table_commits_nothing_from_it(kit: Kit) -> None:
    """It goes by where the old slices were, finds that they are gone, and reads the new ones."""
    kit.put(segment("a", 0, 1))
    old = kit.build(0)
    worker = Kit(kit.store, seed=2)
    worker.ledger.registry.read_window(NAME, HOUR)
    kit.ledger.views.drop(VIEW.name)
    kit.ledger.dropping.drop(NAME)
    kit.ledger.registry.create_table(TABLE)
    incarnation = kit.ledger.views.create(VIEW, coverage_start_ms=0).incarnation
    kit.put(segment("b", 0, 1))
    assert not isinstance(worker.commit_one(old, incarnation), Changed)
    assert worker.states() == {}
    assert isinstance(worker.append(0), Changed)
    assert set(worker.ledger.registry.read_window(NAME, HOUR).segments) == {"b"}
    assert kit.source_differs() == []


def test_an_entry_built_from_the_old_table_is_never_taken_for_one_of_the_new(kit: Kit) -> None:
    """The versions it names are of other slices, though the numbers are the same."""
    kit.put(segment("a", 0, 1))
    kit.append(0)
    entry = kit.entry(0)
    assert entry is not None
    kit.ledger.views.drop(VIEW.name)
    kit.ledger.dropping.drop(NAME)
    kit.ledger.registry.create_table(TABLE)
    kit.put(segment("b", 0, 1))
    live = kit.ledger.registry.read_window(NAME, HOUR).source
    assert sorted(live.slice_versions.values()) == sorted(entry.slice_versions.values()), "or this tests nothing"
    assert live.slice_versions.keys().isdisjoint(entry.slice_versions)
    assert Entry(State.VALID, True, live.fingerprint, live.slice_versions) != entry


def test_an_event_of_the_old_table_that_is_acknowledged_late_takes_none_of_the_new(table: Kit) -> None:
    events = table.ledger.registry.outbox(NAME)
    table.ledger.dropping.drop(NAME)
    table.ledger.registry.create_table(TABLE)
    table.put(*(segment(f"s{n}", n, n + 1) for n in range(3)))
    for event in events:
        table.ledger.registry.acknowledge(NAME, event)
    assert len(table.ledger.registry.outbox(NAME)) == 1


def test_the_retention_of_the_old_table_is_not_that_of_the_new(store: Store) -> None:
    kit = Kit(store)
    kit.ledger.registry.create_table(replace(TABLE, properties={RETENTION: "1d"}))
    kit.ledger.dropping.drop(NAME)
    kit.ledger.registry.create_table(TABLE)
    kit.put(segment("a", 0, 1))
    assert kit.ledger.retention.retire(NAME, before_ms=100 * HOUR_MS, batch_max=9, generation=0) is None
    assert set(kit.ledger.registry.snapshot(NAME).by_name) == {"a"}


@dataclass
class Interrupted(Watched):
    """Dies after so many commits of its own."""

    left: int = 0

    def commit(self, ops: Sequence[Op]) -> Committed | Conflicted:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return super().commit(ops)

    def commit_many(self, writes: Sequence[Sequence[Op]]) -> list[object]:  # type: ignore[override]
        return [self.commit(ops) for ops in writes]


@pytest.mark.parametrize("commits", range(1, 8))
def test_a_drop_that_dies_anywhere_is_done_and_the_next_table_is_clean(commits: int) -> None:
    kit = Kit(MemoryStore())
    kit.ledger.registry.create_table(TABLE)
    kit.put(*(segment(f"s{n}", n * 24, n * 24 + 1) for n in range(5)))
    with pytest.raises(KeyboardInterrupt):
        Kit(Interrupted(kit.store, left=commits), seed=2).ledger.dropping.drop(NAME)
    assert kit.ledger.registry.tables() == []
    kit.ledger.registry.create_table(TABLE)
    fresh = Kit(kit.store, seed=3)
    assert dict(fresh.ledger.registry.snapshot(NAME).by_name) == {}
    assert fresh.ledger.registry.outbox(NAME) == []
    assert {p for p in below(kit.store, paths.slices(NAME)) if "@" not in p} == set()


@dataclass
class SlowToClear(Watched):
    """Stands still right before it looks what there is to delete."""

    meanwhile: Callable[[], None] = lambda: None

    def children(self, path: str) -> list[str]:
        if path == paths.slices(NAME):
            self.meanwhile()
        return super().children(path)


def test_clearing_away_that_goes_on_late_leaves_the_next_table_alone() -> None:
    """The table is dropped; before the dropper clears it away, the name is created again and filled."""
    kit = Kit(MemoryStore())
    kit.ledger.registry.create_table(TABLE)
    kit.put(segment("a", 0, 1))

    def created_again() -> None:
        kit.ledger.registry.create_table(TABLE)
        kit.put(segment("b", 0, 1))
        kit.ledger.holds.take(NAME, "reader", ttl_ms=60_000)

    assert Kit(SlowToClear(kit.store, meanwhile=created_again), seed=2).ledger.dropping.drop(NAME)
    assert set(Kit(kit.store, seed=3).ledger.registry.snapshot(NAME).by_name) == {"b"}
    assert len(kit.ledger.registry.outbox(NAME)) == 1
    assert len(kit.ledger.holds.all(NAME)) == 1


def test_a_view_that_uses_a_table_of_a_later_generation_lives_as_any_other(store: Store) -> None:
    kit = Kit(store)
    for _ in range(3):
        kit.ledger.registry.create_table(TABLE)
        kit.put(segment("a", 0, 2))
        kit.ledger.dropping.drop(NAME)
    header = kit.set_up()
    kit.put(segment("a", 0, 2), segment("wide", 0, 24 * 20))
    assert isinstance(kit.append(0), Changed)
    kit.ledger.registry.apply(NAME, [Put(segment("late", 0, 1))])
    kit.mark(0)
    assert isinstance(kit.refresh(0), Changed)
    assert kit.ledger.views.state(VIEW.name).entries[0].slice_versions.keys() == {"0@3", "wide@3"}
    assert isinstance(kit.commit_one(kit.build(1, Mode.APPEND, "x"), header.incarnation), Changed)
    assert kit.source_differs() == []


def test_a_janitor_that_knew_the_old_table_deletes_no_file_of_it_for_the_new(tmp_path: Path) -> None:
    """What is condemned of the new table lies below its own location; the old one has files of the same names."""
    yard = Yard(MemoryStore(), tmp_path, retention="1h")
    kit, old = yard.kit, yard.ledger.registry.header(NAME).definition
    yard.ledger.views.drop(VIEW.name)
    yard.ledger.dropping.drop(NAME)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    yard.ledger.registry.create_table(replace(old, location=str(elsewhere), generation=0))
    for place in (yard.base, elsewhere):
        yard.lay(place / "a.parquet")
        os.utime(place / "a.parquet", (1, 1))
    file = Lake(str(elsewhere)).file("a.parquet")
    assert file is not None
    kit.put(replace(segment("a", 0, 1), path="a.parquet", bytes=file.bytes, stamp=file.stamp))
    assert kit.ledger.retention.retire(NAME, before_ms=9 * HOUR_MS, batch_max=9, generation=1)
    yard.rounds.retirer.sweep(old)
    assert (yard.base / "a.parquet").exists()
    yard.pass_by()
    assert not (elsewhere / "a.parquet").exists(), "its own janitor deletes it"
    assert (yard.base / "a.parquet").exists()
