"""The services as simulated processes: the real `build` of each, the real loop, over played adapters.

`substituted` puts the played adapters where the composition roots name the real ones, and takes them away again. No
other name is replaced: everything between the adapters is the code that runs in production.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

import floodmark_consistency.app
import floodmark_ingester.app
import floodmark_ingester.scanner
import floodmark_janitor.app
import floodmark_scheduler.app
import floodmark_worker.app
from floodmark.core import segments
from floodmark.core.errors import BudgetExhausted, OutcomeUnknown, Unavailable
from floodmark.ledger import engine, holds, ledger
from floodmark.service import runner, wiring
from floodmark.service.runner import Service
from floodmark.service.settings import RuntimeSettings, ServiceSettings, ZooKeeperSettings
from floodmark.service.stop import ExitCode, StopReason
from floodmark_consistency.config import ConsistencySection, ConsistencySettings
from floodmark_ingester.config import IngesterSection, IngesterSettings
from floodmark_ingester.outbox import Outbox
from floodmark_janitor.config import JanitorSection, JanitorSettings
from floodmark_scheduler.config import SchedulerSection, SchedulerSettings
from floodmark_worker.app import Worker
from floodmark_worker.config import WorkerSection, WorkerSettings
from tests.simulation import files, spark
from tests.simulation.bus import Link, SimBus
from tests.simulation.faults import Mishaps
from tests.simulation.files import Disk
from tests.simulation.hub import Hub, Life, Lock, Pool, Threads, Violation
from tests.simulation.sizes import SmallWrites
from tests.simulation.store import ObservedStore, SimSession, SimStore

SESSION_TIMEOUT_MS = 6_000
RESTART_MS = (200, 3_000)
HOLD_TTL_MS = 1_500

Build = Callable[[Any, Any], Service]


@lru_cache
def services() -> dict[str, tuple[Build, ServiceSettings]]:
    """Every period is short, so that a minute of virtual time has many of each."""
    shared: dict[str, Any] = {
        "zookeeper": ZooKeeperSettings(session_timeout_ms=SESSION_TIMEOUT_MS),
        "runtime": RuntimeSettings(replica="sim", grace_ms=2_000),
    }
    ingester = IngesterSection(scan_every_ms=2_500, outbox_every_ms=4_000, settle_ms=2_500, threads_max=2)
    consistency = ConsistencySection(
        age_max_ms=500, index_refresh_ms=2_500, sweep_every_ms=4_000, sweep_grace_ms=2_500, threads_max=3
    )
    scheduler = SchedulerSection(
        cycle_every_ms=1_500,
        live_buckets=2,
        live_quota=3,
        repair_quota=3,
        backfill_quota=4,
        unclaimed_max_ms=5_000,
        stalled_after_ms=6_000,
    )
    worker = WorkerSection(
        batch_buckets_max=4, hold_ttl_ms=HOLD_TTL_MS, backoff_first_ms=500, backoff_cap_ms=4_000, verify_threads_max=2
    )
    janitor = JanitorSection(every_ms=2_500, grace_ms=1_000, skew_ms=500, retire_batch_max=2)
    return {
        "ingester": (floodmark_ingester.app.build, IngesterSettings(**shared, ingester=ingester)),
        "consistency": (floodmark_consistency.app.build, ConsistencySettings(**shared, consistency=consistency)),
        "scheduler": (floodmark_scheduler.app.build, SchedulerSettings(**shared, scheduler=scheduler)),
        "worker": (floodmark_worker.app.build, WorkerSettings(**shared, worker=worker)),
        "janitor": (floodmark_janitor.app.build, JanitorSettings(**shared, janitor=janitor)),
    }


class SimStop:
    """The stop token of one life."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self.reason: StopReason | None = None

    def request(self, why: str, code: ExitCode = ExitCode.OK) -> None:
        self.reason = self.reason or StopReason(why, code)

    def requested(self) -> bool:
        return self.reason is not None

    def wait_ms(self, duration_ms: int) -> bool:
        self._life.hub.wait(duration_ms)
        return self.requested()


@dataclass
class SimRuntime:
    """What a service is built from, as the real `Runtime` names it."""

    service: str
    life: Life
    session: SimSession
    link: Link
    resources: ExitStack
    stop: SimStop

    def __post_init__(self) -> None:
        self.instance = self.life.instance
        self.clock = self.life
        self.randomness = self.life.randomness
        self.metrics = CollectorRegistry()
        self.checks: dict[str, Callable[[], str | None]] = {}
        self.health = SimpleNamespace(beat=lambda: None, require=self.checks.__setitem__)
        self.port = SimpleNamespace(serve=self._serve)
        self.handlers: dict[str, Callable[..., Any]] = {}

    def _serve(self, _method: str, path: str, handler: Callable[..., Any]) -> None:
        self.handlers[path] = handler


@dataclass
class Surroundings:
    """What all processes share."""

    hub: Hub
    store: ObservedStore
    bus: SimBus
    disk: Disk
    mishaps: Mishaps
    relying: Callable[[], None]
    """Told when a reader begins to rely on the hold it took."""
    sizes: SmallWrites
    part_bytes_max: int


class Process:
    """One replica: started again, as another life, whenever it ends."""

    def __init__(self, around: Surroundings, service: str, number: int) -> None:
        self.around = around
        self.service = service
        self.name = f"{service}-{number}"
        self.lives: list[Life] = []
        self.runtime: SimRuntime | None = None
        self.stop: SimStop | None = None
        self.built: Service | None = None
        self.skew_ms = 0

    @property
    def life(self) -> Life | None:
        return self.lives[-1] if self.lives and self.lives[-1].alive else None

    # -- living --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        around = self.around
        life = Life(around.hub, self.name, len(self.lives), skew_ms=self.skew_ms)
        life.die = self.crash
        self.lives.append(life)
        stop = self.stop = SimStop(life)
        session = SimSession(life, around.store, lambda: stop.request("zookeeper session lost", ExitCode.SESSION_LOST))
        session.announce(self.service)
        link = Link(life, around.bus, around.mishaps)
        link.told_to_stop = self.ask_to_stop
        session.port = SimStore(session, around.mishaps)
        self.runtime = SimRuntime(self.service, life, session, link, ExitStack(), stop)
        around.hub.note(life.instance, "started")
        life.spawn(lambda: self._run(life), "main")

    def _run(self, life: Life) -> None:
        assert self.runtime is not None
        runtime, stop = self.runtime, self.stop
        build, settings = services()[self.service]
        try:
            service = self.built = build(settings, runtime)
            runner._loop(service, runtime, stop, grace_ms=settings.runtime.grace_ms)  # type: ignore[arg-type]
            with suppress(Unavailable, OutcomeUnknown):
                runtime.resources.close()
            why = stop.reason.why if stop and stop.reason else "it ended"
        except (Unavailable, OutcomeUnknown, BudgetExhausted) as error:
            why = f"{type(error).__name__}: {error}"
        self.end(life, f"stopped: {why}", closed=not runtime.session.expired)

    def crashed(self, life: Life, error: Exception) -> None:
        """One of its threads ended in an error: legitimate for an exhausted budget, a bug otherwise."""
        if isinstance(error, Violation):
            self.around.hub.fail(error)
        elif isinstance(error, BudgetExhausted):
            self.end(life, f"crashed: {error}", closed=False)
        else:
            wrong = Violation("a service crashed", f"{life.instance}: {type(error).__name__}: {error}")
            wrong.__cause__ = error
            self.around.hub.fail(wrong)

    # -- dying ---------------------------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        if self.stop:
            self.stop.request("SIGTERM")

    def crash(self) -> None:
        """As `kill -9`: everything in memory is gone, and nobody is told."""
        if self.life:
            self.end(self.life, "was killed", closed=False)

    def end(self, life: Life, why: str, *, closed: bool) -> None:
        """This life is over. Others hear at once when it closed its connections, otherwise when it is missed."""
        if not life.alive:
            return
        hub, runtime = self.around.hub, self.runtime
        assert runtime is not None
        hub.note(life.instance, why)
        life.kill()
        delay_ms = 0 if closed else SESSION_TIMEOUT_MS
        hub.at(hub.now_ms + delay_ms, runtime.session.expire)
        hub.at(hub.now_ms + delay_ms, runtime.link.expel)
        hub.at(hub.now_ms + hub.randomness.randint(*RESTART_MS), self.start)

    def kill_spark(self) -> None:
        """The engine of a worker dies, and the worker does not."""
        if self.life and isinstance(self.built, Worker):
            self.around.hub.note(self.life.instance, "its spark was killed")
            self.built.spark.die()  # type: ignore[attr-defined]
            is_well = self.runtime.checks.get("spark", lambda: None) if self.runtime else None
            if is_well is None or is_well() is None:
                raise Violation("K11 ready without an engine", self.name)

    # -- being ill -----------------------------------------------------------------------------------------------------

    def pause(self, duration_ms: int) -> None:
        """As SIGSTOP and SIGCONT. Longer than a session, and others take it for dead while it is not."""
        if self.life:
            self.life.paused_until_ms = self.around.hub.now_ms + duration_ms
            if duration_ms > SESSION_TIMEOUT_MS:
                self.cut_store(duration_ms)
                self._miss_on_bus(duration_ms)

    def cut_store(self, duration_ms: int) -> None:
        if self.life is None or self.runtime is None:
            return
        hub, session = self.around.hub, self.runtime.session
        session.disconnect(until_ms=hub.now_ms + duration_ms)
        if duration_ms > SESSION_TIMEOUT_MS:
            hub.at(hub.now_ms + SESSION_TIMEOUT_MS, session.expire)
        hub.at(hub.now_ms + duration_ms, session.reconnect)

    def cut_bus(self, duration_ms: int) -> None:
        if self.life is None or self.runtime is None:
            return
        link, hub = self.runtime.link, self.around.hub
        link.cut = True

        def mend() -> None:
            link.cut = False

        hub.at(hub.now_ms + duration_ms, mend)
        self._miss_on_bus(duration_ms)

    def _miss_on_bus(self, duration_ms: int) -> None:
        assert self.runtime is not None
        hub, link = self.around.hub, self.runtime.link
        if duration_ms > SESSION_TIMEOUT_MS:
            hub.at(hub.now_ms + SESSION_TIMEOUT_MS, link.expel)

    def lag(self, duration_ms: int) -> None:
        """Its ZooKeeper server is slow: it falls behind again and again, each time until a sync or a write."""
        if self.life is None or self.runtime is None:
            return
        session, hub = self.runtime.session, self.around.hub
        until_ms = hub.now_ms + duration_ms

        def fall_behind() -> None:
            if hub.now_ms >= until_ms:
                session.lagging = None
                return
            if session.lagging is None and session.connected:
                session.lagging = dict(self.around.store.nodes)
            hub.at(hub.now_ms + hub.randomness.randint(50, 400), fall_behind)

        fall_behind()

    def jump_clock(self, by_ms: int) -> None:
        self.skew_ms = by_ms
        if self.life:
            self.life.skew_ms = by_ms


@contextmanager
def substituted(around: Surroundings) -> Iterator[None]:
    """The played adapters in the place of the real ones, for one run."""
    hub = around.hub
    before: list[tuple[object, str, object]] = []
    try:
        for owner, name, played in _played(around):
            before.append((owner, name, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, played)
        hub.note("everyone", "is about to start")
        yield
    finally:
        for owner, name, real in reversed(before):
            if real is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, real)


_ABSENT = object()


def _played(around: Surroundings) -> list[tuple[object, str, object]]:
    hub = around.hub
    return [
        *files.substitutions(around.disk),
        (ledger, "ZooKeeperStore", lambda session: session.port),
        (floodmark_scheduler.app, "ZooKeeperStore", lambda session: session.port),
        (engine, "check_sizes", around.sizes.check),
        (segments, "PART_BYTES_MAX", around.part_bytes_max),
        (holds, "threading", Threads(hub, around.relying)),
        (wiring, "kafka_connection", lambda runtime, _kafka: runtime.link),
        (wiring, "publisher", lambda _runtime, _kafka, connection: connection.publisher()),
        (wiring, "thread_pool", lambda runtime, *, threads_max: Pool(runtime.life, threads_max)),
        (wiring, "KafkaSource", lambda connection, *, group, **_: connection.source(group)),
        (floodmark_ingester.app, "Outbox", lambda books, publisher: Outbox(books, publisher, Lock(hub))),  # type: ignore[arg-type]
        (floodmark_ingester.scanner, "AGAIN_FIRST_MS", 3_000),
        (floodmark_ingester.scanner, "AGAIN_CAP_MS", 6_000),
        (floodmark_janitor.app, "STEP_MS", 1_000),
        (floodmark_scheduler.app, "STANDBY_LOOK_MS", 1_000),
        (floodmark_worker.app, "open_session", lambda _options, *, name: _spark(around)),
        (floodmark_worker.app, "warm_up", lambda _spark: None),
        (floodmark_worker.app, "Liveness", lambda played: played),
        (floodmark_worker.app, "ViewBuilders", spark.SimViewBuilders),
        (floodmark_worker.app, "ThreadPoolExecutor", lambda count, **_: Pool(hub.running.life, count)),
    ]


def _spark(around: Surroundings) -> spark.SimSpark:
    return spark.SimSpark(around.hub.running.life, around.disk, around.mishaps)
