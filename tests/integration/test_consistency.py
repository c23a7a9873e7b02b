"""From events to STALE marks, by the real process on a real Kafka and ZooKeeper: SCENARIOS C1 to C9 and C11.

The test plays ingester and worker. Views are hourly; hour 3 is `[03:00, 04:00)` of the first day.
"""

import json
import signal
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count, pairwise
from pathlib import Path

import pytest

from floodmark.core.segments import Segment
from floodmark.ledger import paths
from floodmark.ledger.store import Set
from floodmark.local.kafka import KafkaServer
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.eventually import eventually
from tests.support.lab import Lab
from tests.support.ledger_kit import HOUR_MS, segment
from tests.support.pipeline import pipeline_on
from tests.support.service_process import ServiceUnderTest

pytestmark = pytest.mark.stack

DAY = 24
SETTINGS = {"FLOODMARK_CONSISTENCY__SWEEP_EVERY_MS": "86400000"}
"""What these tests see marked was marked because of its event."""


@pytest.fixture
def own(tmp_path: Path, zookeeper: ZooKeeperServer, kafka: KafkaServer) -> Iterator[Lab]:
    """A pipeline of the test's own, whose processes it starts and kills. The next one takes its predecessor's place in
    the group at once, instead of waiting six seconds for it to be declared dead."""
    options = json.dumps({"group.instance.id": "the-only-one"})
    with pipeline_on(tmp_path, zookeeper, kafka, **SETTINGS, FLOODMARK_KAFKA__OPTIONS=options) as made:
        yield Lab(made)


@pytest.mark.scenario("C1")
def test_a_change_of_a_table_without_views_marks_nothing_and_the_offset_moves_on(
    lab: Lab, consistency: ServiceUnderTest
) -> None:
    """C1: filtered. That the ledger is not even asked is counted in tests/unit/test_marker.py."""
    lab.pipeline.table("c1_lonely")
    lab.built_view("c1", range(4))
    lab.change("c1_lonely", segment("a", 0, 4))
    lab.await_caught_up()
    assert lab.stale("c1") == set()
    assert not consistency.events("view_marked", table="c1_lonely")


@pytest.mark.scenario("C2")
def test_100_events_within_the_quiet_period_are_one_flush(own: Lab) -> None:
    """C2: a burst costs one pass over the ledger, and one write for the one shard it touches."""
    own.built_view("c2", range(4))
    # So long that the burst is within it on a busy machine too.
    running = own.pipeline.start(
        "consistency", FLOODMARK_CONSISTENCY__QUIET_MS="4000", FLOODMARK_CONSISTENCY__AGE_MAX_MS="14000"
    )
    running.await_event("partitions_assigned")
    for n in range(100):
        own.register("c2", segment(f"late{n}", n % 4, n % 4 + 1))
    before = own.pipeline.ledger.store.read(paths.shard("c2", 0))
    own.publish("c2")
    own.await_stale("c2", range(4))
    own.await_caught_up()
    (marked,) = running.events("view_marked", view="c2")
    assert marked["invalidated"] == 4
    after = own.pipeline.ledger.store.read(paths.shard("c2", 0))
    assert before is not None
    assert after is not None
    assert after.version == before.version + 1


@pytest.mark.scenario("C3")
def test_an_endless_stream_of_events_cannot_put_a_mark_off_past_the_maximum_age(own: Lab) -> None:
    """C3: the quiet period never comes, the marks do: the next one an age after the first change not yet marked."""
    own.built_view("c3", range(2))
    running = own.pipeline.start(
        "consistency", FLOODMARK_CONSISTENCY__QUIET_MS="700", FLOODMARK_CONSISTENCY__AGE_MAX_MS="1000"
    )
    running.await_event("partitions_assigned")
    began, sent = datetime.now(UTC), 0

    def heard_and_marked() -> bool:
        """Called every 100 ms, each time with one more event."""
        nonlocal sent
        sent += 1
        own.change("c3", segment("s0", 0, 1, crc=1_000 + sent))
        return sent >= 15 and len(running.events("view_marked", view="c3")) >= 3

    eventually(heard_and_marked, every_s=0.1, what="three marks while a stream of events flows")
    assert own.stale("c3") == {0}
    marks = [datetime.fromisoformat(e["timestamp"]) for e in running.events("view_marked", view="c3")]
    waits_s = [(later - earlier).total_seconds() for earlier, later in pairwise([began, *marks])]
    # To the millisecond it is held in tests/unit/test_debounce.py.
    assert max(waits_s) < 10, f"marks came after {waits_s} s; the maximum age is 1 s, the rest is a busy machine"


@pytest.mark.scenario("C4")
def test_changes_on_day_1_and_day_365_touch_nothing_between(lab: Lab) -> None:
    """C4: a set of intervals, never one hull; both days in one batch."""
    hours = [DAY, *range(180 * DAY, 180 * DAY + 6), 365 * DAY]
    lab.pipeline.table("c4")
    lab.lose("c4", *(segment(f"s{h}", h, h + 1) for h in hours))
    lab.pipeline.view("c4", "c4")
    lab.build("c4", *hours)
    lab.register("c4", segment(f"s{DAY}", DAY, DAY + 1, crc=2))
    lab.register("c4", segment(f"s{365 * DAY}", 365 * DAY, 365 * DAY + 1, crc=2))
    lab.publish("c4")
    lab.await_stale("c4", {DAY, 365 * DAY})
    lab.await_caught_up()
    assert lab.stale("c4") == {DAY, 365 * DAY}


@pytest.mark.scenario("C5")
def test_a_kill_after_reading_and_before_marking_loses_nothing(own: Lab) -> None:
    """C5, first half: what was only heard is not committed, so the next process hears it again."""
    own.built_view("c5", range(4))
    deaf = own.pipeline.start(
        "consistency",
        FLOODMARK_CONSISTENCY__QUIET_MS="60000",
        FLOODMARK_CONSISTENCY__AGE_MAX_MS="60000",
        FLOODMARK_CONSISTENCY__SWEEP_GRACE_MS="60001",
    )
    deaf.await_event("partitions_assigned")
    own.change("c5", segment("late", 1, 2))
    eventually(lambda: "floodmark_records_in_flight 1.0" in deaf.ask("/metrics")[1], what="the record being read")
    deaf.process.kill()
    deaf.process.wait()
    assert own.stale("c5") == set()
    assert own.positions() == {}
    own.pipeline.start("consistency")
    own.await_stale("c5", {1})
    own.await_caught_up()


@pytest.mark.scenario("C5")
def test_a_kill_after_marking_and_before_the_commit_marks_again(own: Lab) -> None:
    """C5, second half: the record comes again. A bucket rebuilt meanwhile is marked once more, which costs a revert
    and never a wrong row."""
    for view in ("c5", "known"):
        own.built_view(view, range(4))
    slow = own.pipeline.start("consistency", FLOODMARK_CONSISTENCY__INDEX_REFRESH_MS="600000")
    crcs = count(2)

    def knows_the_views() -> bool:
        """A record that is read before the first list of views waits for the second one, unmarked."""
        own.change("known", segment("s0", 0, 1, crc=next(crcs)))
        return own.stale("known") == {0}

    eventually(knows_the_views, every_s=0.2, what="the first list of views")
    own.change("c5", segment("late", 1, 2))
    marked = own.await_stale("c5", {1})[1].cause  # and its record waits ten minutes for the next list of views
    slow.process.kill()
    slow.process.wait()
    assert marked is not None
    partition, offset = map(int, marked.place.split("/")[1:])
    assert own.positions().get(partition, 0) <= offset
    own.build("c5", 1)
    own.pipeline.start("consistency")
    own.await_caught_up()
    assert own.stale("c5") == {1}
    assert own.wrong("c5") == []
    incarnation = own.pipeline.ledger.views.header("c5").incarnation
    assert own.pipeline.ledger.views.revert_valid("c5", incarnation, HOUR_MS).result


@pytest.mark.scenario("C5")
def test_a_stop_signal_marks_what_was_heard_before_it_ends(own: Lab) -> None:
    """Pending marks are brought in and their offsets committed; the next process has nothing to do again."""
    own.built_view("c5", range(4))
    running = own.pipeline.start(
        "consistency",
        FLOODMARK_CONSISTENCY__QUIET_MS="60000",
        FLOODMARK_CONSISTENCY__AGE_MAX_MS="60000",
        FLOODMARK_CONSISTENCY__SWEEP_GRACE_MS="60001",
    )
    running.await_event("partitions_assigned")
    own.change("c5", segment("late", 1, 2))
    eventually(lambda: "floodmark_records_in_flight 1.0" in running.ask("/metrics")[1], what="the record being read")
    running.process.send_signal(signal.SIGTERM)
    assert running.exit_code() == 0
    assert own.stale("c5") == {1}
    assert own.positions() == own.ends()


@pytest.mark.scenario("C6")
def test_a_segment_that_moves_to_another_day_marks_both_days(lab: Lab) -> None:
    """C6: rows left one bucket and came to another."""
    lab.built_view("c6", range(2 * DAY))
    lab.change("c6", segment("s2", DAY + 3, DAY + 4, crc=2))
    entries = lab.await_stale("c6", {2, DAY + 3})
    assert {entries[h].cause.segments for h in (2, DAY + 3)} == {("s2",)}  # type: ignore[union-attr]


@pytest.mark.scenario("C7")
def test_a_segment_without_times_marks_every_bucket_and_invents_none(lab: Lab) -> None:
    """C7: it may hold rows of any time. Beyond coverage there is nothing to be wrong."""
    lab.built_view("c7", range(6))
    lab.change("c7", Segment("anytime", 1, None, None, "anytime.parquet", 1, 1))
    lab.await_stale("c7", range(6))
    lab.await_caught_up()
    assert set(lab.pipeline.states("c7")) == set(range(6))


@pytest.mark.scenario("C8")
def test_older_data_becomes_covered(lab: Lab) -> None:
    """C8, extend: coverage begins with it, and every bucket up to the old beginning is there to be built. The cause
    names the segment that was older, not the first of the batch."""
    lab.built_view("c8_extend", range(10, 14))
    lab.register("c8_extend", segment("s10", 10, 11, crc=2))
    lab.register("c8_extend", segment("older", 7, 8))
    lab.publish("c8_extend")
    entries = lab.await_stale("c8_extend", {7, 8, 9, 10})
    assert lab.pipeline.ledger.views.header("c8_extend").coverage_start_ms == 7 * HOUR_MS
    assert {entries[h].cause.segments for h in (7, 8, 9)} == {("older",)}  # type: ignore[union-attr]
    assert entries[10].cause is not None
    assert entries[10].cause.segments == ("s10",)
    lab.build("c8_extend", 7, 8, 9, 10)
    assert lab.wrong("c8_extend") == []


@pytest.mark.scenario("C8")
def test_older_data_leaves_a_fixed_coverage_as_it_is(lab: Lab) -> None:
    """C8, fixed: no entry before coverage, so a query takes that range from base."""
    lab.built_view("c8_fixed", range(10, 14), coverage="fixed")
    before = lab.pipeline.ledger.views.header("c8_fixed")
    lab.change("c8_fixed", segment("older", 7, 8))
    lab.await_caught_up()
    assert lab.pipeline.ledger.views.header("c8_fixed") == before
    assert set(lab.pipeline.states("c8_fixed")) == {10, 11, 12, 13}
    assert lab.stale("c8_fixed") == set()


@pytest.mark.scenario("C9")
def test_an_entry_beyond_the_watermark_is_marked_too(lab: Lab) -> None:
    """C9: an append out of order leaves an entry past the frontier, and it can be outdated like any other."""
    lab.built_view("c9", range(3))
    lab.lose("c9", segment("s7", 7, 8))
    lab.build("c9", 7)
    assert lab.pipeline.ledger.views.header("c9").watermark_ms == 3 * HOUR_MS
    lab.change("c9", segment("s7", 7, 8, crc=2), segment("s5", 5, 6))
    lab.await_stale("c9", {7})
    lab.await_caught_up()
    assert set(lab.pipeline.states("c9")) == {0, 1, 2, 7}, "past the frontier nothing is invented"


@pytest.mark.scenario("C11")
def test_one_views_corrupt_shard_holds_up_neither_other_views_nor_its_own_other_shards(
    lab: Lab, consistency: ServiceUnderTest
) -> None:
    """C11: what can be marked is marked, what cannot is named in the log, and the offset moves on."""
    second_shard = range(256, 260)
    lab.pipeline.table("c11")
    lab.lose("c11", *(segment(f"s{h}", h, h + 1) for h in (0, 1, *second_shard)))
    for view in ("c11_damaged", "c11_well"):
        lab.built_view(view, [0, 1, *second_shard], table="c11")
    store = lab.pipeline.ledger.store
    store.commit([Set(paths.shard("c11_damaged", 0), b"\x01" + uuid.uuid4().bytes, -1)])
    lab.change("c11", segment("s1", 1, 2, crc=2), segment("s257", 257, 258, crc=2))
    lab.await_stale("c11_well", {1, 257})
    lab.await_caught_up()
    damage = consistency.await_event("view_not_markable", view="c11_damaged")
    assert paths.shard("c11_damaged", 0) in damage["error"]
    store.commit([Set(paths.shard("c11_damaged", 0), store.read(paths.shard("c11_well", 0)).data, -1)])  # type: ignore[union-attr]
    assert lab.stale("c11_damaged") == {1, 257}
    assert consistency.process.poll() is None
