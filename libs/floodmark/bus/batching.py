"""A sink that hands records over in batches: whatever has arrived by the time the last batch is done.

Nothing waits for a batch to fill up: alone, a record is a batch of one; under load, batches grow by themselves.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from floodmark.bus.delivery import Delivery
from floodmark.core.ports import Executor

T = TypeVar("T")


class BatchingSink(Generic[T]):
    """Calls `handle` with one batch at a time, in order of arrival. The handler tells the outcome of each delivery."""

    def __init__(self, handle: Callable[[Sequence[Delivery[T]]], None], executor: Executor, *, batch_max: int) -> None:
        self._handle = handle
        self._executor = executor
        self._batch_max = batch_max
        self._lock = threading.Lock()
        self._waiting: list[Delivery[T]] = []
        self._running = False

    def offer(self, deliveries: Sequence[Delivery[T]]) -> None:
        with self._lock:
            self._waiting += deliveries
            if self._running:
                return
            self._running = True
        self._executor.submit(self._drain)

    def _drain(self) -> None:
        while batch := self._take():
            try:
                self._handle(batch)
            except BaseException as error:
                # Some of the batch may have been told its outcome already, so this is no outcome for any of it: it is
                # our own bug, which the loop raises. Nothing that was not told is committed.
                bug = AssertionError(f"a batch of {len(batch)} ended in {type(error).__name__} instead of outcomes")
                bug.__cause__ = error
                batch[0].crash(bug)
                return

    def _take(self) -> Sequence[Delivery[T]]:
        with self._lock:
            batch, self._waiting = self._waiting[: self._batch_max], self._waiting[self._batch_max :]
            self._running = bool(batch)
        return batch
