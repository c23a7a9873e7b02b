"""Mishaps of single calls, drawn from the seed: an answer that is lost, a connection that breaks, a message sent twice.

Each has a name, so that a run can be repeated without some of them: that is how a failing run is made shorter.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass, field

from tests.simulation.hub import Life

WRITE_MISHAPS = ("lost", "lost", "gone", "away", "dies before", "dies after", "stalls", "stalls")
FORGOTTEN, FORGOTTEN_SHARE = ("segments.v1", "tasks.v1", "results.v1"), 0.1
STALL_MS = (1_500, 5_900)
"""How long a process may stand still without anyone taking it for dead."""
PUBLISH_MISHAPS = ("lost", "part", "away", "twice", "dies before", "dies after")


@dataclass
class Mishaps:
    """`rate` is the share of calls that go wrong; zero from the moment on at which the system is left in peace."""

    seed: str
    rate: float
    lossy: bool = False
    left_out: Collection[str] = ()
    happened: list[str] = field(default_factory=list)
    _streams: dict[str, random.Random] = field(default_factory=dict)

    def of_write(self, life: Life) -> str:
        return self._draw(life, "write", _survivable(life, WRITE_MISHAPS))

    def of_poll(self, life: Life) -> bool:
        return bool(life.die and self._draw(life, "poll", ("is told to stop",), rarer=0.25))

    def breaks_read(self, life: Life) -> bool:
        return bool(self._draw(life, "read", ("broken",), rarer=4))

    def of_publish(self, life: Life) -> str:
        return self._draw(life, "publish", _survivable(life, PUBLISH_MISHAPS))

    def swallows(self, life: Life, topic: str) -> bool:
        """Whether the bus says yes and forgets. What nobody would send again is not forgotten."""
        if not (self.lossy and topic in FORGOTTEN):
            return False
        return self._stream(f"lost/{life.instance}").random() < FORGOTTEN_SHARE

    def of_file(self, life: Life) -> bool:
        return bool(self._draw(life, "file", ("unavailable",), rarer=2))

    def of_job(self, life: Life) -> bool:
        return bool(self._draw(life, "job", ("executor lost",)))

    def _draw(self, life: Life, kind: str, outcomes: tuple[str, ...], *, rarer: float = 1) -> str:
        """Each process has its own stream, so that leaving one mishap out does not move those of the others."""
        life.calls += 1
        if not self.rate:
            return ""
        stream = self._stream(f"mishaps/{life.instance}")
        if stream.random() * rarer >= self.rate:
            return ""
        outcome = stream.choice(outcomes)
        name = f"{kind} {life.calls} of {life.instance} {outcome}"
        if name in self.left_out:
            return ""
        self.happened.append(name)
        return outcome

    def _stream(self, name: str) -> random.Random:
        if name not in self._streams:
            self._streams[name] = random.Random(f"{self.seed}/{name}")
        return self._streams[name]


def _survivable(life: Life, outcomes: tuple[str, ...]) -> tuple[str, ...]:
    """Whoever has nobody to start it again neither dies nor stalls."""
    return outcomes if life.die else tuple(o for o in outcomes if not o.startswith(("dies", "stalls")))
