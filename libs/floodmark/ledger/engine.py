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

from floodmark.core.errors import BudgetExhausted, OutcomeUnknown, SessionLost, Unavailable
from floodmark.core.ports import Clock
from floodmark.ledger.store import Committed, Op, Store, check_sizes

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

    def run(
        self,
        name: str,
        budget: Budget,
        attempt: Callable[[], Done[R] | Write[R]],
        *,
        forget: Callable[[], None] = lambda: None,
    ) -> Outcome[R]:
        """Run one operation. `name` names it in errors and metrics; `forget` drops cached reads after a conflict."""
        conflicts = unknowns = 0
        for tries in range(1, budget.tries_max + 1):
            step = self._attempt(name, attempt, written_maybe=unknowns > 0)
            if isinstance(step, Done):
                return self._finished(name, Outcome(step.result, tries, conflicts, unknowns))
            check_sizes(step.ops)
            try:
                answer = self.store.commit(step.ops)
            except OutcomeUnknown:
                unknowns += 1
                forget()
                self._look_up(name, budget)
            else:
                if isinstance(answer, Committed):
                    step.on_committed(answer)
                    return self._finished(name, Outcome(step.result, tries, conflicts, unknowns))
                conflicts += 1
                forget()
            if tries < budget.tries_max and not step.from_memory:
                self._wait(budget)
        raise BudgetExhausted(f"{name}: lost all {budget.tries_max} tries of the {budget.name} budget")

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
