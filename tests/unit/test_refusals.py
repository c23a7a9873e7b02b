"""The list of refused files: what is written, what is not, and that it stays bounded."""

import pytest

from floodmark.core.errors import InvalidInput
from floodmark.core.refusals import COUNTED_MAX, KEPT_MAX, RefusedFile, RefusedFiles
from floodmark.core.tables import TableDefinition
from floodmark.ledger import paths
from floodmark.ledger.store import NODE_BYTES_MAX, Set
from tests.support.ledger_kit import Kit
from tests.support.memory_store import MemoryStore, Watched

pytestmark = pytest.mark.scenario("I7")


def file(path: str, reason: str = "it is not", since_ms: int = 1) -> RefusedFile:
    return RefusedFile(path, "not-parquet", reason, since_ms)


def many(first: int, last: int) -> list[RefusedFile]:
    return [file(f"{n}.parquet") for n in range(first, last)]


def test_a_file_refused_again_for_the_same_reason_is_no_change() -> None:
    """It keeps the time of its first refusal; another reason is news and moves it to the end."""
    known = RefusedFiles().with_refused([file("a"), file("b")])
    assert known.with_refused([file("a", since_ms=9)]) == known
    changed = known.with_refused([file("a", "it is too old", since_ms=9)])
    assert [(f.path, f.since_ms) for f in changed.files] == [("b", 1), ("a", 9)]


def test_the_newest_are_kept_and_all_are_counted() -> None:
    full = RefusedFiles().with_refused(many(0, KEPT_MAX + 50))
    assert (len(full.files), full.count) == (KEPT_MAX, KEPT_MAX + 50)
    assert full.files[0].path == "50.parquet"
    assert full.with_refused(many(0, 50)) == full, "those pushed off are known, and push off nobody"
    assert full.without([f"{n}.parquet" for n in range(50)]).count == KEPT_MAX
    room = full.without(["60.parquet"])
    assert "3.parquet" in [f.path for f in room.with_refused(many(3, 4)).files], "there is room to tell of it again"
    assert room.with_refused(many(3, 4)).count == room.count


def test_what_has_gone_or_is_registered_is_neither_kept_nor_counted() -> None:
    full = RefusedFiles().with_refused(many(0, KEPT_MAX + 50))
    waiting = {"7.parquet", "100.parquet"}
    left = full.still(lambda path: path in waiting, lambda: waiting)
    assert ([f.path for f in left.files], left.count) == (["100.parquet"], 2)


@pytest.fixture
def watched() -> Watched:
    return Watched(MemoryStore())


@pytest.fixture
def kit(watched: Watched) -> Kit:
    made = Kit(watched)
    made.ledger.registry.create_table(TableDefinition("rides", "/lake/rides", "event_time"))
    return made


def test_what_changes_nothing_is_not_written(kit: Kit, watched: Watched) -> None:
    """A refused file is announced again and again."""
    refused = {"a": ("not-parquet", "it is not")}
    kit.ledger.refusals.update("rides", refused, ())
    before = len(watched.commits)
    for _ in range(5):
        kit.clock.ms += 60_000
        kit.ledger.refusals.update("rides", refused, ["b"])
    assert len(watched.commits) == before
    kit.ledger.refusals.update("rides", {}, ["a"])
    assert kit.ledger.refusals.read("rides") == RefusedFiles()


def test_two_ingesters_that_refuse_at_once_are_both_heard(kit: Kit, watched: Watched) -> None:
    peer = Kit(watched.inner, seed=2)
    at = len(watched.commits) + 1
    watched.before_commit = lambda n: peer.ledger.refusals.update("rides", {"b": ("x", "y")}, ()) if n == at else None
    kit.ledger.refusals.update("rides", {"a": ("x", "y")}, ())
    assert [f.path for f in kit.ledger.refusals.read("rides").files] == ["b", "a"]


def test_a_table_that_has_gone_has_no_list(kit: Kit, watched: Watched) -> None:
    """A refusal that comes late makes no node that nobody would ever remove."""
    kit.ledger.refusals.update("gone", {"a": ("x", "y")}, ())
    assert watched.inner.read(paths.refused("gone")) is None


def test_the_longest_list_fits_its_node(kit: Kit) -> None:
    """Paths and reasons of any length, none like another."""
    many_refused = {f"{n:x}" * 400: ("rule", chr(0x4E00 + n % 5000) * 5_000) for n in range(KEPT_MAX + COUNTED_MAX + 5)}
    for n in range(0, len(many_refused), 1_000):
        kit.ledger.refusals.update("rides", dict(list(many_refused.items())[n : n + 1_000]), ())
    found = kit.ledger.refusals.read("rides")
    assert found.count == KEPT_MAX + COUNTED_MAX
    node = kit.store.read(paths.refused("rides"))
    assert node is not None
    assert len(node.data) < NODE_BYTES_MAX


def test_a_list_that_cannot_be_read_is_left_as_it_is(kit: Kit) -> None:
    """A newer version may have written it."""
    kit.ledger.refusals.update("rides", {"a": ("x", "y")}, ())
    kit.store.commit([Set(paths.refused("rides"), b"\xf0from the future", 0)])
    with pytest.raises(InvalidInput, match="has format 240"):
        kit.ledger.refusals.update("rides", {"b": ("x", "y")}, ())
    node = kit.store.read(paths.refused("rides"))
    assert node is not None
    assert node.data == b"\xf0from the future"
