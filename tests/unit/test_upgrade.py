"""Views that an earlier version defined, whose query means something else today: never read, and built again by
themselves, while processes of both versions run."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest

from floodmark.catalog.files import current_files
from floodmark.catalog.renewal import renewed
from floodmark.core.buckets import MEANING_CHANGED, DataFile, State
from floodmark.core.errors import InvalidInput
from floodmark.core.tables import MEANING, ViewStatus
from floodmark.core.transitions import Mode, Reason, Rejected
from floodmark.ledger import codec, exchange, paths
from floodmark.query.bounds import EVER
from floodmark.query.pictures import Pictures
from floodmark.query.registered import TableSnapshot
from floodmark.query.snapshots import ViewSnapshot
from floodmark.sql.definition import definition_hash
from floodmark_consistency.sweep import Sweeper
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, segment
from tests.support.scheduler_office import Office
from tests.support.worker_kit import Bench

COLUMNS = (("event_time", "timestamp[us, tz=UTC]"), ("n", "int64"), ("tags", "list<element: int64>"))
SELECT = "SELECT transform(tags, n -> n + rides.n) AS k, count(*) AS c FROM rides GROUP BY 1"
PLAIN = "SELECT date_trunc('HOUR', event_time) AS hour, count(*) AS c FROM rides GROUP BY 1"
TODAY = definition_hash(TABLE.name, SELECT, HOUR_MS)


class Upgraded:
    """A view as an earlier version left it: four hours VALID, under the hash that its text had then."""

    def __init__(self, select: str = SELECT, *, status: ViewStatus = ViewStatus.ACTIVE) -> None:
        self.office = Office()
        self.kit = self.office.kit
        self.table = replace(TABLE, columns=COLUMNS)
        self.kit.ledger.registry.create_table(self.table)
        self.old = self.kit.ledger.views.create(replace(VIEW, select=select, hash="h1"), coverage_start_ms=0)
        self.kit.put(*(segment(f"s{hour}", hour, hour + 1) for hour in range(4)))
        self.kit.commit(*(self.kit.build(hour, attempt=f"old{hour}") for hour in range(4)))
        self.kit.ledger.views.set_status(VIEW.name, status)
        self.sweeper = Sweeper(self.kit.ledger, self.kit.clock, grace_ms=1_000)

    def seen(self) -> ViewSnapshot:
        """By a broker."""
        pictures = Pictures(self.office.store)
        pictures.attend(self.table)
        (found,) = pictures.of(TABLE.name)
        return found

    def readable(self) -> list[str]:
        """The files that a query over everything would read."""
        view, found = self.seen(), self.kit.ledger.registry.snapshot(TABLE.name)
        if view.shape is None:
            return []
        table = TableSnapshot(self.table, found.header.version, found.slices, found.slice_node_versions, 0)
        chosen = view.router.routes(view, table).chosen(EVER)
        return sorted(file.path for file in chosen.files)

    def build_again(self) -> list[tuple[int, str]]:
        """The scheduler gives out what there is to do, and a worker does it."""
        bench = Bench(self.kit)
        given = self.office.cycle()
        tasks = self.office.tasks()[-len(given) :] if given else []
        bench.run(*(bench.deliver(task) for task in tasks))
        return sorted(given)


def test_what_was_built_under_another_meaning_is_never_read_and_is_built_again_by_itself() -> None:
    """INV-12: nobody has to replace the view, or to ask for anything."""
    upgraded = Upgraded()
    assert upgraded.readable() == []
    assert "earlier version" in upgraded.seen().refusal
    assert upgraded.sweeper.sweep(VIEW.name) == 0, "this is no repair of a lost event"
    header = upgraded.kit.header
    assert (header.definition.hash, header.definition.meaning) == (TODAY, MEANING)
    assert header == replace(upgraded.old, definition=header.definition, incarnation=header.incarnation,
                             watermark_ms=4 * HOUR_MS)  # fmt: skip
    assert set(upgraded.kit.states().values()) == {"STALE"}
    assert {e.cause.kind for h in range(4) if (e := upgraded.kit.entry(h)) and e.cause} == {MEANING_CHANGED}
    assert upgraded.readable() == []
    assert upgraded.build_again() == [(hour, "OVERWRITE") for hour in range(4)], (
        "a revert would make valid what means something else"
    )
    assert upgraded.kit.states() == dict.fromkeys(range(4), "VALID")
    read = upgraded.readable()
    assert len(read) == 4
    assert not any(name.startswith("old") for name in read)
    assert upgraded.build_again() == []


def test_between_the_renewal_and_the_marks_nothing_is_read() -> None:
    """Whoever renews may die before anything is marked. The next sweep marks it."""
    upgraded = Upgraded()
    assert renewed(upgraded.kit.ledger, upgraded.kit.header) == upgraded.kit.header
    assert upgraded.kit.states() == dict.fromkeys(range(4), "VALID")
    assert upgraded.seen().shape is not None
    assert upgraded.readable() == []
    assert current_files(upgraded.kit.ledger, VIEW.name).files == ()
    upgraded.sweeper.sweep(VIEW.name)
    assert set(upgraded.kit.states().values()) == {"STALE"}


def test_files_of_another_meaning_are_not_listed_as_current() -> None:
    upgraded = Upgraded()
    assert current_files(upgraded.kit.ledger, VIEW.name).files == ()
    assert len(current_files(Upgraded(PLAIN).kit.ledger, VIEW.name).files) == 4


def test_a_view_whose_query_always_meant_the_same_is_left_as_it_is() -> None:
    upgraded = Upgraded(PLAIN)
    before = upgraded.kit.ledger.views.state(VIEW.name)
    assert len(upgraded.readable()) == 4
    assert upgraded.sweeper.sweep(VIEW.name) == 0
    assert upgraded.kit.ledger.views.state(VIEW.name) == before


def test_a_renewed_view_is_left_as_it_is() -> None:
    """It is renewed once, by whoever comes first."""
    upgraded = Upgraded()
    upgraded.sweeper.sweep(VIEW.name)
    header = upgraded.kit.header
    assert renewed(upgraded.kit.ledger, header) == header
    assert renewed(upgraded.kit.ledger, upgraded.old) == header, "who still knows the old one does not renew it again"
    upgraded.build_again()
    before = upgraded.kit.ledger.views.state(VIEW.name)
    upgraded.sweeper.sweep(VIEW.name)
    assert upgraded.kit.ledger.views.state(VIEW.name) == before


def test_a_worker_of_an_earlier_version_cannot_commit_what_it_began_before() -> None:
    """INV-13: what it builds means something else, whatever hash its task named."""
    upgraded = Upgraded()
    upgraded.kit.mark(2)
    began = upgraded.kit.build(2, Mode.OVERWRITE, "began before")
    upgraded.sweeper.sweep(VIEW.name)
    found = upgraded.kit.commit_one(began, upgraded.old.incarnation)
    assert isinstance(found, Rejected)
    assert found.reason is Reason.DROPPED


def test_a_process_of_an_earlier_version_cannot_read_a_view_that_it_understands_otherwise() -> None:
    """The format says so before any field does: it refuses the node by name, and builds and answers nothing of it."""
    upgraded = Upgraded()
    node = upgraded.office.store.nodes[paths.view(VIEW.name)]
    assert node.data[0] == 2, "one that means the same to everyone stays readable"
    upgraded.sweeper.sweep(VIEW.name)
    node = upgraded.office.store.nodes[paths.view(VIEW.name)]
    assert node.data[0] == 4
    with patch.object(codec, "FORMAT", 3), pytest.raises(InvalidInput, match="knows 3 and older"):
        codec.decode_view(node.data, what="view")


def test_a_view_of_a_later_version_is_refused_by_name() -> None:
    """This version is an earlier one to the next."""
    later = replace(VIEW, meaning=MEANING + 1)
    data = codec.encode_view(replace(Upgraded().kit.header, definition=later))
    with pytest.raises(InvalidInput, match=f"of meaning {MEANING + 1}, this version of floodmark knows {MEANING}"):
        codec.decode_view(data, what="view")


def test_a_worker_that_gets_a_task_of_an_earlier_scheduler_renews_the_view_instead() -> None:
    """It would build today's meaning under the old hash, which a broker of the earlier version reads."""
    upgraded = Upgraded()
    upgraded.kit.mark(1)
    upgraded.kit.put(segment("s1", 1, 2, crc=9))
    bench = Bench(upgraded.kit)
    task = bench.task(1, Mode.OVERWRITE)
    bench.offer(task)
    assert bench.run(bench.deliver(task)) == {1: "finished"}
    assert bench.outcomes() == {1: "covered"}
    assert bench.view.built == []
    assert upgraded.kit.header.definition.hash == TODAY


def test_a_revert_needs_the_same_definition() -> None:
    """A lost answer, or a marker that comes late, may ask for a revert of anything."""
    upgraded = Upgraded()
    upgraded.sweeper.sweep(VIEW.name)
    assert not upgraded.kit.ledger.views.revert_valid(VIEW.name, upgraded.kit.header.incarnation, 0).result


def test_a_paused_view_stays_paused() -> None:
    """Nothing of it is built, and nothing of it is read."""
    upgraded = Upgraded(status=ViewStatus.PAUSED)
    upgraded.sweeper.sweep(VIEW.name)
    assert upgraded.kit.header.status is ViewStatus.PAUSED
    assert upgraded.readable() == []
    assert upgraded.build_again() == []


def test_a_view_that_is_being_dropped_is_not_renewed() -> None:
    upgraded = Upgraded()
    going = replace(upgraded.kit.header, status=ViewStatus.DROPPING)
    assert renewed(upgraded.kit.ledger, going) is going


def test_empty_stretches_are_settled_again() -> None:
    """A run of an earlier definition is read no more than a bucket of one."""
    upgraded = Upgraded()
    upgraded.kit.put(segment("far", 3_000, 3_001))
    upgraded.kit.ledger.views.settle(VIEW.name, upgraded.old.incarnation, end_ms=3_000 * HOUR_MS)
    (run,) = upgraded.kit.ledger.views.state(VIEW.name).runs
    assert run.entry.definition_hash == "h1"
    upgraded.sweeper.sweep(VIEW.name)
    for _ in range(8):
        upgraded.build_again()
    state = upgraded.kit.ledger.views.state(VIEW.name)
    assert {entry.definition_hash for _, _, entry in state.stretches() if entry.state is State.VALID} == {TODAY}
    assert not [entry for _, _, entry in state.stretches() if entry.state is State.STALE]


def test_an_export_of_an_earlier_version_is_imported_as_such() -> None:
    """Its entries are of the hash that they were built under, and are not reverted to."""
    upgraded = Upgraded()
    export = exchange.export_view(upgraded.kit.ledger, VIEW.name, now_ms=1)
    assert export.version == 1, "an earlier version may import what means the same to it"
    upgraded.kit.ledger.views.drop(VIEW.name)
    exchange.import_view(upgraded.kit.ledger, export, now_ms=2, files=AllThere())
    upgraded.sweeper.sweep(VIEW.name)
    assert upgraded.kit.header.definition.hash == TODAY
    again = exchange.export_view(upgraded.kit.ledger, VIEW.name, now_ms=3)
    assert (again.version, again.view.meaning) == (2, MEANING), "an earlier version must not"
    assert upgraded.build_again() == [(hour, "OVERWRITE") for hour in range(4)]


class AllThere:
    def overlaps(self, location: str) -> bool:
        return False

    def missing(self, files: Sequence[DataFile], /) -> Collection[str]:
        return ()
