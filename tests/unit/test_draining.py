"""A service that stops waits for what runs without spinning, also when its pump has nothing to wait for."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from floodmark.service.stop import StopToken
from floodmark_consistency.app import Consistency
from floodmark_worker.app import Stopping, Worker
from tests.support.bus_doubles import FrozenClock

TURNS_MAX = 1_000


@dataclass
class IdlePump:
    """Its partitions went to someone else, or its records wait to be offered again: a drain returns at once."""

    in_flight: int = 1
    turns: int = 0

    def drain(self, *, deadline_ms: int) -> int:
        self.turns += 1
        assert self.turns < TURNS_MAX, "it spins"
        return 0


@dataclass
class BusyFor:
    """A job that runs until some time."""

    clock: FrozenClock
    until_ms: int

    @property
    def running(self) -> int:
        return int(self.clock.ms < self.until_ms)


@dataclass
class IdleMarker:
    hurried: bool = False
    steps: list[int] = field(default_factory=list)

    def hurry(self) -> None:
        self.hurried = True

    def step(self) -> None:
        self.steps.append(1)


def as_any(value: object) -> Any:
    return value


def test_a_worker_whose_partitions_are_gone_waits_for_its_jobs_without_spinning() -> None:
    """The job holds its hold until it has ended, so it is waited for."""
    clock, pump = FrozenClock(), IdlePump()
    nothing = as_any(SimpleNamespace())
    worker = Worker(
        as_any(pump), as_any(BusyFor(clock, 900)), nothing, nothing, nothing, Stopping(), StopToken(), clock
    )
    worker.drain(deadline_ms=2_000)
    assert clock.ms >= 900
    assert not worker.stopping.now, "it ended by itself"


def test_a_consistency_service_whose_records_wait_to_be_offered_again_does_not_spin() -> None:
    """They are read again by whoever comes next."""
    clock, pump, marker = FrozenClock(), IdlePump(), IdleMarker()
    service = Consistency(as_any(pump), as_any(marker), as_any(None), clock)
    service.drain(deadline_ms=500)
    assert clock.ms >= 500
    assert marker.hurried
