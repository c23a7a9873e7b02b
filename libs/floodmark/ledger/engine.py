"""The one compare-and-set engine: read, decide, write with versions, and repeat within a named budget.

An operation is a function `attempt()` that reads, decides purely and returns either what to write or that nothing is to
be written. It runs again on every try, so whatever can change (source, clock) is read inside it.

    attempt() -> Done(result)              nothing to write
              -> Write(ops, result)        commit --> Committed   -> result
                                                  --> Conflicted  -> forget what was cached, wait, try again
                                                  --> unknown     -> sync, try again: the attempt id tells

SUBTLE: after a lost answer the write may have happened. The next try reads the node again; a strict decision
recognises its own attempt id and reports success, a lenient one finds its effect already true. kazoo's own `retry`
would instead repeat the same versioned write and report BadVersion for a write that landed.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from floodmark.core.errors import BudgetExhausted, FloodmarkError, OutcomeUnknown, SessionLost, Unavailable
from floodmark.core.ports import Clock
from floodmark.ledger.store import LIMITS, Answer, Committed, Limits, Node, Op, Store, check_sizes

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Budget:
    """How often to try and how long to wait in between."""

    name: str
    tries_max: int
    wait_ms: int
    jitter_ms: int


CRITICAL = Budget("critical", tries_max=128, wait_ms=50, jitter_ms=150)
"""For what must not be lost. Tunable: this is the one place, for all callers."""
REVERT = Budget("revert", tries_max=8, wait_ms=5, jitter_ms=20)
"""Losing a revert costs one avoidable task. Fixed."""


@dataclass(frozen=True, slots=True)
class Budgets:
    critical: Budget = CRITICAL
    revert: Budget = REVERT


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    result: R


@dataclass(frozen=True, slots=True)
class Write(Generic[R]):
    ops: Sequence[Op]
    result: R
    on_committed: Callable[[Committed], None] = lambda _: None
    from_memory: bool = False
    """Decided on what was seen earlier: losing such a write says nothing of contention, so the next try is at once."""


@dataclass(frozen=True, slots=True)
class Operation(Generic[R]):
    """An operation that knows beforehand what it reads: several of them can be under way together."""

    name: str
    reads: Sequence[str]
    decide: Callable[[Sequence[Node | None]], Done[R] | Write[R]]


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """The result of an operation, and what it took."""

    result: R
    tries: int
    conflicts: int
    unknowns: int


@dataclass(slots=True)
class Engine:
    """Runs operations against a store."""

    store: Store
    clock: Clock
    randomness: random.Random
    observe: Callable[[str, "Outcome[Any]"], None] = field(default=lambda _name, _outcome: None)
    limits: Limits = LIMITS

    def run(
        self,
        name: str,
        budget: Budget,
        attempt: Callable[[], Done[R] | Write[R]],
        *,
        forget: Callable[[], None] = lambda: None,
        first: tuple[Write[R], Answer] | None = None,
    ) -> Outcome[R]:
        """Run one operation. `name` names it in errors and metrics; `forget` drops cached reads after a conflict.

        `first` is a first try that was made already, and its answer.
        """
        conflicts = unknowns = 0
        for tries in range(1, budget.tries_max + 1):
            if first is not None and tries == 1:
                step, answer = first
            else:
                made = self._attempt(name, attempt, written_maybe=unknowns > 0)
                if isinstance(made, Done):
                    return self._finished(name, Outcome(made.result, tries, conflicts, unknowns))
                check_sizes(made.ops, self.limits)
                step, answer = made, self._commit(made.ops)
            if isinstance(answer, Committed):
                step.on_committed(answer)
                return self._finished(name, Outcome(step.result, tries, conflicts, unknowns))
            if isinstance(answer, Unavailable):
                raise answer
            forget()
            if isinstance(answer, OutcomeUnknown):
                unknowns += 1
                self._look_up(name, budget)
            else:
                conflicts += 1
            if tries < budget.tries_max and not step.from_memory:
                self._wait(budget)
        raise BudgetExhausted(f"{name}: lost all {budget.tries_max} tries of the {budget.name} budget")

    def run_one(
        self, budget: Budget, operation: Operation[R], first: tuple[Write[R], Answer] | None = None
    ) -> Outcome[R]:
        def attempt() -> Done[R] | Write[R]:
            return operation.decide(self.store.read_many(operation.reads))

        return self.run(operation.name, budget, attempt, first=first)

    def run_all(self, budget: Budget, operations: Sequence[Operation[R]]) -> list[Outcome[R] | FloodmarkError]:
        """Run independent operations, the first tries of all of them together: one read, and all writes under way.

        One that loses its first try goes on by itself. What goes wrong with one stands in its place (INV-14).
        """
        nodes = iter(self.store.read_many([path for operation in operations for path in operation.reads]))
        firsts = [self._first(operation, [next(nodes) for _ in operation.reads]) for operation in operations]
        answers = iter(self.store.commit_many([first.ops for first in firsts if isinstance(first, Write)]))
        results: list[Outcome[R] | FloodmarkError] = []
        for operation, first in zip(operations, firsts, strict=True):
            if isinstance(first, Write):
                results.append(self._gone_on(operation, budget, first, next(answers)))
            elif isinstance(first, Done):
                results.append(self._finished(operation.name, Outcome(first.result, 1, 0, 0)))
            else:
                results.append(first)
        return results

    def _first(self, operation: Operation[R], nodes: Sequence[Node | None]) -> Done[R] | Write[R] | FloodmarkError:
        try:
            step = operation.decide(nodes)
            if isinstance(step, Write):
                check_sizes(step.ops, self.limits)
        except FloodmarkError as error:
            return error
        return step

    def _gone_on(
        self, operation: Operation[R], budget: Budget, first: Write[R], answer: Answer
    ) -> Outcome[R] | FloodmarkError:
        try:
            return self.run_one(budget, operation, first=(first, answer))
        except FloodmarkError as error:
            return error

    def _commit(self, ops: Sequence[Op]) -> Answer:
        try:
            return self.store.commit(ops)
        except OutcomeUnknown as error:
            return error

    def _attempt(
        self, name: str, attempt: Callable[[], Done[R] | Write[R]], *, written_maybe: bool
    ) -> Done[R] | Write[R]:
        try:
            return attempt()
        except Unavailable as error:
            if written_maybe:
                raise OutcomeUnknown(f"{name}: may have been written, and cannot be looked up: {error}") from error
            raise

    def _look_up(self, name: str, budget: Budget) -> None:
        """Let the next read see the write, if it happened.

        An answer is lost together with the connection, so the first look nearly always comes too early. Only a session
        that is over is not waited for: this process will never see the answer.
        """
        for looks in range(1, budget.tries_max + 1):
            try:
                self.store.sync()
            except Unavailable as error:
                if looks == budget.tries_max or isinstance(error, SessionLost):
                    raise OutcomeUnknown(f"{name}: may have been written, and cannot be looked up: {error}") from error
            else:
                return
            self._wait(budget)

    def _wait(self, budget: Budget) -> None:
        self.clock.sleep_ms(budget.wait_ms + self.randomness.randint(0, budget.jitter_ms))

    def _finished(self, name: str, outcome: Outcome[R]) -> Outcome[R]:
        self.observe(name, outcome)
        return outcome
