"""Registering batches of files, on a ledger in memory: order, names, and trouble that stays where it belongs."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.bus.ports import Outgoing
from floodmark.contracts.messages import SegmentMetadata
from floodmark.core.errors import InvalidInput, OutcomeUnknown, Unavailable
from floodmark.core.registry import Command
from floodmark.core.tables import TableDefinition
from floodmark.ledger import paths
from floodmark.ledger.store import Create, Store
from floodmark_ingester import registrar
from floodmark_ingester.outbox import Outbox
from floodmark_ingester.registrar import Registrar, Request, Trouble
from tests.support.ledger_kit import HOUR_MS, Kit
from tests.support.memory_store import Faulty, MemoryStore, Watched
from tests.support.pipeline import write_parquet


class KeepingPublisher:
    """Keeps what is published, or fails as it is told."""

    def __init__(self) -> None:
        self.published: list[Outgoing] = []
        self.trouble: Exception | None = None

    def publish(self, messages: Sequence[Outgoing]) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.published += messages


class Desk:
    """A registrar with its table, and short words for what is asked of it."""

    def __init__(self, location: Path, store: Store | None = None, seed: int = 1, **properties: str) -> None:
        self.location = location
        self.kit = Kit(store or MemoryStore(), seed=seed)
        self.ledger = self.kit.ledger
        self.ledger.registry.create_table(TableDefinition("rides", str(location), "event_time", properties=properties))
        self.publisher = KeepingPublisher()
        self.outbox = Outbox(self.ledger, self.publisher)
        self.registrar = Registrar(self.ledger, ThreadPoolExecutor(2), self.outbox.publish)

    def write(self, *paths: str) -> None:
        for path in paths:
            write_parquet(self.location / path, 1, 2)

    def ask(self, *requests: Request) -> list[Trouble | None]:
        return self.registrar.register(requests)

    @property
    def names(self) -> dict[str, str]:
        return {s.name: s.path for s in self.ledger.registry.snapshot("rides").by_name.values()}

    @property
    def version(self) -> int:
        return self.ledger.registry.header("rides").version


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def add(path: str, name: str | None = None, claimed: dict[str, int] | None = None) -> Request:
    metadata = SegmentMetadata.model_validate(claimed) if claimed else None
    return Request("rides", "add", path, name, metadata, path.encode().hex().zfill(32))


def delete(path: str | None = None, name: str | None = None, *, only_if_absent: bool = False) -> Request:
    return Request("rides", "delete", path, name, None, "1" * 32, only_if_absent)


def test_a_batch_is_one_registry_write_and_one_event(desk: Desk) -> None:
    desk.write("a", "b", "c")
    assert desk.ask(add("a"), add("b"), add("c")) == [None] * 3
    assert (desk.version, len(desk.publisher.published)) == (1, 1)


def test_one_bad_request_does_not_take_the_others_down(desk: Desk) -> None:
    desk.write("a", "b")
    unknown = Request("nowhere", "add", "a", None, None, "2" * 32)
    outcomes = desk.ask(add("a"), add("absent"), unknown, add("b"))
    rules = [outcome.rule if isinstance(outcome, InvalidInput) else outcome for outcome in outcomes]
    assert rules == [None, "file-absent", "unknown-table", None]
    assert set(desk.names) == {"a", "b"}


def test_a_segment_the_registry_cannot_hold_is_refused_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slice is full. The rest of the batch is registered all the same, and reported as registered."""
    desk.write("a", "b", "c", "d")
    refusing = desk.ledger.registry.apply

    def apply(table: str, commands: list[Command], **how: Any) -> object:
        if any(command.name == "c" for command in commands):
            raise InvalidInput("node-too-large", "the slice is full")
        return refusing(table, commands, **how)

    monkeypatch.setattr(desk.ledger.registry, "apply", apply)
    outcomes = desk.ask(*(add(path) for path in "abcd"))
    assert [getattr(outcome, "rule", None) for outcome in outcomes] == [None, None, "node-too-large", None]
    assert set(desk.names) == {"a", "b", "d"}


@pytest.mark.parametrize("trouble", [Unavailable("Kafka is away"), OutcomeUnknown("no answer")])
def test_what_is_registered_counts_as_registered_although_kafka_is_away(desk: Desk, trouble: Exception) -> None:
    """The event waits in the outbox, and is published when Kafka is back."""
    desk.write("a")
    desk.publisher.trouble = trouble
    assert desk.ask(add("a")) == [None]
    assert len(desk.ledger.registry.outbox("rides")) == 1
    desk.publisher.trouble = None
    assert desk.outbox.publish_all() == 1
    assert desk.ledger.registry.outbox("rides") == []
    assert len(desk.publisher.published) == 1


def test_a_change_whose_answer_was_lost_is_published_at_once(tmp_path: Path) -> None:
    """INV-7: that it was written shows only as "there is nothing to do"; its event waits in the outbox all the same."""
    store = Faulty(MemoryStore())
    desk = Desk(tmp_path, store)
    desk.write("a")
    store.script = iter(["lost"])
    assert desk.ask(add("a")) == [None]
    assert len(desk.publisher.published) == 1


def test_the_same_thing_said_often_in_one_batch_is_one_write(desk: Desk) -> None:
    desk.write("a")
    assert desk.ask(*[add("a")] * 10) == [None] * 10
    assert desk.version == 1
    assert [name for name, _ in desk.kit.outcomes] == ["create table rides", "register 1 segments of rides"]


def test_a_batch_is_carried_out_in_its_order(desk: Desk) -> None:
    """Added, deleted, added: it is there. Added, deleted: it is not."""
    desk.write("a", "b")
    assert desk.ask(add("a"), delete("a"), add("a"), add("b"), delete("b")) == [None] * 5
    assert set(desk.names) == {"a"}


def test_a_delete_by_path_finds_the_segment_by_whatever_name_it_has(desk: Desk) -> None:
    """Registered before, or in the same batch."""
    desk.write("a", "b")
    desk.ask(add("a", name="first"))
    assert desk.ask(delete("a"), add("b", name="second"), delete("b")) == [None] * 3
    assert desk.names == {}


def test_a_file_announced_without_its_name_keeps_the_one_it_has(desk: Desk) -> None:
    """The scanner and a producer may both announce it: its rows must not count twice."""
    desk.write("a")
    assert desk.ask(add("a", name="first"), add("a")) == [None, None]
    assert desk.ask(add("a")) == [None]
    assert desk.names == {"first": "a"}


def test_a_file_is_not_registered_under_a_second_name(desk: Desk) -> None:
    desk.write("a")
    (refused,) = desk.ask(add("a"), add("a", name="second"))[1:]
    assert str(refused) == "path-taken: a is registered as 'a', it cannot be 'second' as well"
    assert desk.names == {"a": "a"}
    assert desk.ask(delete("a"), add("a", name="second")) == [None, None]
    assert desk.names == {"second": "a"}


def test_of_many_files_under_second_names_each_is_refused_and_the_others_are_one_write(desk: Desk) -> None:
    """Refusals do not split a batch."""
    desk.write("a", "b", "c", "d")
    desk.ask(add("a"), add("b"))
    outcomes = desk.ask(add("c"), add("a", name="x"), add("d"), add("b", name="y"))
    assert [getattr(outcome, "rule", None) for outcome in outcomes] == [None, "path-taken", None, "path-taken"]
    assert (desk.names, desk.version) == ({path: path for path in "abcd"}, 2)


def test_a_file_that_was_refused_a_second_name_is_deleted_by_its_first(desk: Desk) -> None:
    """In its order: refused, then deleted by its path, then free."""
    desk.write("a")
    desk.ask(add("a", name="first"))
    outcomes = desk.ask(add("a", name="second"), delete("a"), add("a", name="third"))
    assert [getattr(outcome, "rule", None) for outcome in outcomes] == ["path-taken", None, None]
    assert desk.names == {"third": "a"}


def racing(tmp_path: Path, theirs: Request) -> Desk:
    """A desk whose peer carries out a request when this one has decided and not yet written."""
    store = MemoryStore()
    watched = Watched(store)
    desk, peer = Desk(tmp_path, watched), Desk(tmp_path, store, seed=2)
    at = len(watched.commits) + 1
    watched.before_commit = lambda n: peer.ask(theirs) if n == at else None
    return desk


def test_two_ingesters_that_name_one_file_differently_at_once_register_it_once(tmp_path: Path) -> None:
    """The later one is refused alone; what was announced beside it is registered."""
    desk = racing(tmp_path, add("a", name="theirs"))
    desk.write("a", "b")
    outcomes = desk.ask(add("a", name="mine"), add("b"))
    assert str(outcomes[0]) == "path-taken: a is registered as 'theirs', it cannot be 'mine' as well"
    assert isinstance(outcomes[0], InvalidInput)
    assert (outcomes[1], desk.names) == (None, {"theirs": "a", "b": "b"})


def test_a_file_announced_without_a_name_that_another_ingester_names_at_once_is_tried_again(tmp_path: Path) -> None:
    """It means the name it has. It is not refused for having been too early to know it."""
    desk = racing(tmp_path, add("a", name="theirs"))
    desk.write("a")
    (trouble,) = desk.ask(add("a"))
    assert isinstance(trouble, Unavailable)
    assert desk.ask(add("a")) == [None]
    assert desk.names == {"theirs": "a"}


def test_deleting_what_is_not_registered_changes_nothing(desk: Desk) -> None:
    assert desk.ask(delete("a"), delete(name="b")) == [None, None]
    assert desk.version == 0


@pytest.mark.parametrize("claimed", [{"rows": 11}, {"crc": 5}, {"start_ms": 0, "last_ms": 7_199_999}])
def test_metadata_that_the_file_contradicts_is_refused(desk: Desk, claimed: dict[str, int]) -> None:
    desk.write("a")
    (refused,) = desk.ask(add("a", claimed=claimed))
    assert isinstance(refused, InvalidInput)
    assert (refused.rule, desk.version) == ("metadata", 0)
    assert desk.ask(add("a", claimed={"rows": 10, "start_ms": 3_600_000, "last_ms": 7_199_999})) == [None]


def test_each_change_of_an_event_has_the_trace_of_its_announcement(desk: Desk) -> None:
    desk.write("a", "b")
    desk.ask(add("a"), add("b"))
    (message,) = desk.publisher.published
    traces = {change["name"]: change["trace_id"] for change in json.loads(message.value)["changes"]}
    assert traces == {"a": add("a").trace_id, "b": add("b").trace_id}


def test_an_outbox_is_published_in_order_and_each_event_once(desk: Desk) -> None:
    desk.publisher.trouble = Unavailable("Kafka is away")
    for path in ("a", "b", "c"):
        desk.write(path)
        desk.ask(add(path))
    desk.publisher.trouble = None
    assert (desk.outbox.publish("rides"), desk.outbox.publish("rides")) == (3, 0)
    assert [json.loads(m.value)["registry_version"] for m in desk.publisher.published] == [1, 2, 3]


def test_a_registry_that_cannot_be_reached_means_try_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.write("a")

    def away(_: str) -> None:
        raise Unavailable("not connected to ZooKeeper")

    monkeypatch.setattr(desk.ledger.registry, "snapshot", away)
    (trouble,) = desk.ask(add("a"))
    assert isinstance(trouble, Unavailable)


def test_a_condemned_file_is_refused_alone(tmp_path: Path) -> None:
    """Its announcement may have been on the way when its table's retention took it away."""
    desk = Desk(tmp_path, retention="1h")
    desk.write("a", "b", "c")
    assert desk.ask(add("a")) == [None]
    assert desk.ledger.retention.retire("rides", before_ms=3 * HOUR_MS, batch_max=10) is not None
    fine, refused, also_fine = desk.ask(add("b"), add("a"), add("c"))
    assert (fine, also_fine) == (None, None)
    assert str(refused) == "condemned: a is past the retention of table 'rides' and about to be deleted"
    assert desk.names == {"b": "b", "c": "c"}


@pytest.mark.scenario("I4")
@pytest.mark.parametrize("path", ["_x.parquet", ".x.parquet", "_tmp/x.parquet", "day=1/.staging/x.parquet"])
def test_an_announced_file_that_spark_does_not_list_is_refused(desk: Desk, path: str) -> None:
    """Registered, its rows would be missing from every answer."""
    (desk.location / path).parent.mkdir(parents=True, exist_ok=True)
    desk.write(path)
    (refused,) = desk.ask(add(path))
    assert isinstance(refused, InvalidInput)
    assert (refused.rule, desk.names) == ("hidden-name", {})
    assert desk.ask(delete(path)) == [None], "one that was registered before this rule can be taken out"


@pytest.mark.scenario("I4")
@pytest.mark.parametrize("path", ["part:1", "2024-05-01T10:00", "d:1/10:00"])
def test_a_local_file_with_a_colon_in_its_name_is_refused(desk: Desk, path: str) -> None:
    """Spark cannot open it: registered, it would make every query fail. In a directory's name it does no harm."""
    (desk.location / "d:1").mkdir()
    desk.write(path, "d:1/a")
    refused, fine = desk.ask(add(path), add("d:1/a"))
    assert isinstance(refused, InvalidInput)
    assert (refused.rule, fine, set(desk.names)) == ("file-name", None, {"d:1/a"})


def test_a_file_announced_through_a_link_is_refused_and_told_its_own_name(desk: Desk) -> None:
    (desk.location / "day=1").mkdir()
    desk.write("day=1/a")
    (desk.location / "latest").symlink_to(desk.location / "day=1")
    refused, fine = desk.ask(add("latest/a"), add("day=1/a"))
    assert str(refused).startswith("link: 'latest/a' is reached through a link; its own name is 'day=1/a'")
    assert (fine, desk.names) == (None, {"day=1/a": "day=1/a"})


# -- an older look ends after a newer one -------------------------------------------------------------------------


def overtaken_after_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Desk], object], before: str = ""
) -> Desk:
    """A desk that has looked at its first file and pauses, while something happens and a peer registers it."""
    store = MemoryStore()
    desk, peer = Desk(tmp_path, store), Desk(tmp_path, store, seed=2)
    if before:
        write_parquet(tmp_path / before, 1, 2, rows=5)
        assert peer.ask(add(before)) == [None]
    looked: list[bool] = []

    def inspect(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs)
        if args[1] == "a" and not looked:
            looked.append(True)
            meanwhile(peer)
        return found

    real = registrar.inspect
    monkeypatch.setattr(registrar, "inspect", inspect)
    return desk


def rows_of(desk: Desk) -> dict[str, int]:
    return {s.name: s.rows for s in desk.ledger.registry.snapshot("rides").by_name.values()}


@pytest.mark.scenario("I8")
@pytest.mark.parametrize("known_before", [False, True])
def test_an_older_look_leaves_the_newer_registration_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, known_before: bool
) -> None:
    """Look at the old content, the file is replaced, a peer looks and registers, then the older look is written."""

    def replaced(peer: Desk) -> None:
        write_parquet(tmp_path / "a", 1, 3, rows=20)
        assert peer.ask(add("a")) == [None]

    desk = overtaken_after_looking(tmp_path, monkeypatch, replaced, before="a" if known_before else "")
    desk.write("a", "b")
    trouble, fine = desk.ask(add("a"), add("b"))
    assert isinstance(trouble, Unavailable), "it is looked at again"
    assert (fine, rows_of(desk)) == (None, {"a": 20, "b": 10})
    assert desk.ask(add("a")) == [None]
    assert rows_of(desk) == {"a": 20, "b": 10}


@pytest.mark.scenario("I8")
def test_an_older_look_does_not_bring_back_what_a_newer_one_found_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registered and forgotten in between, the registry is as it was before the older look."""

    def gone(peer: Desk) -> None:
        assert peer.ask(add("a")) == [None]
        (tmp_path / "a").unlink()
        assert peer.ask(delete("a", only_if_absent=True)) == [None]

    desk = overtaken_after_looking(tmp_path, monkeypatch, gone)
    desk.write("a")
    (trouble,) = desk.ask(add("a"))
    assert isinstance(trouble, Unavailable)
    assert rows_of(desk) == {}
    (refused,) = desk.ask(add("a"))
    assert getattr(refused, "rule", None) == "file-absent"


@pytest.mark.scenario("I8")
def test_a_file_found_gone_that_came_back_is_not_forgotten(desk: Desk) -> None:
    """The scanner saw it gone. By the time its word is carried out the file is there, and may be registered anew."""
    desk.write("a")
    assert desk.ask(add("a")) == [None]
    assert desk.ask(delete(name="a", only_if_absent=True)) == [None]
    assert rows_of(desk) == {"a": 10}
    (desk.location / "a").unlink()
    assert desk.ask(delete(name="a", only_if_absent=True)) == [None]
    assert rows_of(desk) == {}


@pytest.mark.scenario("I8")
def test_a_removal_decided_before_a_newer_registration_does_not_take_that_away(tmp_path: Path) -> None:
    """Two words about one segment: the earlier one is carried out late, and has to be decided again."""
    first, second = write_parquet(tmp_path / "a", 1, 2), write_parquet(tmp_path / "b", 1, 2, rows=20)
    assert (first.name, second.name) == ("a", "b")
    store = MemoryStore()
    watched = Watched(store)
    desk, peer = Desk(tmp_path, watched), Desk(tmp_path, store, seed=2)
    peer.ask(add("a", name="day1"))
    at = len(watched.commits) + 1
    watched.before_commit = lambda n: peer.ask(add("b", name="day1")) if n == at else None
    (trouble,) = desk.ask(delete(name="day1"))
    assert isinstance(trouble, Unavailable)
    assert desk.names == {"day1": "b"}


# -- the first file decides the columns ----------------------------------------------------------------------------


def write_fares(path: Path, fares: list[Any], kind: pa.DataType, **more: list[Any]) -> None:
    times = pa.array([HOUR_MS] * len(fares), pa.timestamp("ms", tz="UTC"))
    pq.write_table(pa.table({"event_time": times, "fare": pa.array(fares, kind), **more}), path)


def columns_of(desk: Desk) -> dict[str, str]:
    return dict(desk.ledger.registry.header("rides").definition.columns)


def test_the_first_file_of_a_table_decides_its_columns(desk: Desk) -> None:
    """In the same write; a later file that does not fit is refused by name, and one with more columns is fine."""
    write_fares(desk.location / "a", [1.5], pa.float64())
    write_fares(desk.location / "b", ["1.5"], pa.string())
    write_fares(desk.location / "c", [2.5], pa.float64(), tip=[1])
    assert columns_of(desk) == {}
    assert desk.ask(add("a")) == [None]
    assert (columns_of(desk), desk.version) == ({"event_time": "timestamp[ms, tz=UTC]", "fare": "double"}, 1)
    refused, fine = desk.ask(add("b"), add("c"))
    assert str(refused) == "schema: b: the table has column 'fare' as double, the file has it as string"
    assert (fine, set(desk.names)) == (None, {"a", "c"})


def test_the_first_of_a_batch_decides_for_the_rest_of_it(desk: Desk) -> None:
    write_fares(desk.location / "a", ["1.5"], pa.string())
    write_fares(desk.location / "b", [1.5], pa.float64())
    write_fares(desk.location / "c", ["2.5"], pa.string())
    outcomes = desk.ask(add("a"), add("b"), add("c"))
    assert [getattr(outcome, "rule", None) for outcome in outcomes] == [None, "schema", None]
    assert (columns_of(desk)["fare"], set(desk.names)) == ("string", {"a", "c"})


def test_of_two_first_files_with_different_columns_one_is_refused(tmp_path: Path) -> None:
    """Two ingesters look at them while the table has no columns; the write that comes second finds that it has."""
    write_fares(tmp_path / "a", [1.5], pa.float64())
    write_fares(tmp_path / "b", ["1.5"], pa.string())
    desk = racing(tmp_path, add("b"))
    (refused,) = desk.ask(add("a"))
    assert str(refused) == "schema: a: the table has column 'fare' as string, the file has it as double"
    assert (columns_of(desk)["fare"], set(desk.names)) == ("string", {"b"})


# -- one table's damage stays its own ------------------------------------------------------------------------------


def damaged_outbox(desk: Desk) -> None:
    """An event that nobody can read."""
    desk.kit.store.commit([Create(paths.outbox_event("arcs", 7), b"\xff not an event")])


def damaged_event_of_a_newer_version(desk: Desk) -> None:
    """One that a newer version of Floodmark left there."""
    desk.kit.store.commit([Create(paths.outbox_event("arcs", 7), b"\xf0" + b"from the future")])


@pytest.mark.parametrize("damage", [damaged_outbox, damaged_event_of_a_newer_version])
def test_a_damaged_outbox_of_one_table_does_not_keep_the_events_of_others(
    desk: Desk, damage: Callable[[Desk], None]
) -> None:
    """INV-14: `arcs` is damaged; `rides`, which comes after it, is published all the same, and every time."""
    desk.ledger.registry.create_table(TableDefinition("arcs", "/lake/arcs", "event_time"))
    damage(desk)
    for path in ("a", "b"):
        desk.write(path)
        desk.publisher.trouble = Unavailable("Kafka is away")
        desk.ask(add(path))
        desk.publisher.trouble = None
        assert desk.outbox.publish_all() == 1
        assert desk.ledger.registry.outbox("rides") == []
    assert len(desk.publisher.published) == 2
    assert len(desk.kit.store.children(paths.outbox("arcs"))) == 1, "what cannot be read is not thrown away"


def test_a_table_that_goes_while_outboxes_are_published_keeps_nobody_waiting(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listed, and then not there."""
    desk.write("a")
    desk.publisher.trouble = Unavailable("Kafka is away")
    desk.ask(add("a"))
    desk.publisher.trouble = None
    monkeypatch.setattr(desk.ledger.registry, "tables", lambda: ["arcs", "rides"])
    assert desk.outbox.publish_all() == 1


# -- what is refused is told of ------------------------------------------------------------------------------------


def refused_of(desk: Desk) -> dict[str, str]:
    return {f.path: f.rule for f in desk.ledger.refusals.read("rides").files}


def test_every_refusal_is_on_the_list_until_the_file_is_registered_or_forgotten(desk: Desk) -> None:
    (desk.location / "a").write_bytes(b"no parquet")
    desk.write("_b", "c")
    desk.ask(add("a"), add("_b"), add("c"), add("../d"), add("absent"))
    assert refused_of(desk) == {"a": "not-parquet", "_b": "hidden-name", "../d": "outside-location"}
    assert desk.ledger.refusals.read("rides").files[0].reason.startswith("a is not a whole Parquet file: ")
    desk.write("a")
    assert desk.ask(add("a"), delete("_b"), delete("../d"))[:2] == [None, None]
    assert refused_of(desk) == {}


def test_a_refused_file_that_was_removed_is_off_the_list_when_that_is_noticed(desk: Desk) -> None:
    (desk.location / "a").write_bytes(b"no parquet")
    desk.ask(add("a"))
    (desk.location / "a").unlink()
    (refused,) = desk.ask(add("a"))
    assert (getattr(refused, "rule", None), refused_of(desk)) == ("file-absent", {})


def test_a_refusal_in_the_write_is_on_the_list_too(desk: Desk) -> None:
    write_fares(desk.location / "a", [1.5], pa.float64())
    write_fares(desk.location / "b", ["1.5"], pa.string())
    desk.ask(add("a"), add("b"))
    assert refused_of(desk) == {"b": "schema"}


def test_nobody_is_refused_before_that_is_written_down(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The announcement is dead-lettered and never comes again, so the list would never tell of it."""

    def away(*_: object) -> None:
        raise Unavailable("not connected to ZooKeeper")

    (desk.location / "a").write_bytes(b"no parquet")
    desk.write("b")
    monkeypatch.setattr(desk.ledger.refusals, "update", away)
    trouble, fine = desk.ask(add("a"), add("b"))
    assert isinstance(trouble, Unavailable)
    assert (fine, set(desk.names)) == (None, {"b"})


def test_a_list_that_cannot_be_read_keeps_no_file_from_being_registered(desk: Desk) -> None:
    """INV-14."""
    desk.kit.store.commit([Create(paths.refused("rides"), b"\xf0 damaged")])
    desk.write("a")
    fine, refused = desk.ask(add("a"), add("_b"))
    assert (fine, getattr(refused, "rule", None)) == (None, "hidden-name")
