"""The ledger put together: what a service opens and hands to its parts."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from floodmark.core.ports import Clock
from floodmark.ledger.dispatch import Dispatch
from floodmark.ledger.dropped import Dropped
from floodmark.ledger.dropping import Dropping
from floodmark.ledger.engine import Budgets, Engine, Outcome
from floodmark.ledger.holds import Holds
from floodmark.ledger.refusals import Refusals
from floodmark.ledger.registry import Registry
from floodmark.ledger.retention import Retention
from floodmark.ledger.session import Session
from floodmark.ledger.store import LIMITS, Limits, Store
from floodmark.ledger.views import Views
from floodmark.ledger.zookeeper import ZooKeeperStore


@dataclass(frozen=True, slots=True)
class Ledger:
    store: Store
    registry: Registry
    views: Views
    holds: Holds
    dispatch: Dispatch
    retention: Retention
    dropped: Dropped
    dropping: Dropping
    refusals: Refusals


def ledger_on(
    store: Store,
    *,
    clock: Clock,
    randomness: random.Random,
    budgets: Budgets | None = None,
    observe: Callable[[str, Outcome[Any]], None] = lambda _name, _outcome: None,
    limits: Limits = LIMITS,
) -> Ledger:
    """A ledger on any store. `observe` sees every finished operation with its tries and conflicts."""
    budgets = budgets or Budgets()
    engine = Engine(store, clock, randomness, observe, limits)
    registry = Registry(engine, budgets)
    dropped = Dropped(store)
    return Ledger(
        store=store,
        registry=registry,
        views=Views(engine, budgets, registry, dropped),
        holds=Holds(engine, budgets, registry),
        dispatch=Dispatch(engine, budgets),
        retention=Retention(engine, budgets, registry),
        dropped=dropped,
        dropping=Dropping(engine, budgets),
        refusals=Refusals(engine, budgets),
    )


def open_ledger(session: Session, *, clock: Clock, randomness: random.Random, budgets: Budgets | None = None) -> Ledger:
    """The ledger of a connected session, its root nodes in place."""
    store = ZooKeeperStore(session)
    store.ensure_root()
    return ledger_on(store, clock=clock, randomness=randomness, budgets=budgets)
