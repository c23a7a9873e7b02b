"""How tasks become batches: who is built together, who waits, who goes first."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from floodmark.contracts.messages import BuildBucket
from floodmark.core.transitions import Mode
from floodmark_worker.intake import Batch, Intake
from tests.support.bus_doubles import FrozenClock
from tests.support.ledger_kit import HOUR_MS, Kit, segment
from tests.support.memory_store import MemoryStore
from tests.support.worker_kit import Bench


@dataclass
class Floor:
    """An intake whose batches run when the test says so."""

    clock: FrozenClock = field(default_factory=lambda: FrozenClock(1_000))
    started: list[Batch] = field(default_factory=list)
    waiting: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        kit = Kit(MemoryStore())
        kit.set_up()
        kit.put(segment("a", 0, 100))
        self.bench = Bench(kit)
        self.intake = Intake(self.started.append, self, self.clock, jobs_max=2, batch_max=4, linger_ms=25)

    def submit(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def task(self, hour: int, **changed: str) -> BuildBucket:
        return self.bench.task(hour, Mode.APPEND).model_copy(update=changed)

    def offer(self, *hours: int, **changed: str) -> None:
        self.intake.offer([self.bench.deliver(self.task(hour, **changed)) for hour in hours])

    def step(self, after_ms: int = 0) -> list[tuple[str, list[int]]]:
        """Starts what is due. Each batch as its lane and hours, once it has run."""
        self.clock.ms += after_ms
        self.intake.step()
        while self.waiting:
            self.waiting.pop(0)()
        done, self.started[:] = list(self.started), []
        return [(batch.lane, [start // HOUR_MS for start in batch.deliveries]) for batch in done]


@pytest.fixture
def floor() -> Floor:
    return Floor()


def test_tasks_that_arrive_together_are_one_batch(floor: Floor) -> None:
    floor.offer(0, 1, 2)
    assert floor.step() == []
    assert floor.step(after_ms=25) == [("live", [0, 1, 2])]
    assert floor.intake.running == 0


def test_a_full_batch_does_not_wait(floor: Floor) -> None:
    floor.offer(*range(6))
    assert floor.step() == [("live", [0, 1, 2, 3])]
    assert floor.step(after_ms=25) == [("live", [4, 5])]


def test_two_tasks_of_one_bucket_never_share_a_batch(floor: Floor) -> None:
    floor.offer(0, 1)
    floor.offer(0)
    assert floor.step(after_ms=25) == [("live", [0, 1])]
    assert floor.step() == [("live", [0])]


def test_views_and_lanes_are_built_apart_live_ones_first(floor: Floor) -> None:
    floor.offer(0, lane="backfill")
    floor.offer(1, lane="repair")
    floor.offer(2, view="another")
    floor.offer(3)
    assert floor.step(after_ms=25) == [("live", [2]), ("live", [3])]
    assert floor.step() == [("repair", [1])]
    assert floor.step() == [("backfill", [0])]


def test_backfill_leaves_a_place_for_fresh_data(floor: Floor) -> None:
    floor.offer(0, lane="backfill")
    floor.offer(1, lane="backfill", view="another")
    floor.clock.ms += 25
    floor.intake.step()
    assert [batch.lane for batch in floor.started] == []
    assert len(floor.waiting) == 1, "one of the two places is kept free"
    floor.offer(2)
    floor.clock.ms += 25
    floor.intake.step()
    assert len(floor.waiting) == 2


def test_no_more_batches_run_than_there_are_places(floor: Floor) -> None:
    for number in range(5):
        floor.offer(number, view=f"view{number}")
    floor.clock.ms += 25
    floor.intake.step()
    assert floor.intake.running == 2
