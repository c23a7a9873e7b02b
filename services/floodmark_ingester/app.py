"""Puts the ingester together: the only place that names its concrete adapters."""

from dataclasses import dataclass

from floodmark.bus.batching import BatchingSink
from floodmark.bus.pump import Pump, PumpLimits
from floodmark.contracts.envelope import Envelope
from floodmark.contracts.topics import ANNOUNCEMENTS
from floodmark.ledger.leadership import Leadership
from floodmark.ledger.ledger import open_ledger
from floodmark.service import wiring
from floodmark.service.access import Access, Role, guarded
from floodmark.service.chores import Chore, Chores
from floodmark.service.runner import Runtime, Service
from floodmark_ingester.announcements import Announcements
from floodmark_ingester.config import IngesterSettings
from floodmark_ingester.outbox import Outbox
from floodmark_ingester.registrar import Registrar
from floodmark_ingester.requests import SEGMENTS_PATH, register
from floodmark_ingester.scanner import Scanner
from floodmark_ingester.watching import Watching

SCAN = "scan"


def build(settings: IngesterSettings, runtime: Runtime) -> Service:
    own = settings.ingester
    ledger = open_ledger(runtime.session, clock=runtime.clock, randomness=runtime.randomness)
    connection = wiring.kafka_connection(runtime, settings.kafka)
    publisher = wiring.publisher(runtime, settings.kafka, connection)
    pool = wiring.thread_pool(runtime, threads_max=own.threads_max)
    outbox = Outbox(ledger, publisher)
    registrar = Registrar(ledger, wiring.thread_pool(runtime, threads_max=own.threads_max), outbox.publish)
    pump = wiring.consume(
        runtime,
        settings.kafka,
        connection=connection,
        topic=ANNOUNCEMENTS,
        decode=wiring.decode_record,
        sink=BatchingSink(Announcements(registrar).handle, pool, batch_max=own.batch_max),
        publisher=publisher,
        limits=PumpLimits(in_flight_max=own.announcements_in_flight_max),
    )
    access = Access.of(admin=own.admin_tokens)
    page = guarded(access, Role.ADMIN, lambda request, _: register(registrar, request))
    runtime.port.serve("POST", SEGMENTS_PATH, page)
    scanner = Scanner(ledger, publisher, runtime.clock, settle_ms=own.settle_ms)
    leadership = Leadership(ledger.store, "scan", runtime.instance)

    def scan() -> None:
        if leadership.hold():
            scanner.scan_all()
            watching.follow(scanner.directories)

    chores = Chores(
        pool,
        runtime.clock,
        [Chore("publish the outbox", outbox.publish_all, own.outbox_every_ms), Chore(SCAN, scan, own.scan_every_ms)],
    )
    watching = Watching(on_news=lambda: chores.hurry(SCAN))
    runtime.resources.callback(watching.close)
    return Ingester(pump, chores)


@dataclass(frozen=True, slots=True)
class Ingester:
    """Steps the pump, and scans and publishes beside it."""

    pump: Pump[Envelope]
    chores: Chores

    def step(self) -> int:
        wait_ms = self.pump.step()
        self.chores.step()
        return wait_ms

    def drain(self, *, deadline_ms: int) -> int:
        return self.pump.drain(deadline_ms=deadline_ms)
