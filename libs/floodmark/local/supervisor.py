"""Starts components in order, brings back those that end unasked, stops all in reverse order.

start:  one after the other, each ready before the next         ZooKeeper, Kafka, services
watch:  an exit is reported and followed by a restart, later each time it happens again soon
stop:   on the first signal in reverse order, each with its grace; a second signal ends the grace, not the stopping
"""

import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType

from floodmark.core.errors import FloodmarkError
from floodmark.local.component import Component
from floodmark.local.events import Event, Kind, Report
from floodmark.local.waiting import POLL_MS

RESTART_DELAY_MS = 500
RESTART_DELAY_MAX_MS = 30_000
STEADY_MS = 60_000  # a component that ran this long has recovered, and the next failure is a first one again
READY_PROBE_MS = 500


class StopRequest:
    """Counts the signals that ask for a stop.

    SUBTLE: the handler only adds one. Setting a threading.Event there could deadlock: the signal may arrive while the
    main thread is inside `Event.wait` and holds the lock that `Event.set` needs.
    """

    def __init__(self) -> None:
        self._count = 0

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._handle)

    def ask(self) -> None:
        self._count += 1

    def is_asked(self) -> bool:
        return self._count > 0

    def is_urgent(self) -> bool:
        return self._count > 1

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.ask()


def restart_delay_ms(failures: int) -> int:
    """How long to wait before the restart that follows this many failures in a row."""
    return int(min(RESTART_DELAY_MS * 2 ** min(failures - 1, 16), RESTART_DELAY_MAX_MS))


@dataclass(slots=True)
class _Watched:
    """A component and where it stands between running, waiting for its restart and becoming ready again."""

    component: Component
    started_ms: int = 0
    failures: int = 0
    restart_at_ms: int | None = None
    is_ready: bool = False
    probe_at_ms: int = 0


class Supervisor:
    def __init__(self, components: Iterable[Component], *, report: Report, stop: StopRequest) -> None:
        self._watched = [_Watched(component) for component in components]
        self._report = report
        self._stop = stop

    def run(self, *, on_up: Callable[[], None]) -> None:
        """Return when stopped on request; raise when the start fails. Either way nothing is left running."""
        try:
            if self._start_all():
                on_up()
                self._watch()
        finally:
            self._stop_all()

    def _start_all(self) -> bool:
        """False when a stop was asked for meanwhile."""
        for watched in self._watched:
            if self._stop.is_asked():
                return False
            self._spawn(watched)
            if not watched.component.await_ready(give_up=self._stop.is_asked):
                return False
            self._note_ready(watched)
        return True

    def _watch(self) -> None:
        while not self._stop.is_asked():
            for watched in self._watched:
                self._look_after(watched)
            time.sleep(POLL_MS / 1000)

    def _look_after(self, watched: _Watched) -> None:
        now_ms = _now_ms()
        if watched.restart_at_ms is not None:
            if now_ms >= watched.restart_at_ms:
                self._restart(watched)
        elif (code := watched.component.exit_code()) is not None:
            self._note_failure(watched, f"with {describe_exit(code)}, see {watched.component.log_path}")
        elif not watched.is_ready and now_ms >= watched.probe_at_ms:
            watched.probe_at_ms = now_ms + READY_PROBE_MS
            if watched.component.is_ready():
                self._note_ready(watched)

    def _restart(self, watched: _Watched) -> None:
        watched.restart_at_ms = None
        try:
            self._spawn(watched)
        except (FloodmarkError, OSError) as error:  # jars or Java went away, disk full: it may come right again
            self._note_failure(watched, f"before it ran: {error}")

    def _note_failure(self, watched: _Watched, how: str) -> None:
        now_ms = _now_ms()
        watched.failures = 1 if now_ms - watched.started_ms >= STEADY_MS else watched.failures + 1
        delay_ms = restart_delay_ms(watched.failures)
        watched.restart_at_ms = now_ms + delay_ms
        watched.component.kill()  # the leader is gone; this ends what it started and removes its note
        detail = f"{how}; restarting in {delay_ms / 1000:g} s"
        self._report(Event(Kind.EXITED, watched.component.title, detail))

    def _spawn(self, watched: _Watched) -> None:
        watched.started_ms = _now_ms()
        watched.is_ready = False
        self._report(Event(Kind.STARTING, watched.component.title))
        watched.component.spawn()

    def _note_ready(self, watched: _Watched) -> None:
        watched.is_ready = True
        elapsed_ms = _now_ms() - watched.started_ms
        self._report(Event(Kind.READY, watched.component.title, f"on {watched.component.address}", elapsed_ms))

    def _stop_all(self) -> None:
        for watched in reversed(self._watched):
            component = watched.component
            if component.identity() is None:
                continue
            began_ms = _now_ms()
            self._report(Event(Kind.STOPPING, component.title))
            component.stop(hurry=self._stop.is_urgent)
            self._report(Event(Kind.STOPPED, component.title, elapsed_ms=_now_ms() - began_ms))


def describe_exit(code: int) -> str:
    """`code 1`, or the name of the signal that ended it."""
    return f"code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
