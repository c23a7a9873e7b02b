"""The simulator's ports for a test that knows nothing of virtual time: each call runs the simulation until it answers.

That is how they go through the same contract suites as the real ones.
"""

from collections.abc import Callable
from typing import Any

from tests.simulation.bus import Link, SimBus
from tests.simulation.faults import Mishaps
from tests.simulation.hub import Hub, Life
from tests.simulation.store import ObservedStore, SimSession, SimStore

SETTLE_MS = 3_000
"""After each call, so that what it set off, such as a watch, has happened when the test looks."""


class Stepped:
    """Any port. What its methods raise is raised."""

    def __init__(self, life: Life, port: Any) -> None:
        self._life = life
        self.port = port

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.port, name)
        return lambda *args, **named: self._call(lambda: method(*args, **named))

    def _call(self, do: Callable[[], Any]) -> Any:
        hub, answers = self._life.hub, list[tuple[Any, Exception | None]]()
        if hub.current is not None:
            return do()  # from inside another call, such as a listener told in a poll

        def work() -> None:
            try:
                answers.append((do(), None))
            except Exception as error:
                answers.append((None, error))

        self._life.spawn(work)
        hub.run(lambda: bool(answers), steps_max=10**9)
        settled: list[bool] = []
        hub.at(hub.now_ms + SETTLE_MS, lambda: settled.append(True))
        hub.run(lambda: bool(settled), steps_max=10**9)
        value, error = answers[0]
        if error is not None:
            raise error
        return value


def peaceful(seed: str) -> Mishaps:
    return Mishaps(seed, rate=0)


def stepped_store(name: str = "one", *, hub: Hub | None = None, store: ObservedStore | None = None) -> Stepped:
    """A store on a session of its own."""
    life = Life(hub or Hub("contract", 0), name)
    session = SimSession(life, store or ObservedStore(), lambda: None)
    session.port = SimStore(session, peaceful(name))
    return Stepped(life, session.port)


class SteppedBus:
    """Members of groups on one simulated bus, each a process of its own."""

    def __init__(self, topics: dict[str, int]) -> None:
        self._hub = Hub("contract", 0)
        self._bus = SimBus(topics)
        self._links = 0

    def source(self, group: str) -> Stepped:
        link = self._link()
        return Stepped(link.life, link.source(group))

    def publisher(self) -> Stepped:
        link = self._link()
        return Stepped(link.life, link.publisher())

    def _link(self) -> Link:
        self._links += 1
        return Link(Life(self._hub, f"member {self._links}"), self._bus, peaceful("contract"))
