"""Puts the scheduler together, and steps it while it leads."""

from dataclasses import dataclass

import structlog
from prometheus_client import Counter

from floodmark.bus.pump import ConcurrentSink, Pump, PumpLimits
from floodmark.contracts.envelope import Envelope
from floodmark.contracts.messages import BucketBuilt
from floodmark.contracts.topics import RESULTS
from floodmark.core.dispatch import Policy
from floodmark.core.errors import OutcomeUnknown, Unavailable
from floodmark.core.ports import Clock
from floodmark.core.scheduling import Lane
from floodmark.ledger.leadership import Leadership, alive
from floodmark.ledger.ledger import ledger_on
from floodmark.ledger.zookeeper import ZooKeeperStore
from floodmark.service import wiring
from floodmark.service.logs import about_delivery
from floodmark.service.runner import Runtime, Service
from floodmark_scheduler.config import SchedulerSettings
from floodmark_scheduler.cycle import LanePlan, Scheduler
from floodmark_scheduler.eyes import Eyes
from floodmark_scheduler.sending import TaskSender
from floodmark_scheduler.watch import ViewWatch

log = structlog.get_logger()

STANDBY_LOOK_MS = 200
"""How often a scheduler that does not lead looks whether it may."""


def build(settings: SchedulerSettings, runtime: Runtime) -> Service:
    own = settings.scheduler
    store = ZooKeeperStore(runtime.session)
    store.ensure_root()
    ledger = ledger_on(store, clock=runtime.clock, randomness=runtime.randomness)
    connection = wiring.kafka_connection(runtime, settings.kafka)
    publisher = wiring.publisher(runtime, settings.kafka, connection)
    tasks = Counter("floodmark_tasks_dispatched", "Tasks given out", ["view", "lane"], registry=runtime.metrics)
    scheduler = Scheduler(
        ledger=ledger,
        eyes=Eyes(store),
        sender=TaskSender(publisher, runtime.clock, on_task=lambda view, lane: tasks.labels(view, lane).inc()),
        clock=runtime.clock,
        instance=runtime.instance,
        alive=lambda service: alive(store, service),
        policy=Policy(unclaimed_max_ms=own.unclaimed_max_ms, deaths_max=own.deaths_max),
        lanes=LanePlan(
            quotas={Lane.LIVE: own.live_quota, Lane.REPAIR: own.repair_quota, Lane.BACKFILL: own.backfill_quota},
            live_buckets=own.live_buckets,
            append_buffer_ms=own.append_buffer_ms,
        ),
        watch=ViewWatch(own.stalled_after_ms, runtime.metrics),
    )
    pump = wiring.consume(
        runtime,
        settings.kafka,
        connection=connection,
        topic=RESULTS,
        decode=wiring.decode_record,
        sink=ConcurrentSink(_hear, wiring.thread_pool(runtime, threads_max=1), about_delivery),
        publisher=publisher,
        limits=PumpLimits(in_flight_max=1_000, idle_poll_ms=20),
    )
    leadership = Leadership(store, "scheduler", runtime.instance)
    runtime.resources.callback(_resign, leadership)
    return Leading(scheduler, pump, leadership, runtime.clock, cycle_every_ms=own.cycle_every_ms)


def _hear(envelope: Envelope) -> None:
    """A result is news for people; the ledger, whose change woke the scheduler already, is what counts."""
    built = envelope.message
    assert isinstance(built, BucketBuilt), f"{built} came through the results topic"
    log.info(
        "result_received",
        view=built.view,
        bucket_ms=built.bucket_start_ms,
        outcome=built.outcome,
        task_id=built.task_id,
    )


def _resign(leadership: Leadership) -> None:
    try:
        leadership.resign()
    except (Unavailable, OutcomeUnknown) as error:
        log.warning("leadership_left_to_expire", error=str(error))


@dataclass(slots=True)
class Leading:
    """Consumes results always; schedules while it leads."""

    scheduler: Scheduler
    pump: Pump[Envelope]
    leadership: Leadership
    clock: Clock
    cycle_every_ms: int
    _leads: bool = False
    _cycle_due_ms: int = 0
    _postponed_until_ms: int = 0

    def step(self) -> int:
        wait_ms = self.pump.step()
        try:
            self._lead()
        except (Unavailable, OutcomeUnknown) as error:
            # Whatever was being done may be half done; what is seen after the next look decides.
            log.warning("cycle_postponed", error=str(error))
            self._postponed_until_ms = self.clock.monotonic_ms() + self.cycle_every_ms
        return wait_ms

    def drain(self, *, deadline_ms: int) -> int:
        return self.pump.drain(deadline_ms=deadline_ms)

    def _lead(self) -> None:
        now_ms = self.clock.monotonic_ms()
        due = now_ms >= self._cycle_due_ms or (self._leads and self.scheduler.eyes.something_changed)
        if not due or now_ms < self._postponed_until_ms:
            return
        self._cycle_due_ms = now_ms + self.cycle_every_ms
        leads = self.leadership.hold()
        if leads and not self._leads:
            log.info("leadership_taken")
            self.scheduler.eyes.look_at_everything()
        elif self._leads and not leads:
            log.info("leadership_lost")
            self.scheduler.watch.forget_all_but(())  # who leads now says how they stand
        self._leads = leads
        if leads:
            self.scheduler.cycle()
        else:
            self._cycle_due_ms = now_ms + min(self.cycle_every_ms, STANDBY_LOOK_MS)
