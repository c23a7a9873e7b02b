"""What the janitor deletes and keeps, step by step, on real files, in memory and on a real ZooKeeper (INV-11)."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from floodmark.catalog.leftovers import named_files
from floodmark.core.tables import ViewStatus
from floodmark.core.transitions import Mode
from floodmark.ledger import codec, paths
from floodmark.ledger.store import Create, Delete, Node, Set, Store
from tests.support.ledger_kit import HOUR_MS, VIEW, Kit, cause, segment
from tests.support.memory_store import Watched
from tests.support.yard import GRACE_MS, SKEW_MS, TTL_MS, Yard


@pytest.fixture
def yard(store: Store, tmp_path: Path) -> Yard:
    made = Yard(store, tmp_path)
    made.kit.put(segment("a", 0, 5))
    return made


# -- files of views ----------------------------------------------------------------------------------------------------


def test_the_file_of_a_dead_attempt_goes_after_the_grace_period_with_its_directory(yard: Yard) -> None:
    named, orphan = yard.write(0), yard.write(1)
    yard.commit(0, named)
    yard.pass_by()
    yard.pass_by(after_ms=GRACE_MS - 1)
    assert yard.files() == {named.name, orphan.name}
    assert yard.metric("floodmark_files_kept", kind="view", of="rides_hourly", reason="grace") == 1
    with capture_logs() as logs:
        yard.pass_by(after_ms=1)
    assert yard.files() == {named.name}
    assert not (yard.view / str(HOUR_MS)).exists()
    (told,) = [entry for entry in logs if entry["event"] == "file_deleted"]
    assert (told["view"], told["bucket_ms"], told["path"]) == ("rides_hourly", HOUR_MS, orphan.name)
    assert told["attempt_id"] in orphan.name
    assert yard.metric("floodmark_files_deleted_total", kind="view", of="rides_hourly") == 1
    assert yard.metric("floodmark_bytes_deleted_total", kind="view", of="rides_hourly") == 4
    assert yard.metric("floodmark_files_kept", kind="view", of="rides_hourly", reason="grace") == 0


def test_a_file_of_a_running_attempt_stays_as_long_as_its_hold(yard: Yard) -> None:
    hold, file = yard.hold(), yard.write(1)
    for _ in range(3):
        yard.pass_by(after_ms=GRACE_MS)
    assert yard.files() == {file.name}
    assert yard.metric("floodmark_files_kept", kind="view", of="rides_hourly", reason="held") == 1
    yard.ledger.holds.release(hold)
    yard.pass_by()
    assert yard.files() == set()


def test_a_hold_that_ran_out_is_removed_even_if_there_is_nothing_to_delete(yard: Yard) -> None:
    """Left by a reader that died: it must not lie about for ever."""
    yard.hold()
    yard.pass_by(after_ms=TTL_MS - 1)
    assert len(yard.ledger.holds.all("rides")) == 1
    yard.pass_by(after_ms=1)
    assert yard.ledger.holds.all("rides") == []


def test_a_hold_that_ran_out_is_removed_and_only_then_no_longer_counts(yard: Yard) -> None:
    """Its writer's commit checks that the node stands, so the node's removal is what makes deleting safe."""
    yard.hold()
    file = yard.write(1)
    yard.pass_by()
    yard.pass_by(after_ms=TTL_MS - 1)
    assert yard.files() == {file.name}
    yard.pass_by(after_ms=1)
    assert yard.ledger.holds.all("rides") == []
    assert yard.files() == set()


def test_a_hold_that_runs_out_while_the_janitor_looks_counts_as_long_as_its_node_stands(
    store: Store, tmp_path: Path
) -> None:
    """INV-11: it stood when those that ran out were removed, so its writer's commit still finds the node."""
    acting = ActsBefore(store)
    yard = Yard(acting, tmp_path)
    yard.kit.put(segment("a", 0, 5))
    hold, file = yard.hold(), yard.write(0)
    build = yard.build(0, file)
    yard.pass_by()
    yard.clock.sleep_ms(TTL_MS - 2)
    acting.armed = ("sync", lambda: yard.clock.sleep_ms(5))
    yard.pass_by(after_ms=1)
    assert acting.armed is None, "the hold ran out in between"
    assert yard.files() == {file.name}
    peer = Kit(store, clock=yard.clock, seed=2)
    peer.ledger.views.commit("rides_hourly", yard.header.incarnation, [build], hold=hold)
    yard.pass_by(after_ms=GRACE_MS)
    assert named_files(yard.ledger, yard.header) <= yard.files(), "whatever became of the commit"


def test_a_hold_taken_after_the_file_was_dead_does_not_keep_it(yard: Yard) -> None:
    """Or a busy system would never be rid of anything."""
    yard.write(1)
    yard.pass_by()
    yard.clock.sleep_ms(SKEW_MS + 1)
    yard.hold("broker-1")
    yard.pass_by(after_ms=GRACE_MS)
    assert yard.files() == set()


def test_a_file_committed_and_replaced_between_two_looks_stays_for_its_reader(yard: Yard) -> None:
    writer, file = yard.hold(), yard.write(0)
    yard.pass_by()
    yard.clock.sleep_ms(1_000)
    yard.commit(0, file)
    yard.ledger.holds.release(writer)
    reader = yard.hold("broker-1")
    yard.kit.mark(0)
    newer = yard.write(0)
    yard.commit(0, newer, mode=Mode.OVERWRITE)
    for _ in range(3):
        yard.pass_by(after_ms=GRACE_MS)
    assert yard.files() == {file.name, newer.name}
    yard.ledger.holds.release(reader)
    yard.pass_by()
    assert yard.files() == {newer.name}


class ActsBefore(Watched):
    """Runs an action once, before the first read of a node whose path has this in it, or a sync, when armed."""

    armed: tuple[str, Callable[[], None]] | None = None

    def _act(self, path: str) -> None:
        if self.armed is not None and self.armed[0] in path:
            (_, action), self.armed = self.armed, None
            action()

    def read_many(self, wanted: Sequence[str]) -> list[Node | None]:
        for path in wanted:
            self._act(path)
        return super().read_many(wanted)

    def children(self, path: str) -> list[str]:
        self._act(path)
        return super().children(path)

    def sync(self) -> None:
        self._act("sync")
        super().sync()


@pytest.mark.parametrize("moment", ["/holds", "/shards"])
def test_a_commit_between_any_two_looks_of_the_janitor_keeps_its_file(
    store: Store, tmp_path: Path, moment: str
) -> None:
    """The commit lands after the files were listed, or after the holds were read; the hold goes right after it."""
    acting = ActsBefore(store)
    yard = Yard(acting, tmp_path)
    yard.kit.put(segment("a", 0, 5))
    hold, file = yard.hold(), yard.write(0)
    yard.pass_by()
    peer = Kit(store, clock=yard.clock, seed=2)
    build = yard.build(0, file)

    def commit() -> None:
        peer.commit(build, incarnation=yard.header.incarnation)
        peer.ledger.holds.release(hold)

    acting.armed = (moment, commit)
    yard.pass_by(after_ms=GRACE_MS)
    assert acting.armed is None, "the commit happened"
    for _ in range(3):
        yard.pass_by(after_ms=GRACE_MS)
    assert yard.files() == {file.name}


def test_a_restart_only_delays(yard: Yard) -> None:
    yard.write(1)
    yard.pass_by()
    yard.clock.sleep_ms(GRACE_MS)
    yard.rounds = yard.janitor()
    yard.pass_by()
    assert len(yard.files()) == 1
    yard.pass_by(after_ms=GRACE_MS)
    assert yard.files() == set()


def test_what_does_not_look_like_a_file_of_an_attempt_is_never_touched(yard: Yard) -> None:
    attempt = uuid.uuid4()
    aliens = [
        "notes.txt",
        f"{HOUR_MS}/part-0.parquet",
        f"x/{HOUR_MS}/{attempt}-0.parquet",
        f"{HOUR_MS}/{attempt}.parquet",
    ]
    for alien in [*aliens, f"{HOUR_MS}/_tmp-{attempt}-0.parquet"]:
        yard.lay(yard.view / alien)
    yard.write(1, str(attempt))
    before = yard.files()
    for _ in range(3):
        yard.pass_by(after_ms=10 * GRACE_MS)
    assert yard.files() == before - {f"{HOUR_MS}/{attempt}-0.parquet"}


def test_a_link_that_leads_out_of_the_location_is_not_followed(yard: Yard, tmp_path: Path) -> None:
    elsewhere = yard.lay(tmp_path / "elsewhere" / f"{uuid.uuid4()}-0.parquet")
    (yard.view / "0").parent.mkdir(parents=True, exist_ok=True)
    (yard.view / "0").symlink_to(elsewhere.parent)
    for _ in range(3):
        yard.pass_by(after_ms=10 * GRACE_MS)
    assert elsewhere.exists()


def test_a_file_that_cannot_be_deleted_keeps_no_other_waiting(yard: Yard) -> None:
    """INV-14."""
    stuck, other = yard.write(1), yard.write(2)
    yard.pass_by()
    (yard.view / stuck.name).unlink()
    (yard.view / stuck.name).mkdir()  # whatever is there now, it is not what was listed
    yard.pass_by(after_ms=GRACE_MS)
    assert not (yard.view / other.name).exists()
    assert (yard.view / stuck.name).exists()


def test_a_view_that_is_being_dropped_or_imported_is_left_alone(yard: Yard) -> None:
    """Its entries are not all there, so no file can be called unnamed."""
    file = yard.write(0)
    yard.commit(0, file)
    state = yard.ledger.views.state("rides_hourly")
    closed = codec.encode_view(replace(state.header, status=ViewStatus.DROPPING))
    yard.kit.store.commit([Set(paths.view("rides_hourly"), closed, -1), Delete(paths.shard("rides_hourly", 0))])
    for _ in range(3):
        yard.pass_by(after_ms=GRACE_MS)
    assert yard.files() == {file.name}


def test_entries_read_while_a_view_was_dropped_are_not_taken_for_all_there_are(store: Store, tmp_path: Path) -> None:
    acting = ActsBefore(store)
    yard = Yard(acting, tmp_path)
    yard.kit.put(segment("a", 0, 5))
    file = yard.write(0)
    yard.commit(0, file)
    assert named_files(yard.ledger, yard.header) == {file.name}
    acting.armed = ("/shards", lambda: Kit(store).ledger.views.drop("rides_hourly") and None)
    assert named_files(yard.ledger, yard.header) is None


def test_what_is_known_of_a_view_is_forgotten_with_its_incarnation(yard: Yard) -> None:
    """An import may name again what was dead, and a reader may have found it there before it was replaced."""
    file = yard.write(0)
    yard.pass_by()
    entry = yard.build(0, file).change.entry
    yard.ledger.views.drop("rides_hourly")
    yard.header = yard.ledger.views.restore(replace(yard.header, watermark_ms=HOUR_MS), {0: entry.stale(cause())})
    yard.clock.sleep_ms(SKEW_MS + 1)
    reader = yard.hold("broker-1")
    yard.commit(0, newer := yard.write(0), mode=Mode.OVERWRITE)
    for _ in range(3):
        yard.pass_by(after_ms=GRACE_MS)
    assert yard.files() == {file.name, newer.name}
    yard.ledger.holds.release(reader)
    yard.pass_by()
    assert yard.files() == {newer.name}


def test_a_view_created_anew_at_the_same_place_clears_away_after_its_predecessor(yard: Yard) -> None:
    """With a grace period of its own."""
    old = yard.write(0)
    yard.commit(0, old)
    yard.pass_by()
    yard.ledger.views.drop("rides_hourly")
    yard.clock.sleep_ms(GRACE_MS)
    yard.ledger.views.create(replace(VIEW, location=str(yard.view)), coverage_start_ms=0)
    yard.pass_by()
    assert yard.files() == {old.name}
    yard.pass_by(after_ms=GRACE_MS)
    assert yard.files() == set()


def test_two_views_at_one_place_are_both_left_alone_and_told_of(yard: Yard) -> None:
    """Refused when they are defined; an import or a race may still make them."""
    twin = replace(VIEW, name="twin", location=str(yard.view))
    yard.ledger.views.create(twin, coverage_start_ms=0)
    yard.write(1)
    with capture_logs() as logs:
        for _ in range(3):
            yard.pass_by(after_ms=10 * GRACE_MS)
    assert len(yard.files()) == 1
    told = [(e["view"], e["error"]) for e in logs if e["event"] == "not_cleared_away"]
    assert sorted(told) == [
        ("rides_hourly", f"location-overlap: {yard.view} is shared with 'twin'"),
        ("twin", f"location-overlap: {yard.view} is shared with 'rides_hourly'"),
    ]


def test_a_damaged_view_keeps_no_other_waiting(yard: Yard, tmp_path: Path) -> None:
    """INV-14."""
    other = replace(VIEW, name="a_first", location=str(tmp_path / "views" / "a_first"))
    yard.ledger.views.create(other, coverage_start_ms=0)
    yard.kit.store.commit([Create("/floodmark/views/a_first/shards/0", b"\x01damaged")])
    yard.lay(tmp_path / "views" / "a_first" / "0" / f"{uuid.uuid4()}-0.parquet")
    yard.write(1)
    yard.pass_by()
    yard.pass_by(after_ms=GRACE_MS)
    assert yard.files() == set()
    assert len(list((tmp_path / "views" / "a_first").rglob("*.parquet"))) == 1


# -- segments of tables ------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(store: Store, tmp_path: Path) -> Yard:
    """The clock stands at hour 1000, so data from before hour 976 is past its retention."""
    return Yard(store, tmp_path, retention="1d")


def register(yard: Yard, name: str, first_hour: float, last_hour: float) -> Path:
    path = yard.lay(yard.base / f"{name}.parquet")
    stamp = f"{path.stat().st_size}:{path.stat().st_mtime_ns}"
    yard.kit.put(replace(segment(name, first_hour, last_hour), stamp=stamp))
    return path


def test_data_past_its_retention_leaves_the_registry_then_its_files_then_the_list(kept: Yard) -> None:
    old, young = register(kept, "old", 0, 976), register(kept, "young", 975, 976.5)
    with capture_logs() as logs:
        kept.pass_by()
    assert set(kept.ledger.registry.snapshot("rides").by_name) == {"young"}
    assert (old.exists(), young.exists()) == (False, True)
    assert kept.ledger.retention.condemned_paths("rides") == {"old.parquet"}
    kept.pass_by()
    assert kept.ledger.retention.condemned("rides") == []
    told = {e["event"]: e for e in logs}
    assert (told["segments_retired"]["table"], told["segments_retired"]["segments"]) == ("rides", 1)
    assert (told["file_deleted"]["table"], told["file_deleted"]["path"]) == ("rides", "old.parquet")
    assert kept.metric("floodmark_segments_retired_total", table="rides") == 1


@pytest.mark.parametrize("age_hours", [100, 1_000])
def test_without_a_retention_nothing_of_a_table_is_ever_touched(yard: Yard, age_hours: int) -> None:
    path = register(yard, "old", 0, 1)
    yard.pass_by(after_ms=age_hours * HOUR_MS)
    assert path.exists()
    assert "old" in yard.ledger.registry.snapshot("rides").by_name


def test_a_hold_from_before_the_removal_keeps_the_files_and_one_from_after_does_not(kept: Yard) -> None:
    path = register(kept, "old", 0, 1)
    reader = kept.hold("broker-1")
    kept.pass_by()
    late = kept.hold("broker-2")
    kept.pass_by()
    assert path.exists()
    assert kept.metric("floodmark_files_kept", kind="table", of="rides", reason="held") == 1
    kept.ledger.holds.release(reader)
    kept.pass_by()
    assert not path.exists()
    kept.ledger.holds.release(late)


def test_another_file_in_its_place_is_kept_and_may_be_registered(kept: Yard) -> None:
    """A producer wrote where it wrote before: what was condemned is gone, what is there now is new."""
    path = register(kept, "old", 0, 1)
    reader = kept.hold("broker-1")
    kept.pass_by()
    path.write_bytes(b"new rows")
    with capture_logs() as logs:
        kept.pass_by()
    assert [e["path"] for e in logs if e["event"] == "condemned_file_spared"] == ["old.parquet"]
    kept.ledger.holds.release(reader)
    kept.pass_by()
    kept.pass_by()
    assert path.exists()
    kept.kit.put(segment("old", 999, 1000, crc=2))
    assert kept.ledger.retention.condemned("rides") == []


def test_a_file_that_was_registered_again_while_there_was_no_retention_is_spared(kept: Yard) -> None:
    """INV-11: it is condemned and registered, with nothing about it changed."""
    path = register(kept, "old", 0, 1)
    reader = kept.hold("broker-1")
    kept.pass_by()
    assert kept.ledger.retention.condemned_paths("rides") == {"old.parquet"}
    kept.ledger.registry.set_properties("rides", {})
    found = path.stat()
    kept.kit.put(replace(segment("old", 0, 1), bytes=found.st_size, stamp=f"{found.st_size}:{found.st_mtime_ns}"))
    kept.ledger.registry.set_properties("rides", {"retention": "100d"})
    kept.ledger.holds.release(reader)
    for _ in range(2):
        kept.pass_by()
    assert path.exists()
    assert kept.ledger.retention.condemned("rides") == []


def test_a_disk_that_is_not_mounted_loses_nothing_from_the_list(kept: Yard) -> None:
    register(kept, "old", 0, 1)
    reader = kept.hold("broker-1")
    kept.pass_by()
    kept.ledger.holds.release(reader)
    away = kept.base.rename(kept.base.with_name("away"))
    kept.pass_by()
    assert kept.ledger.retention.condemned_paths("rides") == {"old.parquet"}
    away.rename(kept.base)
    kept.pass_by()
    kept.pass_by()
    assert kept.ledger.retention.condemned("rides") == []


def test_a_crash_between_any_two_steps_only_delays(kept: Yard) -> None:
    """Another janitor goes on from what is written down: condemned but not deleted, deleted but still condemned."""
    first, second = register(kept, "first", 0, 1), register(kept, "second", 0, 1)
    assert kept.ledger.retention.retire("rides", before_ms=976 * HOUR_MS, batch_max=10) is not None
    first.unlink()
    kept.rounds = kept.janitor()
    kept.pass_by()
    assert not second.exists()
    kept.rounds = kept.janitor()
    kept.pass_by()
    assert kept.ledger.retention.condemned("rides") == []
