"""Things a service does again and again beside its pump: each by its own clock or when asked, never twice at once.

A server that is away postpones a chore and says so; a bug in one ends the service, from the thread that steps.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from floodmark.core.errors import BudgetExhausted, OutcomeUnknown, Unavailable
from floodmark.core.ports import Clock, Executor

log = structlog.get_logger()


@dataclass(slots=True)
class Chore:
    name: str
    do: Callable[[], object]
    every_ms: int
    due_ms: int = 0
    running: bool = False
    again: bool = False
    """Asked for while it was running: what it has looked at already may have changed."""


class Chores:
    def __init__(self, executor: Executor, clock: Clock, chores: Sequence[Chore]) -> None:
        self._executor = executor
        self._clock = clock
        self._chores = chores
        self._bugs: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def step(self) -> None:
        """Start the chores that are due."""
        if not self._bugs.empty():
            raise self._bugs.get_nowait()
        now_ms = self._clock.monotonic_ms()
        for chore in self._chores:
            if now_ms >= chore.due_ms and not chore.running:
                chore.due_ms = now_ms + chore.every_ms
                self._start(chore)

    def hurry(self, name: str) -> None:
        """Start a chore now, from any thread. One that is under way is done once more."""
        self._start(next(chore for chore in self._chores if chore.name == name))

    def _start(self, chore: Chore) -> None:
        with self._lock:
            chore.again = chore.running
            if chore.running:
                return
            chore.running = True
        self._executor.submit(lambda: self._run(chore))

    def _run(self, chore: Chore) -> None:
        try:
            chore.do()
        except (Unavailable, OutcomeUnknown, BudgetExhausted) as error:
            log.warning("chore_postponed", chore=chore.name, error=str(error))
        except Exception as error:
            self._bugs.put(error)
        finally:
            with self._lock:
                chore.running, again = False, chore.again
            if again:
                self._start(chore)
