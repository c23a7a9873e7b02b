"""Puts the worker together, and steps it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import structlog
from pyspark.sql import SparkSession

from floodmark.bus.pump import Pump, PumpLimits
from floodmark.contracts.envelope import Envelope
from floodmark.contracts.topics import TASKS
from floodmark.core.dispatch import Policy
from floodmark.core.errors import EngineLost
from floodmark.core.ports import Clock
from floodmark.ledger.ledger import open_ledger
from floodmark.service import wiring
from floodmark.service.chores import Chore, Chores
from floodmark.service.runner import Runtime, Service
from floodmark.service.stop import ExitCode, StopToken
from floodmark.spark.liveness import Liveness
from floodmark.spark.session import open_session, warm_up
from floodmark_worker.builder import Tools, run
from floodmark_worker.claims import Claims
from floodmark_worker.config import WorkerSettings
from floodmark_worker.intake import Intake
from floodmark_worker.reporting import Reporter
from floodmark_worker.views import ViewBuilders

log = structlog.get_logger()

GIVE_BACK_EVERY_MS = 1_000
LOOK_AT_SPARK_EVERY_MS = 1_000
DRAIN_TURN_MS = 50
DRAIN_LOOK_MS = 5
"""Jobs may run whose records are no longer ours: then the pump has nothing to wait for, and we look now and then."""
CANCEL_WITHIN_MS = 2_000
"""How long cancelled jobs may take to let go of their holds."""


def build(settings: WorkerSettings, runtime: Runtime, reached: Callable[[str], None] = lambda _step: None) -> Service:
    own = settings.worker
    spark = open_session(
        {"spark.master": settings.spark.master, **settings.spark.options}, name=f"floodmark worker {runtime.instance}"
    )
    warm_up(spark)
    liveness = Liveness(spark)
    runtime.health.require("spark", liveness.lost)
    log.info("spark_started", master=spark.sparkContext.master, version=spark.version)
    ledger = open_ledger(runtime.session, clock=runtime.clock, randomness=runtime.randomness)
    connection = wiring.kafka_connection(runtime, settings.kafka)
    publisher = wiring.publisher(runtime, settings.kafka, connection)
    jobs = wiring.thread_pool(runtime, threads_max=own.jobs_max)
    looks = ThreadPoolExecutor(own.verify_threads_max, thread_name_prefix="look")
    runtime.resources.callback(looks.shutdown, wait=False, cancel_futures=True)
    stopping = Stopping()
    claims = Claims(ledger.dispatch, runtime.instance)
    chores = [
        Chore("give back claims", claims.give_back, GIVE_BACK_EVERY_MS),
        Chore("look at spark", liveness.look, LOOK_AT_SPARK_EVERY_MS),
    ]
    tools = Tools(
        ledger=ledger,
        claims=claims,
        views=ViewBuilders(spark, liveness, ledger, looks, by_content=own.verify == "content"),
        reporter=Reporter(publisher, runtime.clock, runtime.metrics),
        clock=runtime.clock,
        randomness=runtime.randomness,
        instance=runtime.instance,
        policy=Policy(
            tries_max=own.tries_max,
            frozen_tries_max=own.frozen_tries_max,
            backoff_first_ms=own.backoff_first_ms,
            backoff_cap_ms=own.backoff_cap_ms,
        ),
        hold_ttl_ms=own.hold_ttl_ms,
        batch_bytes_max=own.batch_bytes_max,
        stopping=lambda: stopping.now,
        reached=reached,
    )
    intake = Intake(
        lambda batch: run(tools, batch),
        jobs,
        runtime.clock,
        jobs_max=own.jobs_max,
        batch_max=own.batch_buckets_max,
        linger_ms=own.linger_ms,
    )
    pump = wiring.consume(
        runtime,
        settings.kafka,
        connection=connection,
        topic=TASKS,
        decode=wiring.decode_record,
        sink=intake,
        publisher=publisher,
        limits=PumpLimits(in_flight_max=own.tasks_in_flight_max, busy_poll_ms=5),
    )
    # One thread for each: a JVM that is slow to answer does not keep claims from being given back.
    doing = Chores(wiring.thread_pool(runtime, threads_max=len(chores)), runtime.clock, chores)
    return Worker(pump, intake, doing, spark, liveness, stopping, runtime.stop, runtime.clock)


@dataclass(slots=True)
class Stopping:
    now: bool = False


@dataclass(frozen=True, slots=True)
class Worker:
    """Steps the pump and the chores, and starts batches."""

    pump: Pump[Envelope]
    intake: Intake
    chores: Chores
    spark: SparkSession
    liveness: Liveness
    stopping: Stopping
    stop: StopToken
    clock: Clock

    def step(self) -> int:
        if why := self.liveness.lost():
            self.stop.request(f"spark is gone: {why}", ExitCode.ENGINE_LOST)
            return 0
        wait_ms = self.pump.step()
        self.intake.step()
        self.chores.step()
        return wait_ms

    def drain(self, *, deadline_ms: int) -> int:
        """Start nothing more and wait for what runs. What takes too long is cancelled, and another worker does it."""
        self._wait(deadline_ms)
        if self.intake.running:
            self.stopping.now = True
            with suppress(EngineLost), self.liveness.required():
                self.spark.sparkContext.cancelAllJobs()
            self._wait(self.clock.monotonic_ms() + CANCEL_WITHIN_MS)
        return self.pump.drain(deadline_ms=0)

    def _wait(self, deadline_ms: int) -> None:
        while self.intake.running and self.clock.monotonic_ms() < deadline_ms:
            self.pump.drain(deadline_ms=min(deadline_ms, self.clock.monotonic_ms() + DRAIN_TURN_MS))
            self.clock.sleep_ms(DRAIN_LOOK_MS)
