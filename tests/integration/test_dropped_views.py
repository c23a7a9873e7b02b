"""Views that are dropped, replaced or imported: no file is left for ever, none is lost, and a name is never without its
view (INV-11, INV-13). On real files, in memory and on a real ZooKeeper."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

from floodmark.catalog.imports import LakeFiles
from floodmark.catalog.leftovers import findings
from floodmark.core.buckets import State
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.garbage import Terms
from floodmark.core.ports import SystemClock
from floodmark.core.tables import TableDefinition, ViewStatus
from floodmark.core.transitions import Mode, Reason, Rejected
from floodmark.ledger import exchange, paths, views
from floodmark.ledger.store import Committed, Conflicted, Op, Set, Store
from floodmark.sql.reading import read_statement
from floodmark_broker.commands import Commands
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, Kit, segment
from tests.support.memory_store import Faulty, MemoryStore, Watched
from tests.support.yard import GRACE_MS, SKEW_MS, TTL_MS, Yard

NAME = VIEW.name


@pytest.fixture
def yard(store: Store, tmp_path: Path) -> Yard:
    return made_yard(store, tmp_path)


def made_yard(store: Store, directory: Path) -> Yard:
    made = Yard(store, directory)
    made.kit.put(segment("a", 0, 5))
    return made


def notes(yard: Yard) -> list[str]:
    return yard.ledger.dropped.incarnations()


class Killed(BaseException):
    """As `kill -9` between two writes."""


@dataclass
class Mortal(Watched):
    """Dies before its n-th write from when it is armed."""

    left: int | None = None

    def commit(self, ops: Sequence[Op]) -> Committed | Conflicted:
        if self.left is not None:
            if self.left == 0:
                raise Killed
            self.left -= 1
        return super().commit(ops)


# -- the files of dropped views ----------------------------------------------------------------------------------------


def test_the_files_of_a_dropped_view_go_after_the_grace_period_and_its_note_after_them(yard: Yard) -> None:
    named, orphan = yard.write(0), yard.write(1)
    yard.commit(0, named)
    yard.ledger.views.drop(NAME)
    yard.pass_by(after_ms=GRACE_MS - 1)
    assert yard.files() == {named.name, orphan.name}
    yard.pass_by(after_ms=1)
    assert yard.files() == set()
    assert yard.metric("floodmark_files_deleted_total", kind="dropped view", of=NAME) == 2
    assert len(notes(yard)) == 1, "what was written while the others were deleted is looked for once more"
    yard.pass_by()
    assert notes(yard) == []


def test_files_of_others_at_the_location_of_a_dropped_view_stay(yard: Yard) -> None:
    alien = yard.lay(yard.view / "0" / "part-0.parquet")
    yard.ledger.views.drop(NAME)
    for _ in range(3):
        yard.pass_by(after_ms=GRACE_MS)
    assert (alien.exists(), notes(yard)) == (True, [])


def test_a_reader_of_a_dropped_view_keeps_its_files(yard: Yard) -> None:
    """It found them in an entry before the drop."""
    file = yard.write(0)
    yard.commit(0, file)
    reader = yard.hold("broker-1")
    yard.ledger.views.drop(NAME)
    yard.clock.sleep_ms(SKEW_MS + 1)
    later = yard.hold("broker-2")
    for _ in range(3):
        yard.pass_by(after_ms=GRACE_MS)
    assert yard.files() == {file.name}
    yard.ledger.holds.release(reader)
    yard.pass_by()
    assert yard.files() == set(), "who took a hold after the drop cannot have found them"
    yard.ledger.holds.release(later)


def test_what_an_attempt_writes_after_the_drop_is_found_too(yard: Yard) -> None:
    """Its hold stands, so the note does."""
    worker = yard.hold()
    yard.write(0)
    yard.ledger.views.drop(NAME)
    for _ in range(3):
        yard.pass_by(after_ms=GRACE_MS)
    late = yard.write(1)
    yard.ledger.holds.release(worker)
    yard.pass_by()
    assert yard.files() == {late.name}, "it is young"
    yard.pass_by(after_ms=GRACE_MS)
    yard.pass_by()
    assert (yard.files(), notes(yard)) == (set(), [])


def test_a_view_made_anew_in_the_same_place_keeps_its_files_and_inherits_the_others(yard: Yard) -> None:
    old = yard.write(0)
    yard.commit(0, old)
    yard.ledger.views.drop(NAME)
    yard.header = yard.ledger.views.create(replace(VIEW, location=str(yard.view)), coverage_start_ms=0)
    new = yard.write(0)
    yard.commit(0, new)
    for _ in range(4):
        yard.pass_by(after_ms=GRACE_MS)
    assert (yard.files(), notes(yard)) == ({new.name}, [])


def test_a_reader_of_a_view_that_was_made_anew_over_another_table_keeps_its_files(yard: Yard) -> None:
    """It holds the table that the view had when it read."""
    old = yard.write(0)
    yard.commit(0, old)
    reader = yard.hold("broker-1")
    yard.ledger.registry.create_table(TableDefinition("trips", str(yard.base) + "2", "event_time"))
    wanted = replace(VIEW, table="trips", location=str(yard.view))
    yard.ledger.views.create(wanted, coverage_start_ms=0, replacing=yard.header.incarnation)
    for _ in range(4):
        yard.pass_by(after_ms=GRACE_MS)
    assert yard.files() == {old.name}
    yard.ledger.holds.release(reader)
    yard.pass_by()
    assert yard.files() == set()


@pytest.mark.parametrize("below", ["", "0"])
def test_a_table_at_the_place_of_a_dropped_view_keeps_whatever_lies_there(yard: Yard, below: str) -> None:
    """In doubt it is kept, and the note with it."""
    file = yard.write(0)
    yard.ledger.views.drop(NAME)
    yard.ledger.registry.create_table(TableDefinition("trips", str(yard.view / below), "event_time"))
    for _ in range(3):
        yard.pass_by(after_ms=GRACE_MS)
    assert (yard.files(), len(notes(yard))) == ({file.name}, 1)


def test_a_view_that_cannot_be_read_may_stand_anywhere(yard: Yard) -> None:
    file = yard.write(0)
    yard.ledger.views.drop(NAME)
    yard.ledger.views.create(replace(VIEW, name="other", location=str(yard.view) + "2"))
    yard.kit.store.commit([Set(paths.view("other"), b"garbage", -1)])
    for _ in range(3):
        yard.pass_by(after_ms=GRACE_MS)
    assert (yard.files(), len(notes(yard))) == ({file.name}, 1)


def test_a_note_that_cannot_be_read_keeps_no_other_waiting(yard: Yard) -> None:
    """INV-14."""
    yard.ledger.views.create(replace(VIEW, name="other", location=str(yard.view) + "2"))
    other = yard.ledger.views.header("other").incarnation
    yard.write(0)
    yard.ledger.views.drop("other")
    yard.ledger.views.drop(NAME)
    yard.kit.store.commit([Set(paths.dropped(other), b"garbage", -1)])
    for _ in range(2):
        yard.pass_by(after_ms=GRACE_MS)
    assert (yard.files(), notes(yard)) == (set(), [other])


def test_a_location_that_is_not_there_is_waited_for(yard: Yard) -> None:
    """A disk that is not mounted has none of the files, and all of them."""
    file = yard.write(0)
    yard.ledger.views.drop(NAME)
    away = yard.view.rename(yard.view.with_name("away"))
    for _ in range(3):
        yard.pass_by(after_ms=GRACE_MS)
    away.rename(yard.view)
    assert yard.files() == {file.name}
    yard.pass_by()
    assert yard.files() == set()


def test_a_dry_run_tells_what_dropped_views_have_left(yard: Yard) -> None:
    file = yard.write(0)
    yard.ledger.views.drop(NAME)
    yard.clock.sleep_ms(GRACE_MS)
    (found,) = findings(yard.ledger, now_ms=yard.clock.now_ms(), terms=Terms(GRACE_MS, SKEW_MS))
    assert (found.owner, found.path, found.verdict) == (f"dropped view {NAME}", file.name, "delete")


def test_a_drop_that_is_killed_between_any_two_writes_leaves_the_view_or_its_note(tmp_path: Path) -> None:
    """And the janitor ends what was begun."""
    died = 0
    while True:
        store = Mortal(MemoryStore())
        directory = tmp_path / str(died)
        directory.mkdir()
        yard = made_yard(store, directory)
        file = yard.write(0)
        yard.commit(0, file)
        store.left = died
        try:
            yard.ledger.views.drop(NAME)
        except Killed:
            store.left = None
        else:
            break
        for _ in range(3):
            yard.pass_by(after_ms=GRACE_MS)
        standing = NAME in yard.ledger.views.names()
        assert (yard.files() == {file.name}) is standing
        assert notes(yard) == []
        died += 1
    assert died > 3, "a drop has more writes than this"


# -- imports -----------------------------------------------------------------------------------------------------------


def exported(yard: Yard) -> exchange.Export:
    return exchange.export_view(yard.ledger, NAME, now_ms=1)


def imported(yard: Yard, export: exchange.Export) -> None:
    files = LakeFiles(export.view.location)
    yard.header = exchange.import_view(yard.ledger, export, now_ms=2, files=files)


@pytest.mark.parametrize("damage", ["gone", "other"])
def test_an_imported_bucket_whose_files_are_gone_is_never_reverted(yard: Yard, damage: str) -> None:
    """A revert compares the source, which is as it was, and not the files (INV-11)."""
    kept, lost = yard.write(0), yard.write(1)
    yard.commit(0, kept)
    yard.commit(1, lost)
    export = exported(yard)
    yard.ledger.views.drop(NAME)
    if damage == "gone":
        (yard.view / lost.name).unlink()
    else:
        (yard.view / lost.name).write_bytes(b"other rows")
    imported(yard, export)
    incarnation = yard.header.incarnation
    assert yard.ledger.views.revert_valid(NAME, incarnation, 0).result
    assert not yard.ledger.views.revert_valid(NAME, incarnation, HOUR_MS).result
    entries = yard.ledger.views.state(NAME).entries
    assert {s: e.state for s, e in entries.items()} == {0: State.VALID, HOUR_MS: State.STALE}
    yard.commit(1, yard.write(1), mode=Mode.OVERWRITE)
    assert yard.kit.states() == {0: "VALID", 1: "VALID"}, "it is built again"


def test_an_import_keeps_the_files_of_the_view_that_was_dropped_there(yard: Yard) -> None:
    file = yard.write(0)
    yard.commit(0, file)
    export = exported(yard)
    yard.ledger.views.drop(NAME)
    imported(yard, export)
    for _ in range(4):
        yard.pass_by(after_ms=GRACE_MS)
    assert (yard.files(), notes(yard)) == ({file.name}, [])


def test_an_import_where_a_janitor_has_begun_is_refused(yard: Yard) -> None:
    file = yard.write(0)
    yard.commit(0, file)
    export = exported(yard)
    yard.ledger.views.drop(NAME)
    (incarnation,) = notes(yard)
    note = yard.ledger.dropped.note(incarnation)
    assert note is not None
    assert yard.ledger.dropped.begin(note) is not None
    with pytest.raises(Unavailable, match="are being deleted; try again"):
        imported(yard, export)
    assert NAME not in yard.ledger.views.names()


def test_an_import_that_comes_between_a_janitors_look_and_its_deed_keeps_its_files(
    store: Store, tmp_path: Path
) -> None:
    acting = Watched(store)
    yard = made_yard(acting, tmp_path)
    file = yard.write(0)
    yard.commit(0, file)
    export = exported(yard)
    yard.ledger.views.drop(NAME)
    yard.clock.sleep_ms(GRACE_MS)

    def overtake(_: int) -> None:
        if any(op.path.startswith(paths.DROPPED) for op in acting.commits[-1]):
            acting.before_commit = lambda _: None
            files = LakeFiles(export.view.location)
            exchange.import_view(Kit(store, seed=9).ledger, export, now_ms=2, files=files)

    acting.before_commit = overtake
    for _ in range(3):
        yard.pass_by()
    assert yard.files() == {file.name}
    assert yard.ledger.views.header(NAME).status is ViewStatus.ACTIVE


# -- CREATE OR REPLACE -------------------------------------------------------------------------------------------------


REPLACE = (
    "CREATE OR REPLACE MATERIALIZED VIEW rides_hourly LOCATION '{location}' TBLPROPERTIES ('bucket' = '{bucket}') "
    "AS SELECT date_trunc('DAY', event_time) AS day, count(*) AS n FROM rides GROUP BY 1"
)


def commands(kit: Kit) -> Commands:
    return Commands(kit.ledger, SystemClock(), lambda: "id", "", lambda _table, _view: [])


def replaceable(store: Store, hours: Sequence[int] = (0, 1)) -> Kit:
    kit = Kit(store)
    columns = (("event_time", str(pa.timestamp("ms", tz="UTC"))), ("value", "int64"))
    kit.ledger.registry.create_table(replace(TABLE, columns=columns))
    kit.ledger.views.create(VIEW, coverage_start_ms=0)
    kit.put(segment("a", 0, 600))
    for hour in hours:
        kit.append(hour)
    return kit


def replaced(kit: Kit, *, location: str = "/lake/views/other", bucket: str = "1d") -> None:
    commands(kit).run(read_statement(REPLACE.format(location=location, bucket=bucket)))


def test_a_replacement_that_is_killed_between_any_two_writes_leaves_one_of_the_two() -> None:
    """At every moment the name has a view, the old one whole or the new one."""
    died = 0
    while True:
        store = Mortal(MemoryStore())
        kit = replaceable(store, hours=(0, 1, 300))
        before = kit.ledger.views.state(NAME)
        store.left = died
        try:
            replaced(kit)
        except Killed:
            store.left = None
            assert kit.ledger.views.state(NAME) == before
        else:
            break
        died += 1
        assert died < 100
    assert kit.header.definition.bucket_ms == 24 * HOUR_MS
    assert (kit.ledger.views.state(NAME).entries, kit.header.status) == ({}, ViewStatus.ACTIVE)


@contextmanager
def _during_replacement(store: Watched, act: Callable[[], None]) -> Iterator[None]:
    """Acts as a peer right before the write that replaces."""

    def overtake(_: int) -> None:
        if any(isinstance(op, Set) and op.path == paths.view(NAME) for op in store.commits[-1]):
            store.before_commit = lambda _: None
            act()

    store.before_commit = overtake
    yield
    store.before_commit = lambda _: None


def test_an_entry_that_is_committed_while_a_view_is_replaced_is_not_the_new_ones(store: Store) -> None:
    """The two have shards of the same names (INV-13)."""
    watched = Watched(store)
    kit, peer = replaceable(watched), Kit(store, seed=5)
    with _during_replacement(watched, lambda: peer.append(400) and None):
        replaced(kit)
    assert kit.ledger.views.state(NAME).entries == {}
    assert store.children(paths.shards(NAME)) == []
    assert kit.header.definition.bucket_ms == 24 * HOUR_MS


def test_an_attempt_of_a_view_that_was_replaced_can_never_commit(store: Store) -> None:
    """INV-13."""
    kit = replaceable(store)
    old, build = kit.header.incarnation, kit.build(2)
    replaced(kit)
    decision = kit.commit_one(build, incarnation=old)
    assert isinstance(decision, Rejected)
    assert decision.reason is Reason.DROPPED


@pytest.mark.parametrize("word", ["lost", "gone"])
def test_a_replacement_survives_a_lost_answer(store: Store, word: str) -> None:
    faulty = Faulty(store)
    kit = replaceable(faulty)
    faulty.script = iter([word])
    replaced(kit)
    assert kit.header.definition.bucket_ms == 24 * HOUR_MS
    assert len(kit.ledger.dropped.incarnations()) == 1


def test_two_replacements_at_once_do_not_undo_each_other(store: Store) -> None:
    """The second was asked for over a view that is gone."""
    watched = Watched(store)
    kit, peer = replaceable(watched), Kit(store, seed=5)
    with (
        _during_replacement(watched, lambda: replaced(peer, location="/lake/views/peer", bucket="2d")),
        pytest.raises(InvalidInput, match="view-exists"),
    ):
        replaced(kit)
    assert kit.header.definition.bucket_ms == 48 * HOUR_MS


def test_a_view_that_was_dropped_meanwhile_is_created(store: Store) -> None:
    watched = Watched(store)
    kit, peer = replaceable(watched), Kit(store, seed=5)
    with _during_replacement(watched, lambda: peer.ledger.views.drop(NAME) and None):
        replaced(kit)
    assert kit.header.definition.bucket_ms == 24 * HOUR_MS


@pytest.mark.scenario("K12")
def test_a_view_too_large_for_one_write_is_not_replaced_and_says_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = replaceable(store, hours=(0, 1, 300))
    before = kit.ledger.views.state(NAME)
    monkeypatch.setattr(views, "REPLACED_NODES_MAX", 4)
    with pytest.raises(InvalidInput, match="view-too-large: view 'rides_hourly' has 6 nodes"):
        replaced(kit)
    assert kit.ledger.views.state(NAME) == before


def test_the_same_definition_changes_nothing(store: Store) -> None:
    kit = replaceable(store)
    replaced(kit)
    incarnation = kit.header.incarnation
    replaced(kit)
    assert kit.header.incarnation == incarnation


def test_the_files_of_a_view_that_was_replaced_elsewhere_go(yard: Yard) -> None:
    file = yard.write(0)
    yard.commit(0, file)
    wanted = replace(VIEW, location=str(yard.view) + "2")
    yard.ledger.views.create(wanted, coverage_start_ms=0, replacing=yard.header.incarnation)
    for _ in range(3):
        yard.pass_by(after_ms=GRACE_MS)
    assert (yard.files(), notes(yard)) == (set(), [])


def test_a_note_stands_longer_than_a_hold_that_nobody_renews(yard: Yard) -> None:
    """A worker that died with its hold: the hold is removed when it ran out, and then the files go."""
    yard.hold()
    yard.write(0)
    yard.ledger.views.drop(NAME)
    yard.pass_by(after_ms=TTL_MS - 1)
    assert len(yard.files()) == 1
    yard.pass_by(after_ms=1)
    yard.pass_by()
    assert (yard.files(), notes(yard)) == (set(), [])
