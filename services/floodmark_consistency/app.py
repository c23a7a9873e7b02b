"""Puts the consistency service together, and steps its parts."""

from collections.abc import Callable
from dataclasses import dataclass

import structlog
from prometheus_client import Counter

from floodmark.bus.pump import Pump, PumpLimits
from floodmark.contracts.changes import Changes
from floodmark.contracts.topics import SEGMENTS
from floodmark.core.debounce import Bounds
from floodmark.core.errors import BudgetExhausted, InvalidInput
from floodmark.core.ports import Clock
from floodmark.ledger.leadership import Leadership
from floodmark.ledger.ledger import open_ledger
from floodmark.service import wiring
from floodmark.service.chores import Chore, Chores
from floodmark.service.runner import Runtime, Service
from floodmark_consistency.config import ConsistencySettings
from floodmark_consistency.index import read_index
from floodmark_consistency.marker import Marker
from floodmark_consistency.marking import mark_view
from floodmark_consistency.sweep import Sweeper

log = structlog.get_logger()

DRAIN_TURN_MS = 50
DRAIN_LOOK_MS = 5
"""A record that waits to be offered again is not offered while the service stops: the pump does not wait for it."""


def build(settings: ConsistencySettings, runtime: Runtime) -> Service:
    own = settings.consistency
    ledger = open_ledger(runtime.session, clock=runtime.clock, randomness=runtime.randomness)
    connection = wiring.kafka_connection(runtime, settings.kafka)
    pool = wiring.thread_pool(runtime, threads_max=own.threads_max)
    marker = Marker(
        mark=lambda view, batch: mark_view(ledger, view, batch),
        read_index=lambda: read_index(ledger),
        executor=pool,
        clock=runtime.clock,
        randomness=runtime.randomness,
        bounds=Bounds(own.quiet_ms, own.age_max_ms, own.count_max),
        index_refresh_ms=own.index_refresh_ms,
    )
    pump = wiring.consume(
        runtime,
        settings.kafka,
        connection=connection,
        topic=SEGMENTS,
        decode=wiring.decode_changes,
        sink=marker,
        publisher=wiring.publisher(runtime, settings.kafka, connection),
        limits=PumpLimits(in_flight_max=own.events_in_flight_max, span_max=2 * own.events_in_flight_max),
    )
    repairs = Counter("floodmark_sweep_repairs", "Buckets the sweep had to mark", ["view"], registry=runtime.metrics)
    sweep = Sweep(
        Sweeper(ledger, runtime.clock, grace_ms=own.sweep_grace_ms),
        Leadership(ledger.store, "sweep", runtime.instance),
        on_repair=lambda view, count: repairs.labels(view).inc(count),
    )
    chores = Chores(pool, runtime.clock, [Chore("sweep", sweep.run, own.sweep_every_ms)])
    return Consistency(pump, marker, chores, runtime.clock)


@dataclass(frozen=True, slots=True)
class Consistency:
    """Steps the pump and the marker; sweeps beside them."""

    pump: Pump[Changes]
    marker: Marker
    chores: Chores
    clock: Clock

    def step(self) -> int:
        wait_ms = self.pump.step()
        self.marker.step()
        self.chores.step()
        return wait_ms

    def drain(self, *, deadline_ms: int) -> int:
        """Mark what was heard, so that its offsets can be committed; nothing heard is dropped."""
        self.marker.hurry()
        while self.pump.in_flight and self.clock.monotonic_ms() < deadline_ms:
            self.marker.step()
            self.pump.drain(deadline_ms=min(deadline_ms, self.clock.monotonic_ms() + DRAIN_TURN_MS))
            self.clock.sleep_ms(DRAIN_LOOK_MS)
        return self.pump.drain(deadline_ms=0)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Sweeps every view, while this replica leads."""

    sweeper: Sweeper
    leadership: Leadership
    on_repair: Callable[[str, int], None]

    def run(self) -> None:
        if not self.leadership.hold():
            return
        views = self.sweeper.ledger.views.names()
        self.sweeper.forget_all_but(views)
        for view in views:
            self._sweep(view)

    def _sweep(self, view: str) -> None:
        """One view's damaged data does not keep the others from being swept (INV-14)."""
        try:
            repaired = self.sweeper.sweep(view)
        except (InvalidInput, BudgetExhausted) as error:
            log.error("view_not_sweepable", view=view, error=str(error))  # noqa: TRY400 - the sentence says it all
            return
        if repaired:
            self.on_repair(view, repaired)
