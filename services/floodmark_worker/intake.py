"""Puts tasks that fit together into batches, and lets a few batches run at once.

    pump --offer--> waiting, by view and lane --step--> batch --> a thread, at most `jobs_max` of them

Tasks of one view share a Spark job: its fixed cost is most of a second. A batch starts when its first task has waited
for `linger_ms`, or when it is full. Backfill leaves one place free, so that fresh data never waits behind a year of it.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from floodmark.bus.delivery import Delivery
from floodmark.contracts.envelope import Envelope
from floodmark.contracts.messages import BuildBucket
from floodmark.core.ports import Clock, Executor
from floodmark.core.scheduling import Lane

Group = tuple[str, str, str, str]
"""View, incarnation, definition hash and lane."""


def task_of(delivery: Delivery[Envelope]) -> BuildBucket:
    task = delivery.message.message
    assert isinstance(task, BuildBucket), f"{task} came through the tasks topic"
    return task


@dataclass(frozen=True, slots=True)
class Batch:
    """Tasks of one view, one for each bucket, by bucket start."""

    view: str
    lane: str
    deliveries: dict[int, Delivery[Envelope]]


@dataclass(slots=True)
class _Waiting:
    since_ms: int
    deliveries: list[Delivery[Envelope]] = field(default_factory=list)


class Intake:
    """The sink behind the pump on `tasks.v1`. Offered to and stepped by one thread."""

    def __init__(
        self,
        run: Callable[[Batch], None],
        executor: Executor,
        clock: Clock,
        *,
        jobs_max: int,
        batch_max: int,
        linger_ms: int,
    ) -> None:
        self._run = run
        self._executor = executor
        self._clock = clock
        self._jobs_max = jobs_max
        self._batch_max = batch_max
        self._linger_ms = linger_ms
        self._waiting: dict[Group, _Waiting] = {}
        self._lock = threading.Lock()
        self._running: list[str] = []
        """The lane of each batch that runs."""

    @property
    def running(self) -> int:
        with self._lock:
            return len(self._running)

    def offer(self, deliveries: Sequence[Delivery[Envelope]]) -> None:
        now_ms = self._clock.monotonic_ms()
        for delivery in deliveries:
            task = task_of(delivery)
            group = (task.view, task.incarnation, task.definition_hash, task.lane)
            self._waiting.setdefault(group, _Waiting(now_ms)).deliveries.append(delivery)

    def step(self) -> None:
        """Start the batches that are due, as far as there is room for them."""
        for group in list(self._ripe()):
            if not self._has_room(group[3]):
                continue
            batch = self._take(group)
            with self._lock:
                self._running.append(batch.lane)
            self._start(batch)

    def _ripe(self) -> Iterator[Group]:
        """Groups whose time has come: live before repair before backfill, and who waited longest first."""
        now_ms = self._clock.monotonic_ms()
        ripe = [
            group
            for group, waiting in self._waiting.items()
            if now_ms - waiting.since_ms >= self._linger_ms or len(waiting.deliveries) >= self._batch_max
        ]
        order = list(Lane)
        return iter(sorted(ripe, key=lambda group: (order.index(Lane(group[3])), self._waiting[group].since_ms)))

    def _has_room(self, lane: str) -> bool:
        with self._lock:
            free = self._jobs_max - len(self._running)
            reserved = 1 if lane == Lane.BACKFILL and self._jobs_max > 1 else 0
        return free > reserved

    def _take(self, group: Group) -> Batch:
        """The next batch of a group. Another task of a bucket that is in it already stays for the next one."""
        waiting = self._waiting.pop(group)
        chosen: dict[int, Delivery[Envelope]] = {}
        left = []
        for delivery in waiting.deliveries:
            start_ms = task_of(delivery).bucket_start_ms
            if len(chosen) < self._batch_max and start_ms not in chosen:
                chosen[start_ms] = delivery
            else:
                left.append(delivery)
        if left:
            self._waiting[group] = _Waiting(waiting.since_ms, left)
        return Batch(group[0], group[3], chosen)

    def _start(self, batch: Batch) -> None:
        def run() -> None:
            try:
                self._run(batch)
            finally:
                with self._lock:
                    self._running.remove(batch.lane)

        self._executor.submit(run)
