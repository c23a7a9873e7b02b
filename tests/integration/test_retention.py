"""Retention in the ledger: removed and condemned in one write, in memory and on a real ZooKeeper."""

import random
from dataclasses import replace

import pytest

from floodmark.core.errors import InvalidInput
from floodmark.core.registry import Draft, Put
from floodmark.core.segments import Segment
from floodmark.ledger import paths
from floodmark.ledger.condemned import CondemnedFile
from floodmark.ledger.registry import Registered
from floodmark.ledger.store import Create, Set, Store
from tests.support.ledger_kit import HOUR_MS, TABLE, Kit, segment
from tests.support.memory_store import Faulty, Watched

KEPT = replace(TABLE, properties={"retention": "1h"})
CUT_MS = 10 * HOUR_MS


def kit_on(store: Store) -> Kit:
    kit = Kit(store)
    kit.ledger.registry.create_table(KEPT)
    return kit


def retire(kit: Kit, batch_max: int = 100) -> Registered | None:
    return kit.ledger.retention.retire("rides", before_ms=CUT_MS, batch_max=batch_max)


def condemned(kit: Kit) -> list[str]:
    return sorted(kit.ledger.retention.condemned_paths("rides"))


def registered(kit: Kit) -> set[str]:
    return set(kit.ledger.registry.snapshot("rides").by_name)


def test_what_is_past_its_retention_is_removed_reported_and_condemned_in_one_write(store: Store) -> None:
    watched = Watched(store)
    kit = kit_on(watched)
    kit.put(segment("old", 0, 1), segment("older", 2, 10), segment("young", 9, 11))
    watched.commits.clear()
    retired = retire(kit)
    assert retired is not None
    assert len(watched.commits) == 1
    assert registered(kit) == {"young"}
    event = kit.ledger.registry.outbox("rides")[-1]
    assert retired.event is not None
    assert event.event_id == retired.event.event_id
    assert sorted((c.action, c.name) for c in event.changes) == [("deleted", "old"), ("deleted", "older")]
    assert len(event.trace_id) == 32
    (found,) = kit.ledger.retention.condemned("rides")
    assert (found.version, found.condemned_at_ms) == (retired.version, kit.clock.now_ms())
    assert found.files == (CondemnedFile("old.parquet", 100, ""), CondemnedFile("older.parquet", 100, ""))
    assert retire(kit) is None


def test_batches_are_taken_oldest_first_until_nothing_is_left(store: Store) -> None:
    kit = kit_on(store)
    kit.put(*(segment(f"s{n}", n, n + 1) for n in range(5)))
    batches = [[c.name for c in done.changes] for _ in range(3) if (done := retire(kit, batch_max=2))]
    assert [sorted(batch) for batch in batches] == [["s0", "s1"], ["s2", "s3"], ["s4"]]
    assert len(kit.ledger.retention.condemned("rides")) == 3


@pytest.mark.scenario("K12")
def test_a_batch_too_large_for_one_write_is_cut(store: Store) -> None:
    kit = kit_on(store)
    randomness = random.Random(1)
    names = [f"{n:04}{randomness.randbytes(300).hex()}" for n in range(2000)]  # does not compress
    segments = [replace(segment("s", n / 50, n / 50 + 0.01), name=name, path=name) for n, name in enumerate(names)]
    kit.put(*segments)
    end_ms = 41 * HOUR_MS
    rounds = 0
    while kit.ledger.retention.retire("rides", before_ms=end_ms, batch_max=2000):
        rounds += 1
    assert rounds > 1
    assert registered(kit) == set()
    assert condemned(kit) == sorted(names)


def test_a_segment_replaced_meanwhile_by_a_younger_one_stays(store: Store) -> None:
    """What is too old is decided in the attempt that removes it."""
    watched = Watched(store)
    kit = kit_on(watched)
    kit.put(segment("a", 0, 1), segment("b", 0, 1))
    peer = Kit(store, seed=2)

    def replace_a(_: int) -> None:
        watched.before_commit = lambda _: None
        peer.put(segment("a", 0, 20, crc=2))

    watched.before_commit = replace_a
    retire(kit)
    assert registered(kit) == {"a"}
    assert condemned(kit) == ["b.parquet"]


@pytest.mark.parametrize("word", ["lost", "gone"])
def test_a_lost_answer_is_looked_up_and_the_removal_happens_once(store: Store, word: str) -> None:
    faulty = Faulty(store)
    kit = kit_on(faulty)
    kit.put(segment("a", 0, 1), segment("b", 2, 3))
    faulty.script = iter([word])
    retired = retire(kit, batch_max=1)
    assert retired is not None
    assert [c.name for c in retired.changes] == ["a"]
    assert registered(kit) == {"b"}
    assert condemned(kit) == ["a.parquet"]


def test_a_path_that_another_segment_needs_is_not_condemned(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry gives a path one name; should it ever have had two, its file stays for the other."""
    kit = kit_on(store)
    monkeypatch.setattr(Draft, "_move", lambda *_: None)  # the rule that keeps it so
    kit.put(segment("old", 0, 1), replace(segment("young", 9, 12), path="old.parquet"))
    assert retire(kit) is not None
    assert registered(kit) == {"young"}
    assert condemned(kit) == []


def test_a_condemned_path_cannot_be_registered(store: Store) -> None:
    """Not by an announcement made before, nor under another name, until it is spared or its file is gone."""
    kit = kit_on(store)
    kit.put(segment("a", 0, 1), segment("b", 0, 1))
    retire(kit)
    (found,) = kit.ledger.retention.condemned("rides")
    for again in (segment("a", 0, 1), replace(segment("c", 20, 21), path="a.parquet")):
        with pytest.raises(InvalidInput, match=r"^condemned: a.parquet is past the retention of table 'rides'"):
            kit.put(again)
    kit.ledger.retention.spare(found, [f for f in found.files if f.path == "a.parquet"])
    kit.put(segment("a", 0, 1))
    with pytest.raises(InvalidInput, match=r"^condemned: b.parquet"):
        kit.put(segment("b", 0, 1))
    kit.ledger.retention.forget(kit.ledger.retention.condemned("rides")[0])
    kit.put(segment("b", 0, 1))
    assert registered(kit) == {"a", "b"}


def test_a_path_condemned_between_decision_and_write_is_not_registered(store: Store) -> None:
    """INV-11: a path is never registered and condemned at once, whoever comes first."""
    watched = Watched(store)
    kit = kit_on(watched)
    kit.put(segment("a", 0, 1))
    peer = Kit(store, seed=2)

    def condemn(_: int) -> None:
        watched.before_commit = lambda _: None
        assert retire(peer) is not None

    watched.before_commit = condemn
    with pytest.raises(InvalidInput, match=r"^condemned: "):
        kit.put(segment("a", 20, 21, crc=2))
    assert registered(kit) == set()
    assert condemned(kit) == ["a.parquet"]


def test_a_table_without_retention_pays_nothing_for_it(store: Store) -> None:
    """Its registrations do not even look for condemned paths."""
    watched = Watched(store)
    kit = Kit(watched)
    kit.ledger.registry.create_table(TABLE)
    listed: list[str] = []
    children = watched.children
    watched.children = lambda path: listed.append(path) or children(path)  # type: ignore[method-assign,func-returns-value]
    kit.put(segment("a", 0, 1))
    assert paths.condemned("rides") not in listed
    assert not any(isinstance(op, Create | Set) and "condemned" in op.path for ops in watched.commits for op in ops)


def test_an_outdated_list_is_not_written_back(store: Store) -> None:
    """Two janitors at once: the slower one changes nothing."""
    kit = kit_on(store)
    kit.put(segment("a", 0, 1), segment("b", 0, 1))
    retire(kit)
    (found,) = kit.ledger.retention.condemned("rides")
    first, second = found.files
    kit.ledger.retention.spare(found, [first])
    kit.ledger.retention.spare(found, [second])
    kit.ledger.retention.forget(found)
    assert condemned(kit) == [second.path]


def test_registering_elsewhere_goes_on(store: Store) -> None:
    kit = kit_on(store)
    kit.put(segment("a", 0, 1))
    retire(kit)
    young: list[Segment] = [segment("c", 20, 21), segment("d", 0, 1)]
    kit.ledger.registry.apply("rides", [Put(s) for s in young])
    assert registered(kit) == {"c", "d"}
