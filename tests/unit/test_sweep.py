"""What the sweep takes for a lost event, and what it leaves to the event that is still on its way."""

import random
from collections.abc import Callable

import msgspec
import pytest

from floodmark.core.errors import InvalidInput
from floodmark.core.registry import Put, Remove
from floodmark.core.segments import Segment
from floodmark.core.tables import CoverageMode
from floodmark.ledger import codec, paths
from floodmark.ledger.store import Set
from floodmark_consistency.sweep import Sweeper
from tests.support.ledger_kit import HOUR_MS, VIEW, Kit, segment
from tests.support.memory_store import MemoryStore, Watched

GRACE_MS = 1_000


class Sweeping:
    """A view of hours 0 to 3, hour 2 VALID-empty, and a sweeper over it."""

    def __init__(self, coverage: CoverageMode = CoverageMode.EXTEND, *, first_hour: int = 0) -> None:
        self.store = Watched(MemoryStore())
        self.kit = Kit(self.store)
        self.kit.set_up(coverage_hour=first_hour, coverage=coverage)
        self.kit.put(*(segment(f"s{h}", h, h + 1) for h in (0, 1, 3) if h >= first_hour))
        for hour in range(first_hour, 4):
            self.kit.append(hour, f"a{hour}")
        self.sweeper = Sweeper(self.kit.ledger, self.kit.clock, grace_ms=GRACE_MS)

    def sweep(self, *, after_ms: int = 0) -> int:
        self.kit.clock.ms += after_ms
        return self.sweeper.sweep("rides_hourly")

    def twice(self) -> int:
        """Note what differs, and look again when the grace period is over."""
        assert self.sweep() == 0
        return self.sweep(after_ms=GRACE_MS)

    def stale(self) -> list[int]:
        return [hour for hour, state in self.kit.states().items() if state == "STALE"]


@pytest.fixture
def sweeping() -> Sweeping:
    return Sweeping()


@pytest.mark.parametrize(
    ("change", "hours"),
    [
        (Put(segment("s1", 1, 2, crc=2)), [1]),
        (Put(segment("late", 2, 3)), [2]),
        (Remove("s3"), [3]),
        (Put(segment("s0", 3, 4)), [0, 3]),
        (Put(Segment("anytime", 1, None, None, "anytime.parquet", 1, 1)), [0, 1, 2, 3]),
    ],
    ids=["replaced", "into a VALID-empty bucket", "deleted", "moved", "without times"],
)
def test_whatever_changed_without_an_event_is_marked_after_the_grace_period(
    sweeping: Sweeping, change: Put | Remove, hours: list[int]
) -> None:
    """C10 in the small: exactly the buckets that differ, however they came to."""
    sweeping.kit.ledger.registry.apply("rides", [change])
    assert sweeping.twice() == len(hours)
    assert sweeping.stale() == hours
    assert {sweeping.kit.entry(h).cause.kind for h in hours} == {"sweep"}  # type: ignore[union-attr]


def test_a_difference_younger_than_the_grace_period_is_left_to_its_event(sweeping: Sweeping) -> None:
    """The event may still be on the way; what it marks is no repair."""
    sweeping.kit.put(segment("late", 2, 3))
    assert sweeping.sweep() == 0
    assert sweeping.sweep(after_ms=GRACE_MS - 1) == 0
    sweeping.kit.mark(2)
    assert sweeping.sweep(after_ms=GRACE_MS) == 0


def test_a_bucket_rebuilt_and_changed_again_between_two_sweeps_is_not_taken_for_a_lost_event(
    sweeping: Sweeping,
) -> None:
    """A busy bucket differs at every look, each time for another reason, and every event arrives."""
    for n in range(2, 6):
        sweeping.kit.put(segment("s1", 1, 2, crc=n))
        assert sweeping.sweep(after_ms=10 * GRACE_MS) == 0, f"after change {n}"
        sweeping.kit.mark(1)
        sweeping.kit.refresh(1, f"r{n}")


def test_a_change_elsewhere_in_the_slice_does_not_put_off_a_repair(sweeping: Sweeping) -> None:
    """Only the bucket's own source restarts its grace period, or a busy day would hide a lost event for ever."""
    sweeping.kit.put(segment("late", 2, 3))
    assert sweeping.sweep() == 0
    sweeping.kit.put(segment("beyond", 9, 10))
    assert sweeping.sweep(after_ms=GRACE_MS) == 1
    assert sweeping.stale() == [2]


def test_a_repair_is_counted_once(sweeping: Sweeping) -> None:
    """What is STALE already is no repair."""
    sweeping.kit.put(segment("late", 2, 3))
    assert sweeping.twice() == 1
    assert sweeping.sweep(after_ms=GRACE_MS) == 0


def test_a_mark_that_arrives_during_the_repair_is_not_counted_as_one(sweeping: Sweeping) -> None:
    """What is counted is what the sweep itself marked."""
    sweeping.kit.put(segment("late", 2, 3))
    assert sweeping.sweep() == 0

    def the_event_arrives(_: int) -> None:
        sweeping.store.before_commit = lambda _: None
        sweeping.kit.mark(2)

    sweeping.store.before_commit = the_event_arrives
    assert sweeping.sweep(after_ms=GRACE_MS) == 0
    assert sweeping.stale() == [2]


def test_where_no_slice_moved_nothing_is_written(sweeping: Sweeping) -> None:
    """A sweep of a view in order only reads."""
    before = len(sweeping.store.commits)
    assert sweeping.twice() == 0
    assert len(sweeping.store.commits) == before


@pytest.mark.parametrize(
    ("coverage", "first_hour", "marked"), [(CoverageMode.EXTEND, 1, 2), (CoverageMode.FIXED, 3, 0)]
)
def test_older_data_whose_event_was_lost_is_covered_unless_coverage_is_fixed(
    coverage: CoverageMode, first_hour: int, marked: int
) -> None:
    """C8 and C10 together: the lost event may be the one that extends coverage."""
    sweeping = Sweeping(coverage, first_hour=3)
    sweeping.kit.put(segment("older", 1, 2))
    assert sweeping.twice() == marked
    assert sweeping.kit.header.coverage_start_ms == first_hour * HOUR_MS


def test_the_coverage_of_a_view_that_has_none_begins_with_the_data() -> None:
    """The event of a table's very first segment was lost."""
    kit = Kit(MemoryStore())
    kit.set_up(coverage_hour=None)
    kit.put(segment("first", 5, 6))
    sweeper = Sweeper(kit.ledger, kit.clock, grace_ms=GRACE_MS)
    sweeper.sweep("rides_hourly")
    assert kit.header.coverage_start_ms is None
    kit.clock.ms += GRACE_MS
    sweeper.sweep("rides_hourly")
    assert kit.header.coverage_start_ms == 5 * HOUR_MS


def test_a_view_dropped_meanwhile_is_no_trouble(sweeping: Sweeping) -> None:
    """Whoever drops a view needs no marks."""
    sweeping.kit.ledger.views.drop("rides_hourly")
    assert sweeping.sweep() == 0


def test_damaged_data_is_reported_by_name(sweeping: Sweeping) -> None:
    """C11 in the small: the caller leaves this view alone and goes on."""
    sweeping.store.inner.commit([Set(paths.shard("rides_hourly", 0), b"\x01garbage", -1)])
    with pytest.raises(InvalidInput, match="rides_hourly/shards/0"):
        sweeping.sweep()


@pytest.mark.parametrize(
    ("path", "decode"),
    [
        (paths.view("rides_hourly"), codec.decode_view),
        (paths.shard("rides_hourly", 0), lambda data, what: codec.decode_shard(data, VIEW.grid, what=what)),
    ],
    ids=["header", "shard"],
)
def test_no_damage_is_worse_than_a_refusal(sweeping: Sweeping, path: str, decode: Callable[..., object]) -> None:
    """C11: whatever bits were flipped, the damage gets a name and the service lives on."""
    chance, whole, refused = random.Random(1), sweeping.store.read(path), 0
    assert whole is not None
    for _ in range(5_000):
        damaged = bytearray(whole.data)
        for _ in range(chance.choice((1, 2, 5))):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        try:
            decode(bytes(damaged), what=path)
        except InvalidInput:
            refused += 1
    assert refused


@pytest.mark.parametrize("content", [5, None, "runs", [], {"blocks": 5}, {"blocks": [5]}, {"runs": [5]}])
def test_a_shard_of_another_shape_is_refused(content: object) -> None:
    """C11: what can be decoded and is no shard."""
    for data in (b"\x01" + codec.pack(content)[1:], b"\x02" + msgspec.msgpack.encode(content)):
        with pytest.raises(InvalidInput):
            codec.decode_shard(data, VIEW.grid, what="a shard")
