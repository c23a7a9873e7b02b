"""Puts the janitor together, and steps its chores."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import structlog

from floodmark.catalog.definitions import Located, everything_located, sharing
from floodmark.core.errors import BudgetExhausted, InvalidInput, Unavailable
from floodmark.core.garbage import Terms
from floodmark.core.tables import ViewDefinition
from floodmark.ledger.leadership import Leadership
from floodmark.ledger.ledger import Ledger, open_ledger
from floodmark.service import wiring
from floodmark.service.chores import Chore, Chores
from floodmark.service.runner import Runtime, Service
from floodmark_janitor.books import Books
from floodmark_janitor.clearing import Clearer
from floodmark_janitor.collecting import Collector
from floodmark_janitor.config import JanitorSettings
from floodmark_janitor.retiring import Retirer

log = structlog.get_logger()

STEP_MS = 100
"""How often the loop looks whether a chore is due."""


def build(settings: JanitorSettings, runtime: Runtime) -> Service:
    own = settings.janitor
    ledger = open_ledger(runtime.session, clock=runtime.clock, randomness=runtime.randomness)
    books = Books(runtime.metrics)
    terms = Terms(own.grace_ms, own.skew_ms)
    rounds = Rounds(
        ledger,
        Collector(ledger, runtime.clock, terms, books),
        Clearer(ledger, runtime.clock, terms, books),
        Retirer(ledger, runtime.clock, own.retire_batch_max, books),
    )
    leadership = Leadership(ledger.store, "janitor", runtime.instance)
    chore = Chore("clear away", lambda: rounds.go() if leadership.hold() else None, own.every_ms)
    return Janitor(Chores(wiring.thread_pool(runtime, threads_max=1), runtime.clock, [chore]))


@dataclass(frozen=True, slots=True)
class Janitor:
    """Steps the chores. A stop may come between any two of their steps: what was not deleted is found again."""

    chores: Chores

    def step(self) -> int:
        self.chores.step()
        return STEP_MS

    def drain(self, *, deadline_ms: int) -> int:  # noqa: ARG002 - there is nothing to wait for
        return 0


@dataclass(slots=True)
class Rounds:
    """Goes round every table and view, and round what dropped views have left behind.

    One that cannot be looked at does not keep the others waiting (INV-14).
    """

    ledger: Ledger
    collector: Collector
    clearer: Clearer
    retirer: Retirer
    _troubles: dict[str, str] = field(default_factory=dict)

    def go(self) -> None:
        known = everything_located(self.ledger)
        self.collector.forget_all_but(self.ledger.views.names())
        for located in known:
            kind = "view" if isinstance(located.definition, ViewDefinition) else "table"
            self._each(kind, located.definition.name, partial(self._look_after, located, known))
        for incarnation in self.ledger.dropped.incarnations():
            self._each("dropped view", incarnation, partial(self.clearer.clear, incarnation))

    def _each(self, kind: str, name: str, look: Callable[[], object]) -> None:
        try:
            look()
        except (InvalidInput, Unavailable, BudgetExhausted) as error:
            self._complain(kind, name, str(error))
        else:
            self._troubles.pop(f"{kind} {name}", None)

    def _look_after(self, located: Located, known: list[Located]) -> None:
        definition = located.definition
        # Refused when a definition is made. One from an import, or made at the same moment as another, comes this far.
        if neighbour := sharing(located, known):
            raise InvalidInput("location-overlap", f"{definition.location} is shared with {neighbour.name!r}")
        if isinstance(definition, ViewDefinition):
            self.collector.collect(definition.name)
        else:
            self.ledger.holds.remove_expired(definition.name)  # also where there is nothing to delete
            self.retirer.sweep(definition)

    def _complain(self, kind: str, name: str, error: str) -> None:
        """Once for each reason: the next round comes soon."""
        key = f"{kind} {name}"
        if self._troubles.get(key) != error:
            log.warning("not_cleared_away", **{kind.replace(" ", "_"): name}, error=error)
            self._troubles[key] = error
