"""The consuming loop: effects first, offsets last, and never a partition lost for being busy."""

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from floodmark.bus.delivery import Receipts
from floodmark.bus.ports import Partition, Record
from floodmark.bus.pump import Pump, PumpLimits
from floodmark.core.errors import InvalidInput, Unavailable
from tests.support.bus_doubles import FrozenClock, KeepingDeadLetters, KeepingSink, ScriptedSource

P0 = Partition("tasks.v1", 0)
P1 = Partition("tasks.v1", 1)


def decode(record: Record) -> bytes:
    if record.value != b"ok":
        raise InvalidInput("not-json", f"{record.place} is no message")
    return record.value


@dataclass
class Bench:
    """A pump on a scripted source."""

    limits: PumpLimits = field(default_factory=lambda: PumpLimits(commit_every_ms=0))
    open: bool = True
    outcomes: Counter[tuple[Partition, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.clock = FrozenClock()
        self.source = ScriptedSource(self.clock)
        self.sink = KeepingSink()
        self.dead_letters = KeepingDeadLetters()
        self.pump = Pump(
            source=self.source,
            topics=["tasks.v1"],
            decode=decode,
            sink=self.sink,
            dead_letters=self.dead_letters,
            clock=self.clock,
            randomness=random.Random(1),
            limits=self.limits,
            may_progress=lambda: self.open,
            on_outcome=lambda partition, outcome, count: self.outcomes.update({(partition, outcome): count}),
        )

    def steps(self, count: int = 2) -> None:
        for _ in range(count):
            self.pump.step()


@pytest.mark.scenario("K2")
@pytest.mark.parametrize("seed", range(20))
def test_the_committed_position_is_the_lowest_outstanding_offset_whatever_the_finishing_order(seed: int) -> None:
    """Offsets 0 to 11, eight in flight, 5 failing, any finishing order: committed exactly 5 (INV-8)."""
    bench = Bench(PumpLimits(in_flight_max=8, commit_every_ms=0))
    bench.source.append(P0, 12)
    bench.source.assign(P0)
    order = random.Random(seed)
    finished: set[int] = set()
    while len(finished) < 11:
        bench.steps(1)
        assert bench.pump.in_flight <= 8
        running = {d.record.offset for d in bench.sink.deliveries} - finished - {5}
        offset = order.choice(sorted(running))
        bench.sink.at(offset).finish()
        finished.add(offset)
        if 5 in {d.record.offset for d in bench.sink.deliveries} and bench.sink.at(5).tries == 1:
            bench.sink.at(5).retry(Unavailable("always"))
    bench.steps()
    assert bench.source.committed[P0] == 5


def test_a_full_pump_pauses_and_keeps_polling_then_resumes() -> None:
    """A member that stops polling is thrown out of its group."""
    bench = Bench(PumpLimits(in_flight_max=2, pause_after_ms=0, commit_every_ms=0))
    bench.source.append(P0, 5)
    bench.source.assign(P0)
    bench.steps()
    assert bench.source.paused == {P0}
    polls = bench.source.polls
    bench.steps(5)
    assert bench.source.polls == polls + 5
    assert len(bench.sink.deliveries) == 2
    bench.sink.at(0).finish()
    bench.steps()
    assert [d.record.offset for d in bench.sink.deliveries] == [0, 1, 2]


def test_a_pump_that_is_full_for_a_moment_is_not_paused() -> None:
    """Pausing costs the read-ahead; room that comes within the limit makes it unnecessary."""
    bench = Bench(PumpLimits(in_flight_max=2, pause_after_ms=100, commit_every_ms=0))
    bench.source.append(P0, 5)
    bench.source.assign(P0)
    bench.pump.step()
    wait_ms = bench.pump.step()
    assert (wait_ms, bench.source.paused) == (bench.pump._limits.full_wait_ms, set())
    bench.clock.ms += 99
    bench.sink.at(0).finish()
    bench.pump.step()
    assert [d.record.offset for d in bench.sink.deliveries] == [0, 1, 2]
    bench.steps(2)
    bench.clock.ms += 100
    bench.pump.step()
    assert bench.source.paused == {P0}


def test_a_flood_is_read_in_turns() -> None:
    """One step reads a bounded number of records, so that the rest of the service gets its turn."""
    bench = Bench(PumpLimits(in_flight_max=100, turn_max=3, commit_every_ms=0))
    bench.source.append(P0, 10)
    bench.source.assign(P0)
    bench.pump.step()
    assert len(bench.sink.deliveries) == 3
    bench.steps(3)
    assert len(bench.sink.deliveries) == 10


def test_a_partition_assigned_to_a_full_pump_is_paused_too() -> None:
    """Pausing does not survive a rebalance in the client, so it is asserted anew."""
    bench = Bench(PumpLimits(in_flight_max=1, pause_after_ms=0, commit_every_ms=0))
    bench.source.append(P0)
    bench.source.append(P1)
    bench.source.assign(P0)
    bench.steps()
    bench.source.during_poll.append(lambda: bench.source.assign(P1))
    bench.pump.step()
    bench.steps()
    assert bench.source.paused == {P0, P1}


def test_work_finished_after_a_revoke_never_moves_the_next_assignment() -> None:
    """The partition leaves and comes back while offset 0 is running: its late result changes nothing (INV-8)."""
    bench = Bench()
    bench.source.append(P0, 2)
    bench.source.assign(P0)
    bench.steps()
    late = bench.sink.at(0)
    bench.source.during_poll += [lambda: bench.source.revoke(P0), lambda: bench.source.assign(P0)]
    bench.steps()
    late.finish()
    bench.sink.at(1).finish()
    bench.steps()
    assert bench.source.committed.get(P0, 0) == 0
    bench.sink.at(0).finish()
    bench.steps()
    assert bench.source.committed[P0] == 2


def test_what_is_finished_is_committed_before_the_partition_goes() -> None:
    """Otherwise a rebalance would repeat finished work for nothing."""
    bench = Bench(PumpLimits(commit_every_ms=1_000_000))
    bench.source.append(P0, 3)
    bench.source.assign(P0)
    bench.pump.step()
    bench.sink.at(0).finish()
    bench.source.during_poll.append(lambda: bench.source.revoke(P0))
    bench.pump.step()
    assert bench.source.committed[P0] == 1


def test_nothing_is_committed_for_a_lost_partition() -> None:
    """A lost partition already has another owner."""
    bench = Bench(PumpLimits(commit_every_ms=1_000_000))
    bench.source.append(P0, 1)
    bench.source.assign(P0)
    bench.pump.step()
    before = list(bench.source.commits)
    bench.sink.at(0).finish()
    bench.source.during_poll.append(lambda: bench.source.lose(P0))
    bench.pump.step()
    bench.pump.drain(deadline_ms=bench.clock.ms)
    assert bench.source.commits == before
    assert bench.pump.in_flight == 0


def test_an_invalid_record_is_dead_lettered_and_the_consumer_moves_on() -> None:
    """Bad input is kept with its reason and never blocks the records behind it."""
    bench = Bench()
    bench.source.append(P0, 1, value=b"{")
    bench.source.append(P0, 1)
    bench.source.assign(P0)
    bench.steps()
    assert [(r.offset, e.rule) for r, e in bench.dead_letters.buried] == [(0, "not-json")]
    bench.sink.at(1).finish()
    bench.steps()
    assert bench.source.committed[P0] == 2


def test_a_record_whose_dead_letter_is_not_durable_stays_outstanding() -> None:
    """Dead-lettered only durably: until the letter is acknowledged the offset does not move (INV-8)."""
    bench = Bench()
    bench.dead_letters.unreachable = True
    bench.source.append(P0, 3, value=b"{")
    bench.source.assign(P0)
    bench.steps(40)
    assert bench.dead_letters.tries > 1
    assert P0 not in bench.source.committed
    bench.dead_letters.unreachable = False
    bench.steps(200)
    assert [r.offset for r, _ in sorted(bench.dead_letters.buried, key=lambda b: b[0].offset)] == [0, 1, 2]
    assert bench.source.committed[P0] == 3


def test_an_unavailable_store_postpones_with_growing_delays() -> None:
    """Nothing was attempted, so the record is offered again, each time later."""
    bench = Bench(PumpLimits(commit_every_ms=0, busy_poll_ms=10, idle_poll_ms=10))
    bench.source.append(P0)
    bench.source.assign(P0)
    times = []
    while len(times) < 5:
        offers = len(bench.sink.deliveries)
        bench.pump.step()
        if len(bench.sink.deliveries) > offers:
            times.append(bench.clock.ms)
            bench.sink.deliveries[-1].retry(Unavailable("no ZooKeeper"))
    gaps = [b - a for a, b in pairwise(times)]
    assert gaps[-1] > 2 * gaps[0]
    assert P0 not in bench.source.committed


def test_a_sinks_bug_ends_the_loop_and_commits_nothing() -> None:
    """A broken invariant is our own bug: crash, be redelivered."""
    bench = Bench()
    bench.source.append(P0)
    bench.source.assign(P0)
    bench.pump.step()
    bench.sink.at(0).crash(ZeroDivisionError("bug"))
    with pytest.raises(ZeroDivisionError):
        bench.pump.step()
    assert P0 not in bench.source.committed


def test_nothing_is_read_or_committed_while_the_store_is_away() -> None:
    """ZooKeeper gone: pause, keep polling, commit nothing; then carry on."""
    bench = Bench()
    bench.source.append(P0, 2)
    bench.source.assign(P0)
    bench.steps()
    bench.open = False
    bench.sink.at(0).finish()
    bench.source.append(P0, 1)
    bench.steps(5)
    assert bench.source.paused == {P0}
    assert P0 not in bench.source.committed
    bench.open = True
    bench.steps()
    assert bench.source.committed[P0] == 1
    assert bench.sink.at(2)


def test_draining_takes_nothing_new_waits_for_running_work_and_leaves_the_rest_uncommitted() -> None:
    """Stop: finish or abandon within the grace period, without committing abandoned work."""
    bench = Bench()
    bench.source.append(P0, 2)
    bench.source.assign(P0)
    bench.steps()
    bench.source.append(P0, 5)
    bench.source.during_poll.append(bench.sink.at(0).finish)
    abandoned = bench.pump.drain(deadline_ms=bench.clock.ms + 500)
    assert abandoned == 1
    assert len(bench.sink.deliveries) == 2
    assert bench.source.committed[P0] == 1


def test_draining_does_not_wait_for_work_that_only_waits_for_its_next_try() -> None:
    """A failing record must not use up the grace period."""
    bench = Bench()
    bench.source.append(P0)
    bench.source.assign(P0)
    bench.steps()
    bench.sink.at(0).retry(Unavailable("away"))
    before = bench.clock.ms
    assert bench.pump.drain(deadline_ms=before + 60_000) == 1
    assert bench.clock.ms - before < 1_000


def test_a_recreated_topic_is_read_from_its_beginning() -> None:
    """Offsets that start again mean a new log; results of the old one are void."""
    bench = Bench()
    bench.source.append(P0, 1, first=41)
    bench.source.assign(P0)
    bench.steps()
    old = bench.sink.at(41)
    bench.source.append(P0, 1, first=0)
    bench.steps()
    old.finish()
    bench.steps()
    assert bench.source.committed.get(P0, 0) == 0
    bench.sink.at(0).finish()
    bench.steps()
    assert bench.source.committed[P0] == 1


def test_a_partition_too_far_ahead_of_its_position_is_paused_alone() -> None:
    """One stuck record bounds what is read again after a crash, and does not stop the other partitions."""
    bench = Bench(PumpLimits(in_flight_max=100, span_max=3, commit_every_ms=0))
    bench.source.append(P0, 10)
    bench.source.append(P1, 10)
    bench.source.assign(P0, P1)
    for _ in range(20):
        bench.pump.step()
        for delivery in list(bench.sink.deliveries):
            stuck = delivery.record.partition == P0 and delivery.record.offset == 0
            if not stuck and delivery.tries == 1:
                delivery.tries = 99
                delivery.finish()
    assert bench.source.paused == {P0}
    assert bench.source.committed[P1] == 10
    assert P0 not in bench.source.committed


def test_a_commit_that_could_not_be_made_is_made_later() -> None:
    """The position is not marked as committed until the bus said so."""
    bench = Bench()
    bench.source.append(P0)
    bench.source.assign(P0)
    bench.steps()
    bench.sink.at(0).finish()
    bench.source.unreachable = True
    bench.steps()
    bench.source.unreachable = False
    bench.steps()
    assert bench.source.committed[P0] == 1


def receipts_for(bench: Bench) -> Receipts[bytes]:
    receipts: Receipts[bytes] = Receipts()
    for delivery in bench.sink.deliveries:
        receipts.add(delivery)
    return receipts


def test_records_finished_together_move_every_partition_they_came_from() -> None:
    """A sink may collect thousands and finish them in one go; the positions are as if it had told each (INV-8)."""
    bench = Bench()
    bench.source.append(P0, 3)
    bench.source.append(P1, 2)
    bench.source.assign(P0, P1)
    bench.steps()
    receipts = receipts_for(bench)
    bench.source.append(P0, 1)
    bench.steps()
    assert bench.source.committed == {}
    receipts.finish()
    bench.steps()
    assert (bench.source.committed, bench.pump.in_flight) == ({P0: 3, P1: 2}, 1)
    assert bench.outcomes == {(P0, "finished"): 3, (P1, "finished"): 2}


def test_records_finished_together_after_a_revoke_move_only_what_is_still_held() -> None:
    """P0 leaves and comes back meanwhile: its old records are read again, and their late results change nothing."""
    bench = Bench()
    bench.source.append(P0, 3)
    bench.source.append(P1, 2)
    bench.source.assign(P0, P1)
    bench.steps()
    receipts = receipts_for(bench)
    bench.source.during_poll += [lambda: bench.source.revoke(P0), lambda: bench.source.assign(P0)]
    bench.steps()
    receipts.finish()
    bench.steps()
    assert (bench.source.committed, bench.pump.in_flight) == ({P1: 2}, 3)
    assert bench.outcomes == {(P0, "late"): 3, (P1, "finished"): 2}


def test_headers_are_asked_for_only_when_someone_wants_them() -> None:
    """Most records are handled without a look at their headers."""
    asked: list[str] = []

    def headers() -> list[tuple[str, bytes | None]]:
        asked.append("once")
        return [("ce_id", b"e-1")]

    record = Record(P0, 0, None, b"ok", headers)
    assert (decode(record), asked) == (b"ok", [])
    assert list(record.headers) == [("ce_id", b"e-1")]
    assert Record(P0, 0, None, b"ok", lambda: None).headers == ()
