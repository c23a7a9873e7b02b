"""The registry is read piece by piece, and maybe from a server that is behind: what is read is of one moment, and what
is not shown yet is never taken for what there is.
"""

from collections.abc import Callable, Sequence

import pytest

from floodmark.core.errors import InvalidInput
from floodmark.core.registry import CommandsRefused, Put, Remove
from floodmark.ledger import paths
from floodmark.ledger.store import Node
from tests.support.ledger_kit import TABLE, Kit, segment
from tests.support.memory_store import LaggingStore, MemoryStore


class Members:
    """A peer whose server is the leader, and a kit whose server shows what there was before the peer acted."""

    def __init__(self) -> None:
        leader = MemoryStore()
        self.peer = Kit(leader)
        self.peer.set_up()
        self.peer.put(segment("a", 0, 1))
        self.behind = Kit(LaggingStore(leader), seed=2)
        self.behind.ledger.registry.snapshot(TABLE.name)

    def names(self) -> set[str]:
        return set(self.peer.ledger.registry.snapshot(TABLE.name).by_name)


@pytest.fixture
def members() -> Members:
    return Members()


def test_a_segment_that_a_peer_removed_is_registered_again(members: Members) -> None:
    """INV-7: that there is nothing to do is said of the newest registry only."""
    members.peer.remove("a")
    (outcome,) = members.behind.ledger.registry.apply(TABLE.name, [Put(segment("a", 0, 1))])
    assert [change.action for change in outcome.result.changes] == ["added"]
    assert members.names() == {"a"}


def test_a_segment_that_a_peer_added_is_removed(members: Members) -> None:
    members.peer.put(segment("b", 1, 2))
    (outcome,) = members.behind.ledger.registry.apply(TABLE.name, [Remove("b")])
    assert [change.action for change in outcome.result.changes] == ["deleted"]
    assert members.names() == {"a"}


def test_a_path_that_a_peer_freed_may_be_taken(members: Members) -> None:
    """That something cannot be done is said of the newest registry only: nobody offers a refused file again."""
    members.peer.remove("a")
    renamed = segment("b", 0, 1, path="a.parquet")  # type: ignore[arg-type]
    members.behind.ledger.registry.apply(TABLE.name, [Put(renamed)])
    assert members.names() == {"b"}


def test_a_path_that_a_peer_took_is_refused(members: Members) -> None:
    members.peer.put(segment("b", 1, 2, path="c.parquet"))  # type: ignore[arg-type]
    with pytest.raises(CommandsRefused) as refusal:
        members.behind.put(segment("c", 1, 2))
    assert isinstance(refusal.value, InvalidInput)
    assert refusal.value.rule == "path-taken"
    assert members.names() == {"a", "b"}


class ActsBetween(MemoryStore):
    """Runs an action once, after the table's header was read and before its slices are."""

    action: Callable[[], None] | None = None

    def read_many(self, wanted: Sequence[str]) -> list[Node | None]:
        if self.action is not None and any(path.startswith(paths.slices(TABLE.name)) for path in wanted):
            action, self.action = self.action, None
            action()
        return super().read_many(wanted)


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_a_registry_that_changes_while_it_is_read_is_read_again(*, warm: bool) -> None:
    """INV-12: a snapshot of one version that lists what came with the next would be taken for that version for ever."""
    store = ActsBetween()
    kit, peer = Kit(store), Kit(store, seed=2)
    kit.set_up()
    kit.put(segment("a", 0, 1))
    reader = Kit(store, seed=3).ledger.registry
    if warm:
        reader.snapshot(TABLE.name)
        kit.put(segment("b", 0, 1))
    store.action = lambda: peer.put(segment("late", 0, 1))
    found = reader.snapshot(TABLE.name)
    assert store.action is None, "the registry changed in between"
    assert found.header.version == kit.ledger.registry.header(TABLE.name).version
    assert len(found.by_name) == found.header.segment_count
    assert "late" in found.by_name


def test_the_end_of_the_data_is_known_only_for_the_version_of_a_slice_that_was_read(members: Members) -> None:
    """INV-5: the watermark goes by it without looking at the header."""
    build = members.behind.build(0)
    listed = members.behind.ledger.registry.listed_end
    assert listed(TABLE.name, build.slice_versions) == segment("a", 0, 1).last_ms + 1  # type: ignore[operator]
    moved = {key: version + 1 for key, version in build.slice_versions.items()}
    assert listed(TABLE.name, moved) is None
