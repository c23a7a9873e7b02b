"""The ledger on a server that is behind: what it does not show yet is never taken for what there is."""

import pytest

from floodmark.core.errors import InvalidInput
from floodmark.core.registry import CommandsRefused, Put, Remove
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


def test_the_end_of_the_data_is_known_only_for_the_version_of_a_slice_that_was_read(members: Members) -> None:
    """INV-5: the watermark goes by it without looking at the header."""
    build = members.behind.build(0)
    listed = members.behind.ledger.registry.listed_end
    assert listed(TABLE.name, build.slice_versions) == segment("a", 0, 1).last_ms + 1  # type: ignore[operator]
    moved = {key: version + 1 for key, version in build.slice_versions.items()}
    assert listed(TABLE.name, moved) is None
