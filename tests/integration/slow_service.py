"""A real service on the skeleton, built for tests: what it does with an announcement stands in the announcement.

Run as `python -m tests.integration.slow_service NAME EFFECTS`. NAME is the service and the only table it works on, so
that tests share one topic undisturbed. `path` says how many milliseconds the work takes; action "delete" is a bug.
EFFECTS gets one line when work begins and one when it has ended; the log says at which offset it ended.
"""

import os
import sys
import time
from pathlib import Path

import structlog

from floodmark.bus.pump import ConcurrentSink, PumpLimits
from floodmark.contracts.envelope import Envelope
from floodmark.contracts.messages import SegmentAnnounced
from floodmark.contracts.topics import ANNOUNCEMENTS
from floodmark.service import wiring
from floodmark.service.logs import about_delivery
from floodmark.service.runner import Runtime, Service, main
from floodmark.service.settings import ServiceSettings

log = structlog.get_logger()


class Work:
    def __init__(self, table: str, effects: Path) -> None:
        self._table = table
        self._effects = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self, envelope: Envelope) -> None:
        announced = envelope.message
        assert isinstance(announced, SegmentAnnounced)
        if announced.table != self._table:
            return
        if announced.action == "delete":
            password = "hunter2"  # a local variable that must not reach the log
            raise RuntimeError(f"the bug in {self._table}, {len(password)}")
        assert announced.path is not None
        self._note("began", announced.path)
        time.sleep(int(announced.path) / 1000)  # the work itself, not a wait
        self._note("ended", announced.path)
        log.info("work_ended", path=announced.path)

    def _note(self, what: str, path: str) -> None:
        os.write(self._effects, f"{what} {path}\n".encode())


def build_with(work: Work, settings: ServiceSettings, runtime: Runtime) -> Service:
    connection = wiring.kafka_connection(runtime, settings.kafka)
    return wiring.consume(
        runtime,
        settings.kafka,
        connection=connection,
        topic=ANNOUNCEMENTS,
        decode=wiring.decode_record,
        sink=ConcurrentSink(work, wiring.thread_pool(runtime, threads_max=4), about_delivery),
        publisher=wiring.publisher(runtime, settings.kafka, connection),
        limits=PumpLimits(in_flight_max=16, commit_every_ms=50),
    )


if __name__ == "__main__":
    work = Work(sys.argv[1], Path(sys.argv[2]))
    main(sys.argv[1], ServiceSettings, lambda settings, runtime: build_with(work, settings, runtime))
