"""Puts the broker together, and keeps it going: queries run on threads of their own, the loop only watches."""

import threading
import uuid
from dataclasses import dataclass, field

import structlog
from prometheus_client import Gauge

from floodmark.bus.kafka import KafkaPublisher
from floodmark.bus.ports import Outgoing
from floodmark.contracts.envelope import encode, originate
from floodmark.contracts.messages import SegmentAnnounced
from floodmark.contracts.topics import ANNOUNCEMENTS
from floodmark.core.ports import Clock, new_id
from floodmark.core.tables import TableDefinition, ViewDefinition
from floodmark.ledger.ledger import open_ledger
from floodmark.ledger.zookeeper import ZooKeeperStore
from floodmark.query.desk import Desk
from floodmark.query.pictures import Pictures
from floodmark.service import wiring
from floodmark.service.access import Access
from floodmark.service.chores import Chore, Chores
from floodmark.service.runner import Runtime, Service
from floodmark.service.settings import KafkaSettings
from floodmark.service.stop import ExitCode, StopToken
from floodmark.spark.liveness import Liveness
from floodmark.spark.materialization import stored_schema
from floodmark.spark.session import open_session
from floodmark.sql.definition import analyze
from floodmark_broker.books import Books
from floodmark_broker.commands import Commands
from floodmark_broker.config import BrokerSettings
from floodmark_broker.engine import Engine
from floodmark_broker.execution import Execution
from floodmark_broker.pages import Limits, Pages
from floodmark_broker.planning import Planner
from floodmark_broker.stopping import Queries
from floodmark_broker.warming import warm_up

log = structlog.get_logger()

STEP_MS = 100
TEND_EVERY_MS = 500
LOOK_AT_SPARK_EVERY_MS = 1_000
DRAIN_TURN_MS = 50


def build(settings: BrokerSettings, runtime: Runtime) -> Service:
    own = settings.broker
    spark = open_session(
        {"spark.master": settings.spark.master, **settings.spark.options}, name=f"floodmark broker {runtime.instance}"
    )
    log.info("spark_started", master=spark.sparkContext.master, version=spark.version)
    ledger = open_ledger(runtime.session, clock=runtime.clock, randomness=runtime.randomness)
    pictures = Pictures(ZooKeeperStore(runtime.session))
    desk = Desk(
        ledger.registry, ledger.holds, pictures, runtime.clock, reader=runtime.instance, hold_ms=own.hold_ttl_ms
    )
    runtime.resources.callback(desk.close)
    liveness = Liveness(spark)
    runtime.health.require("spark", liveness.lost)
    execution = Execution(spark, liveness)
    if settings.spark.master.startswith("local"):  # executors elsewhere do not see files of this machine
        warm_up(execution)
    queries = Queries(
        wiring.thread_pool(runtime, threads_max=own.concurrency_max),
        runtime.clock,
        concurrency_max=own.concurrency_max,
        waiting_max=own.waiting_max,
        cancel_jobs=execution.cancel,
    )

    def stored_columns(table: TableDefinition, view: ViewDefinition) -> list[tuple[str, str]]:
        columns = dict(table.columns)
        definition = analyze(
            view.select,
            table=table.name,
            time_column=table.time_column,
            bucket_ms=view.bucket_ms,
            columns=columns,
        )
        with liveness.required():
            return [(f.name, f.dataType.simpleString()) for f in stored_schema(spark, definition, columns)]

    def make_id() -> str:
        return new_id(runtime.randomness)

    engine = Engine(
        planner=Planner(desk),
        execution=execution,
        commands=Commands(ledger, runtime.clock, make_id, own.views_location, stored_columns),
        queries=queries,
        clock=runtime.clock,
        books=Books(runtime.metrics),
        after_command=pictures.look,
    )
    access = Access.of(read=own.read_tokens, admin=own.admin_tokens)
    pages = Pages(
        engine=engine,
        queries=queries,
        ledger=ledger,
        clock=runtime.clock,
        access=access,
        limits=Limits(own.rows_max, own.time_max_ms),
        announce=Announcer(runtime, settings.kafka).announce,
        new_id=make_id,
    )
    pages.serve(runtime.port)
    runtime.health.require("queries", queries.trouble)
    not_ended = Gauge("floodmark_queries_not_ended", "Queries stopped that still hold a slot", registry=runtime.metrics)
    not_ended.set_function(queries.not_ended)
    chores = [
        Chore("look at views and holds", desk.tend, TEND_EVERY_MS),
        Chore("look at spark", liveness.look, LOOK_AT_SPARK_EVERY_MS),
    ]
    # One thread for each: a JVM that is slow to answer does not keep holds from being renewed.
    doing = Chores(wiring.thread_pool(runtime, threads_max=len(chores)), runtime.clock, chores)
    return Broker(queries, doing, liveness, runtime.stop, runtime.clock)


@dataclass(slots=True)
class Announcer:
    """Hands files to the ingester. Kafka is asked for when it is first needed: queries do without it."""

    runtime: Runtime
    kafka: KafkaSettings
    _publisher: KafkaPublisher | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def announce(self, announced: list[SegmentAnnounced]) -> list[str]:
        envelopes = [
            originate(
                message,
                event_id=uuid.uuid4().hex,
                source=f"{self.runtime.service}.{self.runtime.instance}",
                time_ms=self.runtime.clock.now_ms(),
                trace_id=uuid.uuid4().hex,
            )
            for message in announced
        ]
        encoded = [encode(envelope) for envelope in envelopes]
        self._opened().publish([Outgoing(ANNOUNCEMENTS.name, e.key, e.value, e.headers) for e in encoded])
        return [envelope.trace_id for envelope in envelopes]

    def _opened(self) -> KafkaPublisher:
        with self._lock:
            if self._publisher is None:
                connection = wiring.kafka_connection(self.runtime, self.kafka)
                self._publisher = wiring.publisher(self.runtime, self.kafka, connection)
            return self._publisher


@dataclass(frozen=True, slots=True)
class Broker:
    """Requests come by HTTP and run on threads of their own. At the end, running queries get the grace period."""

    queries: Queries
    chores: Chores
    liveness: Liveness
    stop: StopToken
    clock: Clock

    def step(self) -> int:
        if why := self.liveness.lost():
            self.stop.request(f"spark is gone: {why}", ExitCode.ENGINE_LOST)
            return 0
        self.chores.step()
        return STEP_MS

    def drain(self, *, deadline_ms: int) -> int:
        self.queries.close()
        while self.queries.tickets() and self.clock.monotonic_ms() < deadline_ms:
            self.clock.sleep_ms(DRAIN_TURN_MS)
        left = len(self.queries.tickets())
        self.queries.cancel_all("the broker stops; ask again")
        return left
