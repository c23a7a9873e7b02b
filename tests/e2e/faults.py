"""What goes wrong with containers: killed, paused, cut off from the network, restarted; drawn from a deck by a seed."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from docker.errors import APIError

from floodmark.local.services import SERVICES
from tests.e2e.background import in_background
from tests.e2e.stack import SERVERS, Containers, Replica

STEP_EVERY_S = 0.5
ACHIEVED_EACH = 2
PATIENCE_S = 20
HEAL_AGAIN_S = 1
HEALED_WITHIN_S = 60


class Fault(StrEnum):
    KILL = "kill"
    PAUSE = "pause"
    PARTITION = "partition"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Card:
    fault: Fault
    replica: str


@dataclass(slots=True)
class Trouble:
    """What was done to a container, until when, and how it is mended."""

    until_s: float
    heal: Callable[[], None]
    give_up_s: float


@dataclass
class Mischief:
    """Deals a shuffled deck with every fault of every service, on one of its replicas, and a restart of each server.

    At most `at_once` containers are in trouble at any moment, never two of one service: both may fail, but then nothing
    would be asked and nothing changed, and the run would test less. For the same reason the next card waits until
    something has been achieved since the last one, however slow the machine is; but not for ever.
    """

    system: Containers
    dice: random.Random
    achieved: Callable[[], int]
    lasts_s: tuple[float, float] = (1, 8)
    servers_last_s: tuple[float, float] = (1, 4)
    at_once: int = 2
    done: Counter[str] = field(default_factory=Counter)
    _deck: list[Card] = field(default_factory=list)
    _last: tuple[float, int] = (0.0, 0)
    _troubled: dict[str, Trouble] = field(default_factory=dict)

    def deck(self) -> list[Card]:
        names = {service.name: [r.name for r in self.system.of(service.name)] for service in SERVICES}
        cards = [Card(fault, self.dice.choice(replicas)) for replicas in names.values() for fault in Fault]
        cards += [Card(fault, server) for server in SERVERS for fault in (Fault.RESTART, Fault.PAUSE)]
        self.dice.shuffle(cards)
        return cards

    def step(self) -> None:
        """Heal what has lasted long enough, and deal the next card if there is room for it."""
        now_s = time.monotonic()
        for name in [n for n, trouble in self._troubled.items() if trouble.until_s <= now_s]:
            self._heal(name)
        if len(self._troubled) >= self.at_once or not self._is_time(now_s):
            return
        self._deck = self._deck or self.deck()
        services = {self.system.replicas[name].service for name in self._troubled}
        card = next((c for c in self._deck if self.system.replicas[c.replica].service not in services), None)
        if card is None:
            return
        self._deck.remove(card)
        self._deal(card, self.system.replicas[card.replica])

    def _is_time(self, now_s: float) -> bool:
        """Whether enough was achieved since the last card, or it was waited for long enough."""
        dealt_s, achieved = self._last
        return self.achieved() >= achieved + ACHIEVED_EACH or now_s >= dealt_s + PATIENCE_S

    def _deal(self, card: Card, replica: Replica) -> None:
        act, heal = {
            Fault.KILL: (replica.kill, replica.start),
            Fault.PAUSE: (replica.pause, replica.unpause),
            Fault.PARTITION: (replica.cut_off, replica.connect),
            Fault.RESTART: (replica.restart, lambda: None),
        }[card.fault]
        replica.container.reload()
        if replica.container.status != "running":
            return  # it lost its session and is being started again
        try:
            act()
        except APIError:
            return  # it ended by itself in this very moment, or the engine could not: nothing was done to it
        self.done[card.fault] += 1
        now_s = time.monotonic()
        lasts_s = self.dice.uniform(*(self.servers_last_s if replica.service in SERVERS else self.lasts_s))
        self._troubled[replica.name] = Trouble(now_s + lasts_s, heal, now_s + lasts_s + HEALED_WITHIN_S)
        self._last = (now_s, self.achieved())

    def _heal(self, name: str) -> None:
        """Mend it, a moment later if need be: an engine that is starting a container again refuses other things."""
        trouble = self._troubled[name]
        try:
            trouble.heal()
        except APIError:
            if time.monotonic() > trouble.give_up_s:
                raise
            trouble.until_s = time.monotonic() + HEAL_AGAIN_S
        else:
            del self._troubled[name]

    def heal_all(self) -> None:
        while self._troubled:
            for name in list(self._troubled):
                self._heal(name)
            if self._troubled:
                time.sleep(HEAL_AGAIN_S)

    @property
    def dealt(self) -> int:
        return self.done.total()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Things go wrong while the block runs, and are mended when it ends."""

        def run(stop: threading.Event) -> None:
            while not stop.wait(STEP_EVERY_S):
                self.step()

        try:
            with in_background(run):
                yield
        finally:
            self.heal_all()
