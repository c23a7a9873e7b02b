"""The life of a service process: settings, logs, resources, the loop, and an ordered stop.

start   settings -> logs -> http port -> ZooKeeper session -> liveness -> the service itself; only then ready
run     step, step, step ... until the stop token is set
stop    drain (take nothing new, finish within the grace period), then close everything in reverse order; a client
        library that hangs while it closes is cut short
"""

import gc
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NoReturn, Protocol, TypeVar

import structlog
from prometheus_client import CollectorRegistry

from floodmark import __version__
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.ports import Clock, SystemClock
from floodmark.ledger.session import Session
from floodmark.service import logs
from floodmark.service.health import START, Health
from floodmark.service.port import ServicePort
from floodmark.service.settings import ServiceSettings, load
from floodmark.service.stop import ExitCode, StopToken

log = structlog.get_logger()
S = TypeVar("S", bound=ServiceSettings)

# What closing may take beside the grace period: leaving the group, ending the session. Usually it is under a second.
CLOSE_WITHIN_MS = 3_000


class Service(Protocol):
    def step(self) -> int:
        """A bounded piece of work. Returns how many milliseconds it has nothing to do."""

    def drain(self, *, deadline_ms: int) -> int:
        """Finish what is running until the deadline, on the monotonic clock. Returns how much was abandoned."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a service is built from, beside its settings."""

    service: str
    instance: str
    """Unique to this process, so that a restarted replica is never taken for the one that died."""
    clock: Clock
    randomness: random.Random
    session: Session
    health: Health
    metrics: CollectorRegistry
    port: ServicePort
    resources: ExitStack
    """Closed in reverse order when the process stops."""
    stop: StopToken
    """For a service that cannot go on: the process drains, and ends with the code that is asked for here."""


def main(name: str, settings_type: type[S], build: Callable[[S, Runtime], Service]) -> NoReturn:
    """The whole of a service's `__main__`."""
    code = run(name, settings_type, build)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of abandoned work may still run. A normal exit would wait for them, past the grace period.
    os._exit(code)


def run(name: str, settings_type: type[S], build: Callable[[S, Runtime], Service]) -> int:
    """Run a service until it is told to stop. Returns the process's exit code."""
    try:
        settings = load(settings_type)
    except InvalidInput as error:
        sys.stderr.write(f"floodmark {name}: {error}\n")
        return ExitCode.MISCONFIGURED
    randomness = random.SystemRandom()
    instance = f"{settings.runtime.replica}.{randomness.getrandbits(32):08x}"
    logs.configure(form=settings.log.format, level=settings.log.level, service=name, replica=instance)
    stop = StopToken()
    stop.on_signals()
    try:
        with _deadline(stop, within_ms=settings.runtime.grace_ms + CLOSE_WITHIN_MS), ExitStack() as resources:
            runtime = _start(name, settings, instance=instance, stop=stop, randomness=randomness, resources=resources)
            service = build(settings, runtime)
            runtime.health.require(START, lambda: None)
            freeze_memory()
            log.info("service_started", version=__version__, pid=os.getpid())
            _loop(service, runtime, stop, grace_ms=settings.runtime.grace_ms)
    except Unavailable as error:
        if stop.reason is None:
            log.error("service_unavailable", error=str(error))  # noqa: TRY400 - the sentence says it all
            return ExitCode.UNAVAILABLE
    except Exception:
        log.exception("service_crashed", exit_code=int(ExitCode.CRASHED))
        return ExitCode.CRASHED
    assert stop.reason is not None, "the loop ended without a stop request"
    log.info("service_stopped", why=stop.reason.why, exit_code=int(stop.reason.code))
    return stop.reason.code


def freeze_memory() -> None:
    """What a process has made by the time it is started, it keeps: modules, schemas, connections, some 60,000 objects.

    The collector is told to leave them alone. Otherwise it goes through all of them whenever a burst of records has
    made enough others, and the loop stands still for some twenty milliseconds.
    """
    gc.collect()
    gc.freeze()


def _start(
    name: str,
    settings: ServiceSettings,
    *,
    instance: str,
    stop: StopToken,
    randomness: random.Random,
    resources: ExitStack,
) -> Runtime:
    clock = SystemClock()
    metrics = CollectorRegistry()
    health = Health(clock, step_age_max_ms=settings.runtime.step_age_max_ms)
    health.require(START, lambda: "still starting")
    health.require("stop", lambda: f"stopping: {stop.reason.why}" if stop.reason else None)
    port = ServicePort(
        host=settings.http.host,
        port=settings.http.port,
        health=health,
        metrics=metrics,
        connections_max=settings.http.connections_max,
    )
    resources.callback(port.close)
    log.info("http_port_opened", host=settings.http.host, port=port.port)
    session = Session(
        hosts=settings.zookeeper.hosts,
        timeout_ms=settings.zookeeper.session_timeout_ms,
        access=settings.zookeeper.access,
        on_lost=lambda: stop.request("zookeeper session lost", ExitCode.SESSION_LOST),
    )
    session.open(timeout_ms=settings.zookeeper.connect_timeout_ms, give_up=stop.requested)
    resources.callback(session.close)
    session.announce(name, instance, {"pid": os.getpid(), "http_port": port.port, "version": __version__})
    health.require("zookeeper", lambda: None if session.connected else "not connected")
    return Runtime(name, instance, clock, randomness, session, health, metrics, port, resources, stop)


def _loop(service: Service, runtime: Runtime, stop: StopToken, *, grace_ms: int) -> None:
    while not stop.requested():
        wait_ms = service.step()
        runtime.health.beat()
        if wait_ms:
            stop.wait_ms(wait_ms)
    assert stop.reason is not None
    log.info("service_stopping", why=stop.reason.why, grace_ms=grace_ms)
    abandoned = service.drain(deadline_ms=runtime.clock.monotonic_ms() + grace_ms)
    if abandoned:
        log.warning("work_abandoned", count=abandoned)


@contextmanager
def _deadline(stop: StopToken, *, within_ms: int) -> Iterator[None]:
    """End the process even when a client library waits for a server that is gone. What is uncommitted is read again."""
    ended = threading.Event()

    def watch() -> None:
        stop.wait_ms(None)
        if stop.reason and not ended.wait(within_ms / 1000):
            log.error("stop_cut_short", why=stop.reason.why, within_ms=within_ms, exit_code=int(stop.reason.code))
            os._exit(stop.reason.code)

    threading.Thread(target=watch, name="deadline", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
