"""What the bus in memory tells whoever judges positions. All else of it is in the contract suite."""

from floodmark.bus.ports import Outgoing, Partition
from tests.support.memory_bus import MemoryBus


class Deaf:
    def assigned(self, _: object) -> None: ...
    def revoked(self, _: object) -> None: ...
    def lost(self, _: object) -> None: ...


def test_what_was_read_of_a_log_that_is_gone_lets_go_of_nothing_in_the_new_one() -> None:
    """Kafka takes such a position too, and the reader cannot know that its topic was made anew."""
    bus, at = MemoryBus({"topic": 1}), Partition("topic", 0)
    told: list[tuple[int, int]] = []
    bus.committed = lambda _group, _partition, before, after: told.append((before, after))
    source = bus.source("group")
    source.subscribe(["topic"], Deaf())
    bus.append(Outgoing("topic", None, b"old"))
    assert len(source.poll(records_max=9, timeout_ms=0)) == 1
    bus.delete_topic("topic")
    bus.append(Outgoing("topic", None, b"new"))
    assert source.commit({at: 1})
    assert told == []
    assert [r.value for r in source.poll(records_max=9, timeout_ms=0)] == [b"new"]
    assert source.commit({at: 1})
    assert told == [(1, 1)]
