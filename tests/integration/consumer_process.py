"""A consumer process for tests that kill it: appends one line to a file for each record, then finishes it.

Arguments: bootstrap, group, topic, file of effects, milliseconds of work for each record.
"""

import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from floodmark.bus.kafka import KafkaConnection, KafkaSource
from floodmark.bus.ports import Record
from floodmark.bus.pump import ConcurrentSink, Pump, PumpLimits
from floodmark.core.ports import SystemClock
from tests.support.bus_doubles import KeepingDeadLetters


def main(bootstrap: str, group: str, topic: str, effects: str, work_ms: str) -> None:
    file = os.open(Path(effects), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle(record: Record) -> None:
        time.sleep(int(work_ms) / 1000)  # the work itself, not a wait
        os.write(file, f"{record.place} {(record.value or b'').decode()} {os.getpid()}\n".encode())
        os.fsync(file)

    pump = Pump(
        source=KafkaSource(
            KafkaConnection(bootstrap, "test"), group=group, session_timeout_ms=6_000, poll_interval_max_ms=10_000
        ),
        topics=[topic],
        decode=lambda record: record,
        sink=ConcurrentSink(handle, ThreadPoolExecutor(4), lambda _: nullcontext()),
        dead_letters=KeepingDeadLetters(),
        clock=SystemClock(),
        randomness=random.Random(0),
        limits=PumpLimits(in_flight_max=8, commit_every_ms=50),
    )
    while True:
        pump.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
