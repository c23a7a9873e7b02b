"""One stop token for each process. A signal or a lost session only sets it; the loop does the stopping."""

import queue
import signal
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from types import FrameType


class ExitCode(IntEnum):
    """What the process tells its supervisor, after sysexits.h."""

    OK = 0
    UNAVAILABLE = 69  # a server was not there at start
    CRASHED = 70  # our own bug
    ENGINE_LOST = 71  # start again: the new process gets a new Spark
    SESSION_LOST = 75  # start again: the new process gets a new session
    MISCONFIGURED = 78


@dataclass(frozen=True, slots=True)
class StopReason:
    why: str
    code: ExitCode


class StopToken:
    """Set once; the first reason stays.

    SUBTLE: a signal handler runs inside the main thread, between any two of its instructions. An Event would deadlock
    there: the main thread may hold, in `Event.wait`, the lock that `Event.set` needs. `SimpleQueue.put` is made for it.
    """

    def __init__(self) -> None:
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._reason: StopReason | None = None

    def request(self, why: str, code: ExitCode = ExitCode.OK) -> None:
        if self._reason is None:
            self._reason = StopReason(why, code)
        self._wakes.put(None)

    @property
    def reason(self) -> StopReason | None:
        return self._reason

    def requested(self) -> bool:
        return self._reason is not None

    def wait_ms(self, duration_ms: int | None) -> bool:
        """Wait for a stop, at most this long, or for ever. True when stopping."""
        with suppress(queue.Empty):
            self._wakes.get(timeout=None if duration_ms is None else duration_ms / 1000)
            self._wakes.put(None)  # for the next who waits
        return self.requested()

    def on_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.request(signal.Signals(number).name)
