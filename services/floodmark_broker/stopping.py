"""Queries on their way: so many at once, each for so long, each to be stopped by its id or by a client that hangs up.

waiting --a slot is free--> running --> done
   \\---- cancelled, out of time, client gone: its Spark jobs are cancelled ----> QueryStopped
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from typing import Any, TypeVar

from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.ports import Clock

T = TypeVar("T")
LOOK_EVERY_S = 0.05
LET_GO_WITHIN_MS = 5_000
"""How long cancelled jobs may take to end before the client is told without them."""


class QueryStopped(Exception):
    """A query was stopped before it had an answer. `rule` says by what."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


@dataclass(slots=True)
class Ticket:
    """One query. `stopped` is set at most once, by whoever stops it first."""

    query_id: str
    text: str
    began_ms: int
    stopped: QueryStopped | None = None
    running: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def stop(self, rule: str, message: str) -> None:
        with self._lock:
            self.stopped = self.stopped or QueryStopped(rule, message)

    def check(self) -> None:
        """Called between the steps of a query: a stopped one goes no further."""
        if self.stopped is not None:
            raise self.stopped


class Queries:
    def __init__(
        self,
        pool: ThreadPoolExecutor,
        clock: Clock,
        *,
        concurrency_max: int,
        waiting_max: int,
        cancel_jobs: Callable[[str], None],
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._concurrency_max = concurrency_max
        self._tickets_max = concurrency_max + waiting_max
        self._cancel_jobs = cancel_jobs
        self._tickets: dict[str, Ticket] = {}
        self._left: list[Future[Any]] = []
        """Stopped, and not ended when their clients were told."""
        self._lock = threading.Lock()
        self._closed = False

    def run(self, ticket: Ticket, work: Callable[[Ticket], T], *, within_ms: int, has_gone: Callable[[], bool]) -> T:
        """The result of the work, which runs on one of the slots. Raises QueryStopped when it was stopped."""
        self._admit(ticket)
        try:
            future = self._pool.submit(self._work, ticket, work)
            return self._await(future, ticket, within_ms, has_gone)
        finally:
            with self._lock:
                del self._tickets[ticket.query_id]

    def cancel(self, query_id: str) -> bool:
        """Stop a query; False when there is none of this id."""
        with self._lock:
            ticket = self._tickets.get(query_id)
        if ticket is None:
            return False
        ticket.stop("cancelled", f"query {query_id} was cancelled")
        return True

    def cancel_all(self, why: str) -> None:
        for ticket in self.tickets():
            ticket.stop("stopping", why)

    def close(self) -> None:
        """Take no more queries."""
        self._closed = True

    def tickets(self) -> list[Ticket]:
        with self._lock:
            return sorted(self._tickets.values(), key=lambda ticket: ticket.began_ms)

    def _admit(self, ticket: Ticket) -> None:
        with self._lock:
            if self._closed:
                raise Unavailable("the broker stops; ask again")
            if ticket.query_id in self._tickets:
                raise InvalidInput("query-id", f"a query {ticket.query_id!r} is running; choose another id")
            if len(self._tickets) >= self._tickets_max:
                raise Unavailable(f"{len(self._tickets)} queries run or wait; try again later")
            self._tickets[ticket.query_id] = ticket

    def _work(self, ticket: Ticket, work: Callable[[Ticket], T]) -> T:
        ticket.check()
        ticket.running = True
        return work(ticket)

    def _await(self, future: Future[T], ticket: Ticket, within_ms: int, has_gone: Callable[[], bool]) -> T:
        deadline_ms = ticket.began_ms + within_ms
        while ticket.stopped is None:
            try:
                return future.result(timeout=LOOK_EVERY_S)
            except NotYet:
                if future.done():
                    raise
            if self._clock.monotonic_ms() >= deadline_ms:
                ticket.stop("time-max", f"query {ticket.query_id} took longer than {within_ms} ms")
            elif has_gone():
                ticket.stop("client-gone", f"the client of query {ticket.query_id} hung up")
        self._let_go(future, ticket)
        raise ticket.stopped

    def _let_go(self, future: Future[T], ticket: Ticket) -> None:
        """Cancel its jobs until it has ended: one may start just after the others were cancelled."""
        if future.cancel():
            return
        deadline_ms = self._clock.monotonic_ms() + LET_GO_WITHIN_MS
        while not future.done() and self._clock.monotonic_ms() < deadline_ms:
            self._cancel_jobs(ticket.query_id)
            try:
                future.exception(timeout=LOOK_EVERY_S)
            except NotYet:
                continue
        with self._lock:
            self._left = [known for known in [*self._left, future] if not known.done()]

    def not_ended(self) -> int:
        """Spark looks whether a task is to end when the task asks for its next rows. One that never does goes on."""
        return sum(not future.done() for future in self._left)

    def trouble(self) -> str | None:
        """While a slot is left the others are answered: a broker that is not ready would answer nobody."""
        if self.not_ended() < self._concurrency_max:
            return None
        return f"all {self._concurrency_max} slots are taken by queries that were stopped and have not ended"
