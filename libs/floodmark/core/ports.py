"""What the outside world looks like to the code that decides: a clock, and somewhere to run work.

Time, randomness, bus and store are handed in, so that a simulator can run every service in one thread under a
virtual clock. Randomness is a seeded `random.Random`; bus and store have their own ports beside their adapters.
"""

import random
import time
import uuid
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time, for people and for expiry that others must understand."""

    def monotonic_ms(self) -> int:
        """Time that never runs backwards, for measuring waits inside this process."""

    def sleep_ms(self, duration_ms: int) -> None: ...


class Executor(Protocol):
    """Runs work beside the loop. A thread pool in production, one stepped thread in simulation."""

    def submit(self, work: Callable[[], None], /) -> object: ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def sleep_ms(self, duration_ms: int) -> None:
        time.sleep(duration_ms / 1000)


def new_id(randomness: random.Random) -> str:
    """A random UUID drawn from the given source, so that a seeded run names things the same way every time."""
    return str(uuid.UUID(int=randomness.getrandbits(128), version=4))
